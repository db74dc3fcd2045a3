"""nano-vllm's ``BlockManager`` as a prefix cache that takes its memory by itself, from a checkout.

As with vLLM there is no insert and no lock, so an insert is a sequence that comes, is computed, and goes, and
a hold is one that stays. What is inserted is written to the blocks that the manager chose, and a match reads
it there. nano-vllm never looks the last block of a sequence up, since its last token is to be computed; our
caller asks for what may be computed already (R2), so what is looked up has one token behind the key, and room
for the block of this token is lent to the manager meanwhile. Nothing is ever evicted but by an allocation,
and a reset is a new manager.

Kind `blocks` does not fit: nobody outside names a block, a count or a hash.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.by_request import ByRequest
from pymllm_peers.projects import NANOVLLM

_MORE = 3
"""The token behind a key that is looked up."""


def _configuration(page_size: int, pages: int) -> Config:
    return {
        **{"page_size": page_size, "window": None, "pool": "none", "capacity": page_size * pages},
        **{"splits": False, "policy": "release"},
    }


class NanoBlocks(ByRequest):
    """The adapter of ``BlockManager``, in tokens; blocks that an eviction leaves blank are put in front.

    There they are at the beginning. Three more keys hold nano-vllm to what it does not promise, to show where
    it differs; nobody searches with one: ``also`` names further claims, between blanks; with ``bare_keys`` no
    token is behind a key; and with ``bare_evictions`` blank blocks stay where the manager has put them.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        _configuration(1, 6),
        _configuration(1, 14),
        _configuration(4, 5),
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        NANOVLLM.require_version()
        self._counter = itertools.count()
        self._begin()

    def _begin(self) -> None:
        capacity = self.number("capacity") // self.page_size
        self.manager = NANOVLLM.load("nanovllm.engine.block_manager").BlockManager(capacity, self.page_size)
        # By block: what the sequence that had it wrote, for which key, and the number of that (X3).
        self._written: dict[int, tuple[ops.Key, tuple[int, ...], int]] = {}

    def claim(self) -> frozenset[str]:
        """Claim the order of evictions; misuse is undefined, and blocks have no hashes of ours."""
        order = {"exact_policy"} if self.config["policy"] == "release" else set()
        also = str(self.config.get("also", "")).split()
        return frozenset({"inspect", "lean_matches", "node_ids", *order, *also})

    def _cached(self) -> list[Any]:
        """Return the blocks that are found by their hash."""
        found = self.manager.hash_to_block_id
        return [block for block in self.manager.blocks if found.get(block.hash) == block.block_id]

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the blocks found by their hash, in tokens."""
        cached = self._cached()
        held = sum(block.ref_count > 0 for block in cached)
        pages = {"total_size": len(cached), "evictable_size": len(cached) - held, "protected_size": held}
        return {name: count * self.page_size for name, count in pages.items()}

    # -- sequences -----------------------------------------------------------------------------------------

    def _sequence(self, tokens: Sequence[ops.Token]) -> Any:
        sequence = NANOVLLM.load("nanovllm.engine.sequence").Sequence([*tokens])
        sequence.block_size = self.page_size
        return sequence

    def _found(self, key: ops.Key, lent: int) -> int:
        """Return the number of a key's cached blocks, with some blocks lent; -1 where there is no room."""
        more = () if self.config.get("bare_keys") else (_MORE,)
        self.manager.free_block_ids.extend([-1] * lent)
        found: int = self.manager.can_allocate(self._sequence((*key.tokens, *more)))
        for _ in range(lent):
            self.manager.free_block_ids.pop()
        return found

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Match a key; the content of found blocks is read where it was written."""
        count = self._found(operation.key, len(operation.key.tokens) + 1)
        key = self._nodes[step] = self.whole(operation.key, count * self.page_size)
        manager, sequence, digest = self.manager, self._sequence((*key.tokens, _MORE)), -1
        slots: list[int] = []
        for place in range(count):
            digest = manager.compute_hash(sequence.block(place), digest)
            slots += self._written[manager.hash_to_block_id[digest]][1]
        return out.Matched(tuple(slots), count * self.page_size, count * self.page_size)

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Play a sequence from its arrival to its end; a key without a whole block makes none."""
        key = self._nodes[step] = self.whole(operation.key, len(operation.key.tokens))
        slots = key.tokens if operation.slots is None else self.numbers(operation.slots)
        if not key.tokens:
            return out.Inserted(0, (), 0)
        count = self._found(key, 1)
        if count < 0:
            return out.NoRoom()
        sequence, size = self._sequence(key.tokens), self.page_size
        self.manager.allocate(sequence, count)
        for place, block in enumerate(sequence.block_table):
            if place >= count:
                own = tuple(slots[place * size : (place + 1) * size])
                whole = self.whole(key, (place + 1) * size)
                self._written[block] = whole, own, next(self._counter)  # type: ignore[assignment]
        known, length = count * size, len(key.tokens)
        sequence.num_scheduled_tokens = length - known
        self.manager.hash_blocks(sequence)
        self.manager.deallocate(sequence)
        return out.Inserted(known, ((known, length),) if known < length else (), length)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Play a sequence that is never computed and takes all blank blocks and some more."""
        free, before = self.manager.free_block_ids, len(self._cached())
        blank = len(self.manager.blocks) - before
        wanted = min(blank + -(-operation.tokens // self.page_size), len(free))
        if operation.tokens > 0 and wanted:
            sequence = self._sequence([_MORE] * (wanted * self.page_size))
            self.manager.allocate(sequence, 0)
            self.manager.deallocate(sequence)
            if not self.config.get("bare_evictions"):
                free.rotate(wanted)
        return out.Evicted((before - len(self._cached())) * self.page_size)

    def stay(self, step: int, key: ops.Key) -> Any:
        """Let a sequence arrive that stays."""
        pages = len(key.tokens) // self.page_size
        self.refuse_partial(self._found(key, pages + 1) * self.page_size, key)
        sequence = self._sequence(key.tokens)
        self.manager.allocate(sequence, pages)
        return sequence

    def leave(self, request: Any) -> None:
        """End a sequence."""
        self.manager.deallocate(request)

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        self._begin()
        self.forget_requests(leave=False)
        return out.Done()

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show each block found by its hash as a node of one page."""
        pages = [(*self._written[block.block_id], block.ref_count) for block in self._cached()]
        pages.sort(key=lambda page: (len(page[0].tokens), page[2]))
        numbers = {key: number for key, _, number, _ in pages}
        views = []
        for key, slots, number, references in pages:
            above = self.whole(key, len(key.tokens) - self.page_size)
            own = key.tokens[len(above.tokens) :]
            views.append(out.NodeView(number, numbers.get(above), own, None, slots, lock_ref=references))
        return out.Inspected(tuple(views))
