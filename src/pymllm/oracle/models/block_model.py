"""The specified blocks: free, referenced or cached, their hashes, eviction order, and cached states."""

from __future__ import annotations

import copy
from collections import ChainMap, Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from pymllm.oracle.models.slot_model import Remainder


class Registration(NamedTuple):
    """The result that one entry of a registration must have."""

    block: int
    hash: int
    parent: int | None
    why_not: str
    """Why an entry fails: ``"known"``, ``"taken"``, ``"orphan"`` (parent unknown), ``"usurped"``, or ""."""


class BlockModel:
    """The model of blocks ``0 .. usable - 1`` and a dummy block; it copies the allocator's own choices.

    But with the policy ``ref_zero`` registered blocks stay cached once nobody references them; without
    ``is_caching`` nothing is registered. With ``is_trusting`` a hash may have several blocks, and none has a
    parent.
    """

    def __init__(self, usable: int, policy: str, is_caching: bool, is_trusting: bool = False) -> None:
        self.usable, self.policy = usable, policy
        self.is_caching, self.is_trusting = is_caching, is_trusting
        self.reset()

    def reset(self) -> None:
        """Free every block and forget every hash."""
        self.refs: defaultdict[int, int] = defaultdict(int)  # of what nobody asked for there is nothing
        self.transfers: Counter[int] = Counter()  # those of them that transfers have
        self.stamps: defaultdict[int, int] = defaultdict(int)
        self.free = Remainder(range(self.usable))  # neither referenced nor registered
        self.hash_of: dict[int, int] = {}  # by registered block
        self.block_of: dict[int, int] = {}  # one of them, where there may be several
        self.line: dict[int, None] = {}  # unreferenced registered blocks, as they were let go of
        self.parent_of: dict[int, int | None] = {}  # the block before each registered one, if any
        self.clock = 0  # the context's

    def copy(self) -> BlockModel:
        """Return an independent copy of the model."""
        made = copy.copy(self)
        made.refs, made.stamps, made.hash_of = self.refs.copy(), self.stamps.copy(), self.hash_of.copy()
        made.block_of, made.parent_of = self.block_of.copy(), self.parent_of.copy()
        made.line = self.line.copy()
        made.free = Remainder(self.free.whole, self.free.gone.copy())
        return made

    # -- questions -----------------------------------------------------------------------------------------

    @property
    def held(self) -> list[int]:
        """Referenced blocks, ascending."""
        return sorted(block for block, count in self.refs.items() if count)

    def callers_refs(self, block: int) -> int:
        """Return how many references to a block a release may remove: all except those of transfers."""
        return self.refs[block] - self.transfers[block]

    @property
    def cached(self) -> list[int]:
        """The registered blocks without references, ascending."""
        return sorted(block for block in self.hash_of if not self.refs[block])

    @property
    def occupied(self) -> list[int]:
        """Referenced and cached blocks, ascending."""
        return sorted(self.free.gone)

    def children(self, block: int) -> list[int]:
        """Return the registered blocks right below a block, ascending."""
        return sorted(child for child, parent in self.parent_of.items() if parent == block)

    def evictable(self, keep: Collection[int] = ()) -> set[int]:
        """Return the cached blocks that may be evicted: unprotected, and without a referenced descendant."""
        active: set[int | None] = {None}
        for registered in self.hash_of:
            block: int | None = registered if self.refs[registered] or registered in keep else None
            while block not in active:
                active.add(block)
                block = self.parent_of[block]  # type: ignore[index]
        return set(self.hash_of) - active

    def turns(self, victims: Iterable[int], keep: Collection[int] = ()) -> Iterator[set[int]]:
        """Yield the set of blocks that may be evicted next: at first, and after each of ``victims``."""
        evictable, children = self.evictable(keep), Counter(self.parent_of.values())
        leaves = evictable.difference(children)
        yield leaves
        for victim in victims:
            parent = self.parent_of[victim]
            leaves.remove(victim)
            children[parent] -= 1
            if parent in evictable and not children[parent]:
                leaves.add(parent)
            yield leaves

    def least_recent(self, count: int, keep: Collection[int] = ()) -> list[int]:
        """Return ``count`` blocks in eviction order: the oldest leaf first, among equals the lowest id."""
        victims: list[int] = []  # which grows while its turns are told
        for _, leaves in zip(range(count), self.turns(victims, keep), strict=False):
            victims.append(min(leaves, key=lambda leaf: (self.stamps[leaf], leaf)))
        return victims

    def subtree(self, block: int) -> list[int]:
        """Return a registered block and all its registered descendants, each after its parent."""
        found = [block]
        for each in found:
            found += self.children(each)
        return found

    def lost_with(self, released: Sequence[int]) -> list[int]:
        """Return the blocks that are deregistered or become free when references are removed."""
        idle = [block for block, times in Counter(released).items() if self.refs[block] == times]
        lost = [block for block in idle if block not in self.hash_of]
        if self.policy == "ref_zero":
            lost += [it for block in idle if block in self.hash_of for it in self.subtree(block)]
        return [*dict.fromkeys(lost)]

    def faults_of(self, blocks: Iterable[int]) -> list[str]:
        """Return the reason for refusing each named block that is the dummy, free or outside."""
        return [
            "the dummy is refused"
            if block == self.usable
            else "a free block is refused"
            if block in self.free
            else "a block outside is refused"
            for block in blocks
            if block not in range(self.usable) or block in self.free
        ]

    # -- changes -------------------------------------------------------------------------------------------

    def take(self, blocks: Sequence[int]) -> None:
        """Hand out free blocks, stamped with the clock."""
        self.free.take(blocks)
        for block in blocks:
            self.refs[block], self.stamps[block] = 1, self.clock

    def retain(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block."""
        for block in blocks:
            self.refs[block] += 1
            self.line.pop(block, None)

    def release(self, blocks: Sequence[int]) -> list[int]:
        """Remove references, and return the blocks that this deregistered or freed."""
        gone = self.lost_with(blocks)
        for block in blocks:
            self.refs[block] -= 1
            if not self.refs[block]:
                self.line[block] = None
        self.drop(gone)
        return gone

    def drop(self, blocks: Sequence[int]) -> Sequence[int]:
        """Deregister blocks, free the unreferenced ones, and return all of them."""
        for block in blocks:
            self.line.pop(block, None)
            hash_value = self.hash_of.pop(block, None)
            if hash_value is not None:
                del self.block_of[hash_value], self.parent_of[block]
                if self.is_trusting:
                    twins = (other for other, value in self.hash_of.items() if value == hash_value)
                    self.block_of.update((hash_value, other) for other in twins)
        self.free.give([block for block in blocks if not self.refs[block]])
        return blocks

    def plan_registration(
        self, blocks: Sequence[int], hashes: Sequence[int], parents: Sequence[int] | None
    ) -> list[Registration]:
        """Work out the result of registering each occupied block."""
        made: list[Registration] = []
        hash_of, block_of = ChainMap({}, self.hash_of), ChainMap({}, self.block_of)
        earlier: dict[int, int] = {}
        for at, (block, hash_value) in enumerate(zip(blocks, hashes, strict=True)):
            above = parents[at] if parents is not None else (hashes[at - 1] if at else 0)
            if parents is None:
                earlier = {above: blocks[at - 1]}
            parent = earlier.get(above, block_of.get(above)) if above else None
            earlier[hash_value] = block
            why_not = ""
            if not self.is_caching:
                why_not = "off"
            elif hash_of.get(block) == hash_value:
                why_not = "known"
            elif self.is_trusting:
                parent, hash_of[block] = None, hash_value
            elif hash_value in block_of:
                why_not = "taken"
            elif above and parent not in hash_of:
                why_not = "usurped" if above in block_of else "orphan"
            else:
                hash_of[block], block_of[hash_value] = hash_value, block
            made.append(Registration(block, hash_value, parent, why_not))
        return made

    def register(self, planned: Iterable[Registration]) -> None:
        """Register the blocks whose planned result allows it, and leave the others unchanged."""
        for block, hash_value, parent, why_not in planned:
            if not why_not:
                self.hash_of[block], self.block_of[hash_value] = hash_value, block
                self.parent_of[block] = parent

    def stamp(self, blocks: Iterable[int]) -> None:
        """Set the timestamps of blocks to the clock."""
        for block in blocks:
            self.stamps[block] = self.clock


class BlockSlotModel:
    """The model of slots ``0 .. total - 1`` of blocks; it copies the allocator's choice of free slots."""

    def __init__(self, total: int, blocks: BlockModel) -> None:
        self.total = total
        self._blocks = blocks
        self.reset()

    def reset(self) -> None:
        """Free every slot."""
        self.slot_of: dict[int, int] = {}  # by block
        self.named: dict[int, int] = {}  # the hash by which the state of a block is found
        self.in_hand: set[int] = set()  # slots that a caller took and has

    @property
    def free(self) -> Remainder:
        """The slots that are free."""
        return Remainder(range(self.total), {*self.slot_of.values(), *self.in_hand})

    @property
    def free_count(self) -> int:
        """The number of slots that are free."""
        return self.total - len(self.slot_of) - len(self.in_hand)

    @property
    def usable(self) -> list[int]:
        """Slots that may be written: those of blocks and those that the caller has taken, ascending."""
        return sorted({*self.slot_of.values()} | self.in_hand)

    def victims(self, keep: Collection[int] = (), taken: Collection[int] = ()) -> list[int]:
        """Return the blocks that may lose their slots, in a permitted order: ties go to ``taken``."""
        found = [block for block in self.slot_of if not self._blocks.refs[block] and block not in keep]
        stamps, has_stamps = self._blocks.stamps, self._blocks.policy != "ref_zero"
        return sorted(
            found,
            key=lambda block: (stamps[block] if has_stamps else 0, self.slot_of[block] not in taken, block),
        )

    def newcomers(self, blocks: Iterable[int]) -> list[int]:
        """Return the blocks among these that have no slot, each once."""
        return [block for block in dict.fromkeys(blocks) if block not in self.slot_of]

    def give(self, blocks: Iterable[int], slots: Iterable[int]) -> None:
        """Give slots to blocks that have none."""
        self.slot_of.update(zip(blocks, slots, strict=True))

    def drop(self, blocks: Iterable[int]) -> list[int]:
        """Take the slots from the blocks that have one, and return these slots."""
        slots = []
        for block in blocks:
            if block in self.slot_of:
                slots.append(self.slot_of.pop(block))
            self.named.pop(block, None)
        return slots
