"""Free lists of the host: how one is chosen, labelled pages, and the queue."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.invariants.slots import check_slot_store
from pymllm.mem_cache.slots import host_store
from pymllm.mem_cache.slots.device_store import DeviceSlotStore
from pymllm.mem_cache.slots.host_queue import HostQueueStore
from pymllm.mem_cache.slots.host_store import HostSlotStore
from pymllm.mem_cache.slots.slot_store import SlotStore
from pymllm.mem_cache.slots.store_choice import StoreKind, make_slot_store
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator

# -- any store -----------------------------------------------------------------------------------------------


def make(**changes: Any) -> SlotStore:
    options = {"device": "cpu", "page_size": 1, "need_sort": True, "check_ownership": None, "store": "auto"}
    return make_slot_store(**{"size": 8, **options, **changes})


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_a_slot_is_located_in_its_page(kind: str, page_size: int) -> None:
    """A3: by page and offset, repeats and padding too, whatever the shape."""
    store = make(store=kind, page_size=page_size)
    slots = torch.tensor([[0, 7, 8], [7, page_size, store.last_slot]], dtype=torch.int32)
    for check_range in (False, True):
        pages, offsets = store.locate(slots, check_range=check_range)
        each = offsets.tolist() * (len(pages) if len(offsets) == 1 else 1)
        told = list(zip(pages.tolist(), each, strict=True))
        assert told == [divmod(slot, page_size) for slot in slots.flatten().tolist()]


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_slot_outside_the_pool_has_no_place(kind: str, page_size: int) -> None:
    """X1: the first of them is named; nothing is outside where nothing is asked for."""
    store = make(store=kind, page_size=page_size)
    for wrong in (-1, -(2**40), store.last_slot + 1, 2**40):
        with pytest.raises(OwnershipError, match=rf"slot {wrong} is outside the pool"):
            store.locate(torch.tensor([0, store.last_slot, wrong, -7]), check_range=True)
    pages, _ = store.locate(torch.tensor([], dtype=torch.int64), check_range=True)
    assert pages.tolist() == []


@pytest.mark.gpu
def test_cuda_gets_the_device_store() -> None:
    """And the host store refuses it."""
    assert type(make(device="cuda")) is DeviceSlotStore
    with pytest.raises(ValueError, match="serves the CPU only"):
        make(device="cuda", store="host")


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize("kind", ["auto", "device"])
@pytest.mark.parametrize("page_size", [1, 2, 3])
def test_a_store_knows_what_it_was_made_of(
    page_size: int, kind: StoreKind, need_sort: bool, checked: bool
) -> None:
    """A1: sizes in slots and pages, its device, and what it checks and sorts."""
    store = make_slot_store(12, "cpu", page_size, need_sort, checked, kind)
    assert (store.size, store.page_size, store.pages) == (12, page_size, 12 // page_size)
    assert (store.last_slot, store.device) == (11 + page_size, torch.device("cpu"))
    assert (store.need_sort, store.check_ownership) == (need_sort, checked)
    assert (store.free_pages, store.pending_pages, store.held_pages) == (12 // page_size, 0, 0)
    on_the_host = HostSlotStore if need_sort or checked else HostQueueStore
    assert type(store) is (DeviceSlotStore if kind == "device" else on_the_host)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(
    "options",
    [{"store": "device"}, {"check_ownership": True}, {"need_sort": False, "check_ownership": False}],
    ids=["device", "checked", "queue"],
)
def test_pages_come_back_by_their_first_slots(options: dict[str, Any], page_size: int) -> None:
    """A2: named in a tensor, as callers have them, or in an array, as caches keep them."""
    store = make(size=8 * page_size, page_size=page_size, **options)
    store.take(6)
    store.free_starts(torch.tensor([2, 5]) * page_size)
    store.free_starts(np.array([4, 1]) * page_size)
    assert (store.free_pages, store.held_pages) == (6, 2)
    starts = torch.arange(1, 9) * page_size
    assert store.is_handed_out(starts).tolist() == [page in (3, 6) for page in range(1, 9)]


# -- pages of either -----------------------------------------------------------------------------------------


def test_pages_in_any_order_are_not_taken_for_a_run() -> None:
    """A3: only the ends of these look as if they followed one another."""
    assert make_queue(8, 2).slots_of(np.array([1, 5, 3]), 6).tolist() == [2, 3, 10, 11, 6, 7]


# -- the queue -----------------------------------------------------------------------------------------------


def make_queue(pages: int = 4, page_size: int = 1) -> HostQueueStore:
    return HostQueueStore(pages * page_size, page_size, torch.device("cpu"), False, False)


def taken_from(store: HostQueueStore, count: int) -> list[int]:
    pages = store.take(count)
    assert pages is not None
    return pages.tolist()


def test_a_group_is_one_free_at_its_end() -> None:
    """A2, A6: pending pages are neither free nor anybody's, and come in the order of their calls."""
    store = make_queue()
    taken_from(store, 4)
    store.begin_group()
    store.free(torch.tensor([4, 2]))
    store.free(torch.tensor([1]))
    assert (store.free_pages, store.pending_pages, store.held_pages) == (0, 3, 1)
    assert store.is_handed_out(torch.tensor([0, 1, 2, 3, 4, 5, -1])).tolist() == [0, 0, 0, 1, 0, 0, 0]
    check_slot_store(store)
    assert store.take(1) is None
    store.end_group()
    assert taken_from(store, 3) == [4, 2, 1]


