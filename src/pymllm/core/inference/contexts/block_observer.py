"""Tell whoever keeps something by block which blocks lost their content."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident

from pymllm.mem_cache.one_thread import refuse_other_thread

__all__ = ["BlockObserver"]


class BlockObserver:
    """Run an observer on committed books, and keep its code from changing them meanwhile (X2, X6)."""

    def __init__(self) -> None:
        self._is_running = False
        self._thread = 0

    def run(
        self, observer: Callable[[list[int], set[int]], None] | None, blocks: list[int], hashes: set[int]
    ) -> None:
        """Call ``observer`` with the blocks and the hashes that are gone; its error passes on."""
        if observer is None:
            return
        self._thread = get_ident()
        self._is_running = True
        try:
            observer(blocks, hashes)
        finally:
            self._is_running = False

    def refuse(self, name: str) -> None:
        """Refuse a call from inside the observer."""
        if self._is_running:
            refuse_other_thread(name, "allocator", self._thread, "is inside on_blocks_deregistered")
            raise RuntimeError(
                f"{name} was called from inside on_blocks_deregistered, which may only read: "
                "act after the call that it was told about"
            )
