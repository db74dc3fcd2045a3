"""The adapters of sglang's slot allocators: by the token, by the page, and with SWA halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.adapters.sglang_package import NEWER, also_claimed, require_version
from pymllm.adapters.sglang_pool import SglangPool, make_allocator
from pymllm.history.files import Config
from pymllm.history.operations import Alloc, BeginGroup, Clear, EndGroup, Free, FreeSWA, Merge, ReadHalves
from pymllm.history.outcomes import Done, Effect, NoRoom, Slots

__all__ = ["SglangPagedSlots", "SglangSWASlots", "SglangTokenSlots"]


def _configurations(*page_sizes: int, **more: int) -> tuple[Config, ...]:
    return tuple(
        {"page_size": page_size, "pages": 12, **more, "need_sort": need_sort}
        for page_size in page_sizes
        for need_sort in (True, False)
    )


class SglangTokenSlots(BaseAdapter):
    """``TokenToKVPoolAllocator``: slots by the token.

    Parameters
    ----------
    name, config
        As of `BaseAdapter`. Keys: ``page_size``, ``pages``, ``need_sort``, and ``also`` (`also_claimed`).

    Notes
    -----
    sglang's caller rounds an allocation up to whole pages, passes slots as one 64-bit tensor, and knows which
    of its slots have lost their halves; so does the adapter. Misuse is undefined, that of groups included.
    """

    KIND: ClassVar[str] = "slots"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations(1)

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        require_version(NEWER)
        page_size = self._number("page_size")
        swa_tokens = self._number("swa_pages") * page_size if "swa_pages" in config else None
        tokens, need_sort = self._number("pages") * page_size, bool(config["need_sort"])
        self.pool = SglangPool(make_allocator(page_size, tokens, swa_tokens, need_sort), _forget)

    def _number(self, key: str) -> int:
        value = self.config.get(key)
        if type(value) is not int:
            raise ValueError(f"the configuration's {key} is {value!r}; it must be an integer")
        return value

    def claim(self) -> frozenset[str]:
        """Claim groups, and the order of what is handed out where it sorts."""
        order = {"merges", "sorted"} if self.config["need_sort"] else set()
        return frozenset({"pool", "groups"} | order) | also_claimed(self.config)

    def sizes(self) -> dict[str, int]:
        """Return what is available."""
        return self.pool.sizes()

    def do_alloc(self, step: int, operation: Alloc) -> Slots | NoRoom:
        """Take slots."""
        slots = self.pool.alloc(operation.tokens)
        return NoRoom() if slots is None else Slots(slots, self.pool.halves(slots))

    def do_free(self, step: int, operation: Free) -> Done:
        """Give slots back."""
        self.pool.free(self.numbers(operation.slots))
        return Done()

    def do_merge(self, step: int, operation: Merge) -> Done:
        """Merge."""
        if "merges" not in self.capabilities:
            raise UnsupportedError("nothing waits for a merge")
        self.pool.allocator.merge_and_sort_free()
        return Done()

    def do_begin_group(self, step: int, operation: BeginGroup) -> Done:
        """Open a group."""
        self.pool.allocator.free_group_begin()
        return Done()

    def do_end_group(self, step: int, operation: EndGroup) -> Done:
        """Close the group."""
        self.pool.allocator.free_group_end()
        return Done()

    def do_clear(self, step: int, operation: Clear) -> Done:
        """Clear."""
        self.pool.allocator.clear()
        return Done()


class SglangPagedSlots(SglangTokenSlots):
    """``PagedTokenToKVPoolAllocator``: slots by the page."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations(4)


class SglangSWASlots(SglangTokenSlots):
    """``SWATokenToKVPoolAllocator``; ``swa_pages`` is one more key. It can move no halves by itself."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations(1, 4, swa_pages=8)

    def claim(self) -> frozenset[str]:
        """Claim halves; a merge is for each of the two pools below it."""
        return frozenset({"pool", "groups", "swa"}) | also_claimed(self.config)

    def do_free_swa(self, step: int, operation: FreeSWA) -> Done:
        """Give halves back."""
        self.pool.free_swa(self.numbers(operation.slots))
        return Done()

    def do_read_halves(self, step: int, operation: ReadHalves) -> Slots:
        """Translate slots."""
        return Slots((), self.pool.halves(self.numbers(operation.slots)))


def _forget(effect: Effect) -> None:
    """Leave out what no cache asked for."""
