"""The adapters of sglang's slot allocators."""

from __future__ import annotations

from pymllm.adapters.registry import make_adapter
from pymllm.adapters.sglang.slots import SglangPagedSlots, SglangSWASlots, SglangTokenSlots
from pymllm.history.operations import (
    Alloc,
    BeginGroup,
    Clear,
    EndGroup,
    Free,
    FreeSWA,
    Merge,
    ReadHalves,
    Span,
)
from pymllm.history.outcomes import Done, NoRoom, Slots, Unsupported
from tests.unit.adapters.sglang_versions import needs_sglang_newer


def test_every_order_is_examined() -> None:
    """By the token, by the page, and both with halves."""
    kinds = (SglangTokenSlots, SglangPagedSlots, SglangSWASlots)
    assert [len(kind.CONFIGURATIONS) for kind in kinds] == [2, 2, 4]
    assert all("swa_pages" in config for config in SglangSWASlots.CONFIGURATIONS)


@needs_sglang_newer
def test_slots_come_and_go_in_groups() -> None:
    """A3, A6, X4, X7: whole pages, and what is freed inside a group is free after it."""
    adapter = make_adapter("sglang-paged", {"page_size": 4, "pages": 3, "need_sort": True})
    assert adapter.apply(1, Alloc(5)).result == Slots((4, 5, 6, 7, 8))
    assert adapter.apply(2, Alloc(8)).result == NoRoom()
    assert adapter.apply(3, BeginGroup()).result == Done()
    assert adapter.apply(4, Free((Span(1, 0, 1),))).sizes == {"available_size": 4}
    assert adapter.apply(5, EndGroup()).sizes == {"available_size": 8}
    assert adapter.apply(6, Merge()).result == Done()
    assert adapter.apply(7, Clear()).sizes == {"available_size": 12}


@needs_sglang_newer
def test_halves_are_read_and_given_back() -> None:
    """A7: all slots of a page have one, those beyond the ones asked for included."""
    adapter = make_adapter(
        "sglang-swa-allocator", {"page_size": 4, "pages": 3, "swa_pages": 2, "need_sort": False}
    )
    assert adapter.apply(1, Alloc(3)).result == Slots((4, 5, 6), (4, 5, 6))
    assert adapter.apply(2, ReadHalves((Span(0, 7, 8),))).result == Slots((), (7,))
    freed = adapter.apply(3, FreeSWA((Span(1, 0, 1),)))
    assert freed.sizes == {"available_size": 8, "full_available_size": 8, "swa_available_size": 8}
    assert adapter.apply(4, ReadHalves((Span(1, 0, 3),))).result == Slots((), (0, 0, 0))
    assert isinstance(adapter.apply(5, Merge()).result, Unsupported)