def test_many_pages_are_written_in_the_order_of_the_queue() -> None:
    """A3: each as its slots, the last page cut."""
    store = make_queue(400, page_size=2)
    taken_from(store, 400)
    for first, end in ((300, 400), (1, 3), (100, 250)):
        store.free(torch.arange(first * 2, end * 2))
    pages = store.take(252)
    assert pages is not None
    expected = [2 * page + offset for page in pages.tolist() for offset in range(2)][:-1]
    assert store.slots_of(pages, 503).tolist() == expected


@pytest.mark.parametrize("page_size", [1, 3])
def test_any_order_of_calls_keeps_the_partition(page_size: int) -> None:
    """A2: through many turns of the ring; what is handed out is nobody else's."""
    source = random.Random(3)
    store = make_queue(17, page_size)
    held: list[int] = []
    for _ in range(400):
        if held and source.random() < 0.5:
            source.shuffle(held)
            count = source.randint(1, len(held))
            given, held = held[:count], held[count:]
            store.free(torch.tensor(given) * page_size + source.randrange(page_size))
        else:
            count = source.randint(0, store.free_pages)
            new = taken_from(store, count)
            assert not set(new) & set(held)
            held += new
        assert check_slot_store(store).nonzero()[0].tolist() == sorted(held)


@pytest.mark.parametrize("page_size", [1, 4, 5])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_one_page_goes_back_by_any_of_its_slots(page_size: int, dtype: torch.dtype) -> None:
    """A4, A5: at the end of the queue, also around the end of the ring, once for all its slots."""
    store = make_queue(4, page_size)
    assert taken_from(store, 4) == [1, 2, 3, 4]
    for page in (3, 1, 4):
        first = page * page_size
        store.free(torch.arange(first + page_size // 2, first + page_size, dtype=dtype))
        check_slot_store(store)
    assert taken_from(store, 3) == [3, 1, 4]


@pytest.mark.parametrize("call", ["free", "free_starts"])
def test_no_more_pages_come_back_than_went_out(call: str) -> None:
    """X1: what would overwrite the queue is refused, one page or several, slot by slot or by pages."""
    store = make_queue(4, 4)
    taken_from(store, 1)
    for slots in (torch.tensor([4, 8]), torch.tensor([4, 8, 12])):
        with pytest.raises(OwnershipError, match="1 are handed out"):
            getattr(store, call)(slots)
    getattr(store, call)(torch.tensor([4]))
    with pytest.raises(OwnershipError, match="0 are handed out"):
        getattr(store, call)(torch.tensor([4]))
    check_slot_store(store)


@pytest.mark.parametrize(
    "wrong", [torch.tensor([1.5]), [4], torch.tensor([[4]]), torch.tensor([0]), torch.tensor([99])]
)
def test_what_is_not_simply_one_page_takes_the_long_way(wrong: object) -> None:
    """X1: which reads other shapes, and refuses what are no integers; who has what is not known here."""
    store = make_queue(4, 4)
    taken_from(store, 4)
    if isinstance(wrong, torch.Tensor) and not wrong.is_floating_point():
        store.free(wrong)
        assert store.free_pages == 1
    else:
        with pytest.raises(TypeError, match="integers"):
            store.free(wrong)  # type: ignore[arg-type]


# -- labelled pages ------------------------------------------------------------------------------------------


CHUNK = 1 << host_store._CHUNK_BITS


def make_labelled(size: int, page_size: int = 1, check_ownership: bool = True) -> HostSlotStore:
    return HostSlotStore(size, page_size, torch.device("cpu"), True, check_ownership)


def take(store: HostSlotStore, count: int) -> list[int]:
    pages = store.take(count)
    assert pages is not None
    return [int(page) for page in pages]


@pytest.mark.parametrize("pages", [1, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1])
def test_what_is_outside_is_refused_wherever_the_last_page_is_in_its_chunk(pages: int) -> None:
    """A1, A5, X1: at either end and far away, with every page handed out."""
    store = make_labelled(2 * pages, page_size=2)
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
    store = make_labelled(200 * CHUNK)
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
    store = make_labelled(12 * CHUNK)
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


def test_a_merge_without_young_pages_keeps_what_is_ready() -> None:
    """A4: nothing was freed, so nothing has to be searched again."""
    store = make_labelled(8)
    take(store, 1)
    ready = store._ready
    store.merge()
    assert store._ready is ready


def test_epochs_that_run_out_begin_again() -> None:
    """A4: after 2**31 merges, old pages are still old and young ones young."""
    store = make_labelled(6)
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


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_unchecked_indices_outside_raise_and_change_nothing(page_size: int) -> None:
    """X1: undefined by contract, but NumPy stays inside its arrays."""
    store = make_labelled(12, page_size, check_ownership=False)
    take(store, 2)
    with pytest.raises(IndexError):
        store.free(torch.tensor([page_size, 10 * CHUNK]))
    check_slot_store(store)
    assert store.held_pages == 2


def test_random_churn_over_many_chunks_keeps_the_trackers() -> None:
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


@pytest.mark.gpu
def test_indices_on_cuda_are_copied_to_the_host() -> None:
    """Every consumer takes indices wherever they are."""
    store = make_labelled(4)
    take(store, 2)
    store.free(torch.tensor([1, 2], device="cuda"))
    assert store.free_pages == 4


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("piece", [1, 37, 5_000])
def test_long_runs_are_labelled_like_single_pages(page_size: int, piece: int) -> None:
    """A2, A4: tens of thousands of pages at once, in few runs or in many, change hands exactly."""
    draw = random.Random(piece)
    store = make_labelled(64_000 * page_size, page_size, check_ownership=False)
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
