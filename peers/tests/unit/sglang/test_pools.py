"""sglang's allocators and rows, with every call of a cache written down."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from peers.tests.unit.sglang.sglang_versions import needs_sglang, needs_sglang_newer
from pymllm.adapters.registry import make_adapter
from pymllm.errors import ProgramError
from pymllm.history import operations as ops
from pymllm.history.outcomes import Done, Effect, NoRoom, Slots, Table, Unsupported
from pymllm_peers.sglang import pools
from pymllm_peers.sglang.pools import (
    SglangPool,
    SglangStates,
    extend_on_host,
    fill_extensions,
    settings_of_states,
)
from pymllm_peers.sglang.slots import SglangPagedSlots, SglangRows, SglangSWASlots, SglangTokenSlots

# -- What a cache gives back to an allocator is written down, once, and what the caller does is not ----------


class Allocator:
    """A little like sglang's: a segment is freed by a call of its own, which calls the general one."""

    page_size = 4

    def __init__(self) -> None:
        self.freed: list[int] = []
        self.asked: list[int] = []

    def alloc(self, need_size: int) -> torch.Tensor | None:
        self.asked.append(need_size)
        return torch.arange(4, 4 + need_size) if need_size <= 8 else None

    def free(self, free_index: torch.Tensor) -> None:
        self.freed += free_index.tolist()

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        self.free(free_index)

    def available_size(self) -> int:
        return 8 - len(self.freed)


class Halves(Allocator):
    """The same with a table of halves."""

    def __init__(self) -> None:
        super().__init__()
        self.full_to_swa_index_mapping = torch.tensor([0, 0, 0, 0, 1, 0])
        self.bare: list[int] = []

    def free_full(self, free_index: torch.Tensor) -> None:
        self.bare += free_index.tolist()

    def free_swa(self, free_index: torch.Tensor) -> None:
        self.full_to_swa_index_mapping[free_index] = 0

    def full_available_size(self) -> int:
        return 3

    def swa_available_size(self) -> int:
        return 2


def test_a_call_of_the_cache_is_one_effect() -> None:
    """However many further calls it makes; an empty one is none."""
    effects: list[Effect] = []
    allocator = Allocator()
    SglangPool(allocator, effects.append)
    allocator.free_segment(torch.tensor([4, 5]), start_pos=0)
    allocator.free(torch.tensor([], dtype=torch.int64))
    assert effects == [Effect("free", (4, 5))]
    assert allocator.freed == [4, 5]


def test_the_callers_own_calls_are_no_effects() -> None:
    """Whole pages are asked for, and as many slots answered as were wanted (A3)."""
    effects: list[Effect] = []
    pool = SglangPool(Allocator(), effects.append)
    assert pool.alloc(6) == (4, 5, 6, 7, 8, 9)
    assert pool.alloc(9) is None
    assert pool.allocator.asked == [8, 12]
    pool.free([4, 5])
    assert (effects, pool.sizes(), pool.halves([4])) == ([], {"available_size": 6}, ())


def test_slots_are_freed_as_their_halves_demand() -> None:
    """A7: sglang's caller knows which of its slots have lost theirs."""
    effects: list[Effect] = []
    pool = SglangPool(Halves(), effects.append)
    assert pool.halves([4, 5]) == (1, 0)
    pool.free([4, 5])
    assert (pool.allocator.freed, pool.allocator.bare, effects) == ([4], [5], [])
    pool.allocator.free_swa(torch.tensor([4]))
    pool.free_swa([4])
    assert effects == [Effect("free_swa", (4,))]
    assert pool.sizes() == {"available_size": 7, "full_available_size": 3, "swa_available_size": 2}


def test_slots_without_halves_go_back_where_there_is_no_call_for_them() -> None:
    """A7: older versions pass over halves that are gone."""

    class Older(Halves):
        free_full = None

        def __getattribute__(self, name: str) -> object:
            if name == "free_full":
                raise AttributeError(name)
            return super().__getattribute__(name)

    pool = SglangPool(Older(), [].append)
    pool.free([4, 5])
    assert pool.allocator.freed == [4, 5]


# -- The kernel by which older versions extend requests ------------------------------------------------------


def extend_naively(
    prefixes: list[int], lengths: list[int], lasts: list[int], free: list[int], size: int
) -> list[int]:
    """Take one slot after the other: the next of the page, or the first of the next free page."""
    slots, pages = [], iter(free)
    for prefix, length, last in zip(prefixes, lengths, lasts, strict=True):
        slot = last
        for place in range(prefix, length):
            slot = next(pages) * size if place % size == 0 else slot + 1
            slots.append(slot)
    return slots


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("prefixes", "lengths"), [([0], [8]), ([0], [3]), ([3], [4]), ([5], [5]), ([2, 0, 7], [9, 5, 8])]
)
def test_requests_are_extended_as_by_a_loop(prefixes: list[int], lengths: list[int], size: int) -> None:
    """A3: the rest of the last page, whole pages, and a part of one."""
    lasts = [40 * size + (prefix - 1) % size if prefix else -1 for prefix in prefixes]
    free = [9, 3, 7, 5, 2, 8, 6, 4, 1]
    found = torch.full((sum(lengths) - sum(prefixes),), -7)
    tensors = [torch.tensor(numbers) for numbers in (prefixes, lengths, lasts, free)]
    fill_extensions(*tensors, found, 1, size, 128)
    assert found.tolist() == extend_naively(prefixes, lengths, lasts, free, size)


def test_where_pages_are_missing_nothing_is_written() -> None:
    """X4: the caller finds out afterwards, and looks at none of it."""
    found = torch.full((6,), -7)
    prefix, length, last, free = (torch.tensor(numbers) for numbers in ([0], [6], [-1], [3]))
    fill_extensions(prefix, length, last, free, found, 1, 4)
    assert set(found.tolist()) == {-7}


