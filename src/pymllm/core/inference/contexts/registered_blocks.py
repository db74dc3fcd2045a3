"""The registered blocks: parents and children, hashes, and the order of evictions."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.core.inference.contexts.host_numbers import host_integers
from pymllm.errors import UsageError
from pymllm.mem_cache.cache_events import EventLog, Part

NO_BLOCK: Final = -1
NO_HASH: Final = -1


class PrefixCachingEvictionPolicy(enum.StrEnum):
    """The policy for a registered block that has no references."""

    REF_ZERO = "ref_zero"
    """The block is deregistered at once and becomes free."""
    LRU = "lru"
    """The block stays cached until room is needed; the least recently used one is evicted first."""

    def __repr__(self) -> str:
        """Return the expression by which a caller writes the policy."""
        return f"{type(self).__name__}.{self.name}"


def is_lru(policy: object) -> bool:
    """Tell whether a policy is LRU: this enumeration's, its value, or another engine's of that name."""
    return str(getattr(policy, "name", policy)).lower() == "lru"


class BlockForest:
    """The forest of registered blocks, which finds the least recent evictable one without a scan.

    A block is *active* if it is referenced or a registered block below it is. What is not active may be
    evicted, children first; a block without children is then a *leaf* and can go at once. ``ref_counts``:
    shape ``(blocks,)``, references to each block; the owner changes it and then says so with `activate` and
    `deactivate`. ``timestamps``: shape ``(blocks,)``, last use of each block; the owner says so with
    `restamp` where one was lowered. ``parents``: shape ``(blocks,)``, int32: the parent of each registered
    block, -1 for a first block and for blocks that are not registered. Activity is counted child by child: a
    parent knows how many of its children are active, so a change climbs only while it changes something, and
    taking or giving back a whole path costs O(1) per block. Leaves wait in a heap by (timestamp, id). A stamp
    only ever rises while a leaf waits, so it is read again when the leaf comes up, and raising it costs
    nothing. Laws: C1, X3.
    """

    def __init__(self, ref_counts: NDArray[np.int32], timestamps: NDArray[np.int64]) -> None:
        self._ref_counts = ref_counts
        self._timestamps = timestamps
        self.parents: NDArray[np.int32] = np.empty(ref_counts.size, np.int32)
        self.clear()

    def clear(self) -> None:
        """Forget every block."""
        self.parents[:] = NO_BLOCK
        self._idle: set[int] = set()
        # Only registered blocks have an entry. The children are a dict for its order, the same in every run.
        self._children: dict[int, dict[int, None]] = {}
        self._active_children: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._queued_at: dict[int, int] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._children

    def add(self, block: int, parent: int) -> None:
        """Register a referenced block below ``parent``, a registered block or -1."""
        self._children[block] = {}
        self._active_children[block] = 0
        self.parents[block] = parent
        if parent >= 0:
            self._children[parent][block] = None
            self._active_children[parent] += 1
            self.activate(parent)

    @property
    def evictable(self) -> int:
        """Return the number of registered blocks that are inactive."""
        return len(self._idle)

    def activate(self, block: int) -> None:
        """Record that a registered block is referenced."""
        while block in self._idle:
            self._idle.remove(block)
            self._queued_at.pop(block, None)
            block = int(self.parents[block])
            if block < 0:
                return
            self._active_children[block] += 1

    def deactivate(self, block: int) -> None:
        """Record that a registered block has no references left."""
        # Of blocks that lose their references together, the lower may have reached the upper already.
        while not (block in self._idle or self._ref_counts[block] or self._active_children[block]):
            self._idle.add(block)
            self._queue_leaf(block)
            block = int(self.parents[block])
            if block < 0:
                return
            self._active_children[block] -= 1

    def children_of(self, block: int) -> Iterable[int]:
        """Return the children of a registered block."""
        return self._children[block]

    def restamp(self, block: int) -> None:
        """Record that the stamp of a block was lowered."""
        if block in self._queued_at:
            self._queue_leaf(block)

    def pop_oldest(self) -> int:
        """Remove and return the leaf with the oldest stamp, the lowest id among equals.

        Cost: O(log leaves), plus the same for each leaf that was stamped since it began to wait.
        """
        while True:
            stamp, block = heappop(self._heap)
            if self._queued_at.get(block) != stamp:
                continue  # it left, or a lower stamp of it came up before
            if self._timestamps[block] == stamp:
                break
            del self._queued_at[block]
            self._queue_leaf(block)
        self._remove_leaf(block)
        return block

    def _remove_leaf(self, block: int) -> None:
        parent = int(self.parents[block])
        self._forget(block)
        if parent >= 0:
            del self._children[parent][block]
            self._queue_leaf(parent)

    def remove_subtree(self, block: int) -> list[int]:
        """Remove a block with all its descendants, referenced or not.

        Cost: O(removed).
        """
        parent = int(self.parents[block])
        if parent >= 0:
            del self._children[parent][block]
            if block not in self._idle:
                self._active_children[parent] -= 1
                self.deactivate(parent)
            else:
                self._queue_leaf(parent)
        removed = [block]
        for each in removed:
            removed.extend(self._children[each])
            self._forget(each)
        return removed

    def _forget(self, block: int) -> None:
        del self._children[block], self._active_children[block]
        self._idle.discard(block)
        self._queued_at.pop(block, None)
        self.parents[block] = NO_BLOCK

    def _queue_leaf(self, block: int) -> None:
        """Queue an inactive block for eviction if it has no children."""
        if self._children[block] or block not in self._idle:
            return
        stamp = int(self._timestamps[block])
        queued = self._queued_at.get(block)
        if queued is not None and queued <= stamp:
            return
        self._queued_at[block] = stamp
        heappush(self._heap, (stamp, block))
        if len(self._heap) > 2 * len(self._queued_at) + 64:
            # Blocks that were taken up again leave their entries behind; forget those once they outnumber.
            self._heap = [(at, leaf) for leaf, at in self._queued_at.items()]
            heapify(self._heap)


class BlockHashes:
    """The hash of each registered block, and the block of each hash.

    ``pool_size``: blocks. ``forest``: takes up what is registered; who is registered is asked there.
    ``of_block``: shape ``(pool_size,)``, int64, -1 for none. ``to_block``: exactly the inverse. ``log``:
    notes what is registered and forgotten, or ``None``. Laws: C3, X10.
    """

    log: EventLog | None = None

    def __init__(self, pool_size: int, forest: BlockForest) -> None:
        self._forest = forest
        self.of_block: NDArray[np.int64] = np.full(pool_size, NO_HASH, np.int64)
        self.to_block: dict[int, int] = {}

    def clear(self) -> None:
        """Forget every hash."""
        self.of_block[:] = NO_HASH
        self.to_block.clear()
        if self.log is not None:
            self.log.clear()

    def check(self, blocks: list[int], hashes: list[int]) -> None:
        """Raise an error for a second hash of a block, in the same call or since an earlier one."""
        given: dict[int, int] = {}
        for block, hash_value in zip(blocks, hashes, strict=True):
            present = given.setdefault(block, int(self.of_block[block]))
            if present == NO_HASH:
                given[block] = hash_value
            elif present != hash_value:
                raise UsageError(
                    f"block {block} has hash {present}, not {hash_value}: one block has one content"
                )

    def register_chain(self, blocks: list[int], hashes: list[int]) -> None:
        """Register a chain of blocks, of which the first has no parent."""
        parent = NO_BLOCK
        for block, hash_value in zip(blocks, hashes, strict=True):
            self._register(block, hash_value, parent)
            parent = block

    def register_below(self, blocks: list[int], hashes: list[int], parent_hashes: list[int]) -> None:
        """Register blocks below the blocks with their parents' hashes, 0 standing for no parent."""
        # A parent among the blocks of this call is the parent that is meant, whoever else has its hash.
        named: dict[int, int] = {}
        for block, hash_value, above in zip(blocks, hashes, parent_hashes, strict=True):
            parent = named.get(above, self.to_block.get(above)) if above else NO_BLOCK
            named[hash_value] = block
            if parent is not None:
                self._register(block, hash_value, parent)

    def _register(self, block: int, hash_value: int, parent: int) -> None:
        if hash_value in self.to_block or (parent != NO_BLOCK and parent not in self._forest):
            return
        self.of_block[block] = hash_value
        self.to_block[hash_value] = block
        self._forest.add(block, parent)
        if self.log is not None:
            self._note(block)

    def keep_events(self, log: EventLog | None) -> None:
        """Record all registered blocks in a log, parents first, and all later changes."""
        self.log = log
        if log is None:
            return
        pending = [block for block in self.to_block.values() if self._forest.parents[block] == NO_BLOCK]
        for block in pending:
            self._note(block)
            pending.extend(self._forest.children_of(block))

    def _note(self, block: int) -> None:
        assert self.log is not None
        parent = self._forest.parents.item(block)
        above = None if parent == NO_BLOCK else self.of_block.item(parent)
        hashes = (self.of_block.item(block),)
        self.log.store(Part.KV, hashes, above, self.log.pages.get(block))

    def forget(self, blocks: list[int]) -> set[int]:
        """Remove the hashes of distinct blocks, registered or not, and return these hashes."""
        hashes: set[int] = set()
        hash_of = self.of_block.item
        for block in blocks:
            hash_value = hash_of(block)
            if hash_value != NO_HASH:
                hashes.add(hash_value)
                if self.log is not None:
                    self.log.remove(Part.KV, (hash_value,))
                del self.to_block[hash_value]
                self.of_block[block] = NO_HASH
        return hashes


def as_hashes(name: str, hashes: Sequence[Any] | torch.Tensor, count: int, lowest: int) -> list[int]:
    """Return one hash for each of ``count`` blocks.

    Law: X1.
    """
    values: list[int] = host_integers(name, hashes).tolist()
    if len(values) != count:
        raise ValueError(f"{len(values)} {name} for {count} blocks; give one for each")
    if values and min(values) < lowest:
        raise ValueError(f"{name} has {min(values)}: give hashes from {lowest} to 2**63 - 1")
    return values
