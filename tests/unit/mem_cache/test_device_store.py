"""The device store's lists, and when it waits for its device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from pymllm.invariants.slot_store import check_slot_store
from pymllm.mem_cache.device_store import DeviceSlotStore
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator


def make(device: torch.device, page_size: int = 1, need_sort: bool = True) -> DeviceSlotStore:
    return DeviceSlotStore(12 * page_size, page_size, device, need_sort, check_ownership=False)


def take(store: DeviceSlotStore, count: int) -> torch.Tensor:
    pages = store.take(count)
    assert pages is not None
    return pages


@contextmanager
def synchronisations() -> Iterator[list[warnings.WarningMessage]]:
    """Collect a warning for each time that the host waits for the current CUDA device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("default")  # a process is told once that this is a prototype
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_merge_sorts_without_a_sort(device: torch.device) -> None:
    """A4: marks are read in order, whatever order pages came back in."""
    store = make(device)
    pages = take(store, 12)
    for part in (pages[7:9].clone(), pages[[4, 1]], pages[11:].clone()):
        store.give(part)
    store.merge()
    check_slot_store(store)
    assert take(store, 5).tolist() == [2, 5, 8, 9, 12]


def test_an_unsorted_merge_keeps_the_order_of_release(device: torch.device) -> None:
    """A4: without need_sort a merge only joins the lists."""
    store = make(device, need_sort=False)
    pages = take(store, 11)
    store.give(pages[7:9].clone())
    store.give(pages[[4, 1]])
    store.merge()
    assert take(store, 5).tolist() == [12, 8, 9, 5, 2]


def test_an_unchecked_paged_group_tells_pages_apart_at_its_end(device: torch.device) -> None:
    """A5, A6: until then the slots are only noted down, and nobody has them."""
    store = make(device, page_size=4)
    take(store, 12)
    store.begin_group()
    store.free(torch.tensor([4, 5, 8, 7], device=device))
    store.free(torch.tensor([16, 17], device=device))
    assert (store.free_pages, store.pending_pages) == (0, 0)
    assert store.is_handed_out(torch.tensor([4, 8, 12, 16])).tolist() == [False, False, True, False]
    check_slot_store(store)
    store.end_group()
    assert store.free_pages == 3
    assert take(store, 3).tolist() == [1, 2, 4]


def test_a_clear_forgets_what_an_unchecked_group_noted_down(device: torch.device) -> None:
    """A6, X7: the group is closed and its pages are free once."""
    store = make(device, page_size=4)
    take(store, 3)
    store.begin_group()
    store.free(torch.tensor([4, 8], device=device))
    store.clear()
    store.begin_group()
    store.end_group()
    assert store.free_pages == 12
    check_slot_store(store)


@pytest.mark.gpu
@pytest.mark.parametrize("need_sort", [True, False])
def test_single_slots_never_wait_for_the_device(need_sort: bool) -> None:
    """Section 1: alloc, free, merges by need and by request, and groups, with checks off."""
    allocator = TokenToKVPoolAllocator(64, "cuda", 1, need_sort)
    with synchronisations() as waits:
        slots = allocator.alloc(48)
        allocator.free(slots[:16])
        allocator.free(slots[16:32].long())
        allocator.alloc(32)
        allocator.free_group_begin()
        allocator.free(slots[32:40])
        allocator.free(slots[40:])
        allocator.free_group_end()
        allocator.merge_and_sort_free()
        assert allocator.alloc(65) is None
        assert allocator.available_size() == 32
    assert [str(wait.message) for wait in waits] == []


def free_once(allocator: TokenToKVPoolAllocator, slots: torch.Tensor) -> None:
    allocator.free(slots[:16])


def free_in_a_group(allocator: TokenToKVPoolAllocator, slots: torch.Tensor) -> None:
    allocator.free_group_begin()
    for part in slots[:48].split(16):
        allocator.free(part)
    allocator.free_group_end()


