"""Adapters of ScaleLLM's ``BlockAllocator`` and of the ``PrefixCache`` over it.

ScaleLLM counts who has a block by copies of a ``Block``. So a hold is what a request does: it matches, and
keeps the blocks that it got. What an insert adopted, its caller lets go of at once. There is no reset; all
requests end, and a new cache takes the old one's place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pymllm.adapters.simple import PrefixAdapter, SlotAdapter, SlotCalls
from pymllm.errors import InvariantViolation
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.scalellm.library import ScaleMemory


class _Blocks(SlotCalls):
    """The blocks of callers that first ask whether enough blocks are free."""

    memory: ScaleMemory

    def alloc(self, tokens: int) -> list[int] | None:
        blocks = self.memory.alloc(-(-tokens // self.page_size))
        return None if blocks is None else self.slots_of(blocks)[:tokens]

    def free(self, slots: list[int]) -> None:
        self.memory.free(self.pages_of(slots))

    def close(self) -> None:
        self.memory.close()


class ScaleSlots(_Blocks, SlotAdapter):
    """``BlockAllocator``, which takes a block back when the last copy of its ``Block`` goes."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"page_size": page_size, "pages": 12} for page_size in (1, 4)
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.memory = ScaleMemory(self.number("pages"), self.page_size)

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    def sizes(self) -> dict[str, int]:
        return {"available_size": self.memory.free_blocks * self.page_size}


class ScalePrefix(_Blocks, PrefixAdapter):
    """The adapter of ``PrefixCache``, which shows each block of a node, as evictions take single blocks.

    Two keys of a configuration are each for one program: ``also`` names capabilities that it does not
    promise, and with ``clock_back`` the clock on the wall is being set back.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"page_size": page_size, "window": None, "pool": "token", "slots": slots, "splits": False}
        for page_size, slots in ((1, 24), (4, 48))
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        step = -1 if self.config.get("clock_back") else 1
        self.memory = ScaleMemory(self.number("slots") // self.page_size, self.page_size, step)
        self._counter = itertools.count()
        self._numbers: dict[int, int] = {}  # by block, of what it was cached for

    def claim(self) -> frozenset[str]:
        """Claim no order of evictions, and no refusals: misuse ends a server, or goes unseen."""
        also = str(self.config.get("also", "")).split()
        return frozenset({"pool", "engine", "inspect", "lean_matches", "node_ids", *also})

    def sizes(self) -> dict[str, int]:
        """Return the counted sizes: the owners of a cached block are told only by its count of copies."""
        blocks = {"total_size": self.memory.cached_blocks, "available_size": self.memory.free_blocks}
        return {name: count * self.page_size for name, count in blocks.items()}

    def match(self, key: ops.Key) -> tuple[list[int], Any]:
        slots = self.slots_of(self.memory.match(key.tokens))
        return slots, key.tokens[: len(slots)]

    def insert(self, key: ops.Key, slots: list[int]) -> tuple[int, Any]:
        whole = key.tokens[: self.whole(len(key.tokens))]
        blocks = [slot // self.page_size for slot in slots[: len(whole) : self.page_size]]
        known = len(whole) - self.memory.insert(key.tokens, blocks)
        for block in blocks[known // self.page_size :]:
            self._numbers[block] = next(self._counter)
        return known, whole

    def evict(self, tokens: int) -> int:
        """Evict whole blocks for so many tokens, return the reported count, and record the freed blocks."""
        count, freed = self.memory.evict(max(-(-tokens // self.page_size), 0))
        self.gave_back(self.slots_of(freed))
        return count * self.page_size

    def lock(self, node: Any) -> int:
        hold = self.memory.hold(node)
        if hold is None:
            raise RuntimeError("not all of it is cached")
        return hold

    def unlock(self, node: Any, token: Any) -> None:
        self.memory.release(token)

    def shown_token(self, token: Any) -> None:
        """Return ``None``, since a hold has no token: a request has its blocks, and no number."""

    def reset(self) -> None:
        self.gave_back(self.slots_of(self.memory.reset()))

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show each block as a node."""
        return out.Inspected(
            tuple(
                out.NodeView(
                    id=self._numbers[block],
                    parent=self._numbers[above] if above else None,
                    tokens=tokens,
                    extra_key=None,
                    slots=tuple(self.slots_of([block])),
                    lock_ref=holds,
                )
                for block, above, holds, tokens in self.memory.inspect()
            )
        )

    def audit(self) -> Sequence[str]:
        """Walk the nodes from inside, and the list that orders them."""
        fault = self.memory.find_fault()
        if fault:
            raise InvariantViolation("R9", fault)
        return ("R9",)
