"""A hybrid cache that shows each page as a node of its own, as a dictionary of pages does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pymllm.adapters.own_caches import Mamba
from pymllm.history.files import Config
from pymllm.history.operations import Evict, Inspect, Reset
from pymllm.history.outcomes import Inspected, NodeView, Result


class PagewiseStates(Mamba):
    """Ours, whose nodes are told page by page, each under an id that no other page ever had."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"page_size": 2, "window": None, "pool": "token", "slots": 24, "track_slots": 3, "splits": False},
    )
    _HIDDEN: ClassVar[frozenset[str]] = frozenset(
        {"exact_lru", "callbacks", "lru_lists", "call_order", "engine", "lean_matches"}
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._ids: dict[object, int] = {}
        self._last = 0

    def claim(self) -> frozenset[str]:
        """Claim the capabilities that need no knowledge of the existing nodes."""
        return super().claim() - self._HIDDEN

    def do_evict(self, step: int, operation: Evict) -> Result:
        """Evict, and forget the ids of the pages that went."""
        result = super().do_evict(step, operation)
        self.do_inspect(step, Inspect())  # a page that comes back later is another one
        return result

    def do_reset(self, step: int, operation: Reset) -> Result:
        """Reset, and forget every id."""
        self._ids.clear()
        return super().do_reset(step, operation)

    def do_inspect(self, step: int, operation: Inspect) -> Result:
        """Show every page; the lists of nodes are not claimed."""
        shown = super().do_inspect(step, operation)
        assert isinstance(shown, Inspected)
        size, pages = self.number("page_size"), list[NodeView]()
        ends: dict[int | None, tuple[Any, ...]] = {None: ()}
        known: dict[object, int] = {}
        for node in shown.nodes:
            path = ends[node.parent]
            for start in range(0, len(node.tokens), size):
                stop, above = start + size, path
                path = (*path, (node.extra_key, node.slots[start:stop]))
                is_last = stop == len(node.tokens)
                if path not in self._ids:
                    self._last += 1
                known[path] = self._ids.get(path, self._last)
                hashes = node.page_hashes
                page = dataclasses.replace(
                    node,
                    id=known[path],
                    parent=known.get(above),
                    tokens=node.tokens[start:stop],
                    slots=node.slots[start:stop],
                    kept_bytes=8 * size,
                    page_hashes=None if hashes is None else hashes[start // size : stop // size],
                    state=node.state if is_last else None,
                    state_lock_ref=node.state_lock_ref if is_last else 0,
                )
                pages.append(page)
            ends[node.id] = path
        self._ids = known
        return Inspected(tuple(pages))