@pytest.mark.gpu
@pytest.mark.parametrize("release", [free_once, free_in_a_group])
def test_pages_wait_once_per_free_or_group(
    release: Callable[[TokenToKVPoolAllocator, torch.Tensor], None],
) -> None:
    """Section 1: the one wait tells how many pages the slots are of; alloc has none."""
    allocator = TokenToKVPoolAllocator(64, "cuda", 16)
    with synchronisations() as waits:
        slots = allocator.alloc(64)
    assert [str(wait.message) for wait in waits] == []
    with synchronisations() as waits:
        release(allocator, slots)
    assert len(waits) <= 1


def test_pages_are_told_apart_with_what_a_table_has_for_them(device: torch.device) -> None:
    """A5, A7: each page once, however it is named; a zero is nothing, and nothing named is nothing."""
    store = make(device, page_size=4)
    take(store, 12)
    table = store.new_table()
    table[[2, 5, 7]] = torch.tensor([12, 15, 17], dtype=table.dtype, device=device)
    pages, found = store.claim_with(torch.tensor([23, 9, 20, 8, 13], device=device), table, whole=False)
    assert (pages.tolist(), found.tolist()) == ([2, 3, 5], [12, 15])
    assert pages.dtype == found.dtype == table.dtype
    pages, found = store.claim_with(torch.tensor([20, 8, 9], device=device), table, whole=True)
    assert (pages.tolist(), found.tolist()) == ([2, 5], [12, 15])
    pages, found = store.claim_with(torch.tensor([], dtype=torch.int32, device=device), table, whole=False)
    assert (pages.tolist(), found.tolist()) == ([], [])


@pytest.mark.parametrize("is_apart", [False, True])
def test_pages_are_told_apart_alike_near_the_host_and_far_from_it(
    device: torch.device, is_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5: by one call where nothing waits, otherwise by several with one wait."""
    store = make(device, page_size=4)
    monkeypatch.setattr(store, "_is_apart", is_apart)
    take(store, 12)
    for named, pages in [([23, 9, 20, 8, 13], [2, 3, 5]), ([4, 5], [1]), ([47], [11])]:
        assert store.claim(torch.tensor(named, device=device)).tolist() == pages


@pytest.mark.gpu
def test_pages_named_by_their_first_slots_do_not_wait() -> None:
    """A5: what a cache gives back is known to be distinct; inside a group, too."""
    allocator = TokenToKVPoolAllocator(64, "cuda", 16)
    slots = allocator.alloc(64)
    with synchronisations() as waits:
        allocator.free_pages(slots[:32:16])
        allocator.free_group_begin()
        allocator.free_pages(slots[32::16])
        allocator.free_group_end()
    assert [str(wait.message) for wait in waits] == []
    assert allocator.available_size() == 64


@pytest.mark.gpu
def test_paged_windows_wait_once_per_free() -> None:
    """Issue 10: for pages and halves together, whether halves are gone or not."""
    allocator = SWATokenToKVPoolAllocator(64, 64, "cuda", 4)
    slots = allocator.alloc(64)
    for release, named in [
        (allocator.free, slots[:16]),
        (allocator.free_swa, slots[18:23]),
        (allocator.free, slots[16:31]),
    ]:
        with synchronisations() as waits:
            release(named)
        assert len(waits) <= 1
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (32, 32)


@pytest.mark.gpu
def test_windows_of_single_slots_never_wait_while_all_halves_live() -> None:
    """Section 1, A7: which halves are left is known without asking, as long as none is gone."""
    allocator = SWATokenToKVPoolAllocator(64, 64, "cuda")
    with synchronisations() as waits:
        slots = allocator.alloc(48)
        allocator.free(slots[:16])
        allocator.translate_to_swa(slots)
        allocator.free_swa(slots[16:32])
        allocator.move_swa(slots[32:40], slots[16:24])
        allocator.alloc(16)
    assert [str(wait.message) for wait in waits] == []
