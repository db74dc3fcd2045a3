"""The host store's search, its epochs, and how it reads what it is given."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.invariants.slots import check_slot_store
from pymllm.mem_cache import host_store
from pymllm.mem_cache.host_store import HostSlotStore
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator

CHUNK = 1 << host_store._CHUNK_BITS


def make(size: int, page_size: int = 1, check_ownership: bool = True) -> HostSlotStore:
    return HostSlotStore(size, page_size, torch.device("cpu"), True, check_ownership)


def take(store: HostSlotStore, count: int) -> list[int]:
    pages = store.take(count)
    assert pages is not None
    return [int(page) for page in pages]


@pytest.mark.parametrize("pages", [1, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1])
def test_what_is_outside_is_refused_wherever_the_last_page_is_in_its_chunk(pages: int) -> None:
    """A1, A5, X1: at either end and far away, with every page handed out."""
    store = make(2 * pages, page_size=2)
    assert take(store, pages) == list(range(1, pages + 1))
    last = 2 * pages + 1
    for outside in (-(2**62), -1, 0, 1, last + 1, last + 2, 2**62):
        with pytest.raises(OwnershipError, match=f"slot {outside} is"):
            store.check_held(torch.tensor([2, outside, last]))
    assert store.check_held(torch.tensor([2, last])).tolist() == [1, pages]
    check_slot_store(store)


@pytest.mark.parametrize("distance", [1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 40 * CHUNK])
def test_free_pages_are_found_however_far_apart(distance: int) -> None:
    """A2, A4: across chunks with one free page each, and across empty ones."""
    store = make(200 * CHUNK)
    pages = store.take(200 * CHUNK)
    assert pages is not None
    store.give(pages[::distance].copy())
    expected = [int(page) for page in pages[::distance]]
    assert take(store, 1) + take(store, len(expected) - 1) == expected
    assert store.take(1) is None
    check_slot_store(store)


@pytest.mark.parametrize("first", [CHUNK - 1, CHUNK, CHUNK + 1])
@pytest.mark.parametrize("last", [10 * CHUNK - 1, 10 * CHUNK, 10 * CHUNK + 1])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_long_run_is_found_from_its_first_page_to_its_last(first: int, last: int, grouped: bool) -> None:
    """A2, A4: wherever the run ends in its chunks, and whether it is given back at once or with a group."""
    store = make(12 * CHUNK)
    store.take(12 * CHUNK)
    pages = np.arange(first, last + 1)
    if grouped:
        store.begin_group()
    store.give(pages)
    store.give(np.array([11 * CHUNK + 7]))
    if grouped:
        store.end_group()
    check_slot_store(store)
    found = [page for _ in range(len(pages) // 16) for page in take(store, 16)]
    found += take(store, len(pages) % 16)
    assert (found, take(store, 1)) == (pages.tolist(), [11 * CHUNK + 7])


def test_pages_found_but_not_taken_are_found_again_after_a_merge() -> None:
    """A4: what the search had ready goes back among all that is free."""
    store = make(4 * CHUNK)
    pages = store.take(2 * CHUNK)
    assert pages is not None
    store.give(pages[5:6])
    assert take(store, 1) == [2 * CHUNK + 1]
    store.merge()
    check_slot_store(store)
    assert take(store, 3) == [6, 2 * CHUNK + 2, 2 * CHUNK + 3]


def test_a_merge_without_young_pages_keeps_what_is_ready() -> None:
    """A4: nothing was freed, so nothing has to be searched again."""
    store = make(8)
    take(store, 1)
    ready = store._ready
    store.merge()
    assert store._ready is ready


def test_epochs_that_run_out_begin_again() -> None:
    """A4: after 2**31 merges, old pages are still old and young ones young."""
    store = make(6)
    pages = store.take(4)
    assert pages is not None
    store._epoch = host_store._PENDING - 1
    store.begin_group()
    store.give(pages[3:])
    store.end_group()
    store.begin_group()
    store.give(pages[2:3])
    store.merge()
    assert store._epoch == 1
    check_slot_store(store)
    store.end_group()
    assert take(store, 3) == [4, 5, 6]
    assert take(store, 1) == [3]


def test_a_copy_is_a_pool_of_its_own() -> None:
    """X5: what the copy hands out stays free in the original."""
    store = make(2 * CHUNK)
    twin = copy.deepcopy(store)
    assert take(twin, 2 * CHUNK) == take(store, 2 * CHUNK)
    twin.give(np.array([3]))
    check_slot_store(twin)
    check_slot_store(store)
    assert store.free_pages == 0


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_unchecked_indices_outside_raise_and_change_nothing(page_size: int) -> None:
    """X1: undefined by contract, but NumPy stays inside its arrays."""
    store = make(12, page_size, check_ownership=False)
    take(store, 2)
    with pytest.raises(IndexError):
        store.free(torch.tensor([page_size, 10 * CHUNK]))
    check_slot_store(store)
    assert store.held_pages == 2


def test_random_churn_over_many_chunks_keeps_the_books() -> None:
    """A2, A4: sizes from one page to several chunks, merges at every stage of a search."""
    draw = random.Random(5)
    allocator = TokenToKVPoolAllocator(6 * CHUNK, "cpu")
    held: list[torch.Tensor] = []
    for _ in range(400):
        slots = allocator.alloc(draw.choice((1, 10, 300, 2 * CHUNK)))
        if slots is not None:
            held.append(slots)
        if held and draw.random() < 0.5:
            allocator.free(held.pop(draw.randrange(len(held))))
        if draw.random() < 0.1:
            allocator.merge_and_sort_free()
        check_slot_store(allocator._store)
    numbers = torch.cat(held)
    assert numbers.unique().numel() == numbers.numel() == 6 * CHUNK - allocator.available_size()


def test_indices_that_are_int64_already_are_read_in_place() -> None:
    """Index dtypes: no copy of what the trees pass in."""
    indices = torch.tensor([1, 2])
    assert np.shares_memory(make(4)._read(indices), indices.numpy())


@pytest.mark.gpu
def test_indices_on_cuda_are_copied_to_the_host() -> None:
    """Every consumer takes indices wherever they are."""
    store = make(4)
    take(store, 2)
    store.free(torch.tensor([1, 2], device="cuda"))
    assert store.free_pages == 4


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("piece", [1, 37, 5_000])
def test_long_runs_are_labelled_like_single_pages(page_size: int, piece: int) -> None:
    """A2, A4: tens of thousands of pages at once, in few runs or in many, change hands exactly."""
    draw = random.Random(piece)
    store = make(64_000 * page_size, page_size, check_ownership=False)
    all_pages = store.take(64_000)
    assert all_pages is not None
    pieces = [all_pages[start : start + piece] for start in range(0, 64_000, piece)]
    draw.shuffle(pieces)
    half = len(pieces) // 2
    store.give(np.concatenate(pieces[:half]))
    check_slot_store(store)
    freed = sorted(page for part in pieces[:half] for page in part.tolist())
    assert take(store, 10_000) == freed[:10_000]
    check_slot_store(store)
    assert take(store, len(freed) - 10_000) == freed[10_000:]
    assert store.take(1) is None