def test_only_a_module_with_the_kernel_gets_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any grid: the loop runs over all requests by itself."""
    module = types.ModuleType("module_of_an_allocator")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    allocator = type("Paged", (), {"__module__": module.__name__})()
    extend_on_host(allocator)
    assert not hasattr(module, "alloc_extend_kernel")
    monkeypatch.setattr(module, "alloc_extend_kernel", None, raising=False)
    extend_on_host(allocator)
    assert module.alloc_extend_kernel[(3,)] is pools.fill_extensions


# -- sglang's allocator of states, as its caches and their caller use it -------------------------------------


def test_settings_bound_nothing_and_name_the_chunk() -> None:
    """A server's own are about its kernels and its memory."""
    arguments, published = settings_of_states(4)
    assert arguments._mamba_cache_chunk_size == 4
    assert published["exec"].mamba.mamba_max_states_per_path < 0


@needs_sglang
def test_only_what_a_cache_gives_back_is_written_down() -> None:
    """M7: the caller's own calls are no effects."""
    seen: list[Effect] = []
    states = SglangStates(2, seen.append)
    assert (states.alloc(), states.alloc(), states.alloc()) == (1, 2, None)
    states.free(1)
    assert (seen, states.size()) == ([], 1)
    states.request_pool.mamba_allocator.free(torch.tensor([2]))
    states.request_pool.mamba_allocator.free(torch.tensor([], dtype=torch.int64))
    assert (seen, states.size()) == ([Effect("free_state", (2,))], 2)


# -- The adapters of sglang's slot allocators ----------------------------------------------------------------


def test_every_order_is_examined() -> None:
    """By the token, by the page, and both with halves."""
    kinds = (SglangTokenSlots, SglangPagedSlots, SglangSWASlots)
    assert [len(kind.CONFIGURATIONS) for kind in kinds] == [2, 2, 4]
    assert all("swa_pages" in config for config in SglangSWASlots.CONFIGURATIONS)


@needs_sglang_newer
def test_slots_come_and_go_in_groups() -> None:
    """A3, A6, X4, X7: whole pages, and what is freed inside a group is free after it."""
    adapter = make_adapter("sglang-paged", {"page_size": 4, "pages": 3, "need_sort": True})
    assert adapter.apply(1, ops.Alloc(5)).result == Slots((4, 5, 6, 7, 8))
    assert adapter.apply(2, ops.Alloc(8)).result == NoRoom()
    assert adapter.apply(3, ops.BeginGroup()).result == Done()
    assert adapter.apply(4, ops.Free((ops.Span(1, 0, 1),))).sizes == {"available_size": 4}
    assert adapter.apply(5, ops.EndGroup()).sizes == {"available_size": 8}
    assert adapter.apply(6, ops.Merge()).result == Done()
    assert adapter.apply(7, ops.Clear()).sizes == {"available_size": 12}


@needs_sglang_newer
def test_halves_are_read_and_given_back() -> None:
    """A7: all slots of a page have one, those beyond the ones asked for included."""
    adapter = make_adapter(
        "sglang-swa-allocator", {"page_size": 4, "pages": 3, "swa_pages": 2, "need_sort": False}
    )
    assert adapter.apply(1, ops.Alloc(3)).result == Slots((4, 5, 6), (4, 5, 6))
    assert adapter.apply(2, ops.ReadHalves((ops.Span(0, 7, 8),))).result == Slots((), (7,))
    freed = adapter.apply(3, ops.FreeSWA((ops.Span(1, 0, 1),)))
    assert freed.sizes == {"available_size": 8, "full_available_size": 8, "swa_available_size": 8}
    assert adapter.apply(4, ops.ReadHalves((ops.Span(1, 0, 3),))).result == Slots((), (0, 0, 0))
    assert isinstance(adapter.apply(5, ops.Merge()).result, Unsupported)


# -- The adapter of sglang's ``ReqToTokenPool`` --------------------------------------------------------------


CONFIG = {"max_reqs": 2, "max_context_len": 2}


def test_two_tables_are_examined() -> None:
    """Of other sizes."""
    assert [config["max_reqs"] for config in SglangRows.CONFIGURATIONS] == [3, 5]


@needs_sglang_newer
def test_rows_are_written_and_keep_their_entries() -> None:
    """P1, P3: row 0 is padding; a freed row is as it was, so ``zeroed_rows`` is not claimed."""
    adapter = make_adapter("sglang-rows", dict(CONFIG))
    assert adapter.capabilities == {"pool"}
    taken = adapter.apply(1, ops.AllocRows(2)).result
    assert isinstance(taken, Slots)
    assert sorted(taken.slots) == [1, 2]
    first = ops.Span(1, 0, 1)
    assert adapter.apply(2, ops.AllocRows(1)).result == NoRoom()
    adapter.apply(3, ops.WriteRow(first, 0, 1, (7,)))
    adapter.apply(4, ops.WriteEntries((first, ops.Span(0, 0, 1)), (1, 0), (8, 9)))
    adapter.apply(5, ops.FreeRow(first))
    read = adapter.apply(6, ops.ReadRows()).result
    assert isinstance(read, Table)
    assert (read.rows[0], read.rows[taken.slots[0]]) == ((9, 0), (7, 8))
    assert adapter.apply(7, ops.Clear()).sizes == {"size": 2, "available_size": 2}
    with pytest.raises(ProgramError, match="names 2 numbers"):
        adapter.apply(8, ops.FreeRow(ops.Span(1, 0, 2)))
