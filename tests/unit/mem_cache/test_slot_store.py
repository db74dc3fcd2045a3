"""How a free list is chosen, and which dimensions are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.mem_cache.device_store import DeviceSlotStore
from pymllm.mem_cache.host_queue import HostQueueStore
from pymllm.mem_cache.host_store import HostSlotStore
from pymllm.mem_cache.slot_store import SlotStore, StoreKind, make_slot_store


def make(**changes: Any) -> SlotStore:
    options = {"device": "cpu", "page_size": 1, "need_sort": True, "check_ownership": None, "store": "auto"}
    return make_slot_store(**{"size": 8, **options, **changes})


def test_the_cpu_gets_the_host_store() -> None:
    """Section 1: NumPy for CPU."""
    assert type(make()) is HostSlotStore
    assert type(make(store="host")) is HostSlotStore
    assert type(make(need_sort=False)) is HostSlotStore
    assert type(make(check_ownership=False)) is HostSlotStore


def test_who_neither_checks_nor_sorts_gets_the_queue() -> None:
    """Section 1: nothing is labelled that nobody asks for."""
    assert type(make(need_sort=False, check_ownership=False)) is HostQueueStore
    assert type(make(need_sort=False, check_ownership=False, store="device")) is DeviceSlotStore


def test_the_device_store_runs_on_cpu_tensors_too() -> None:
    """Section 1: so that every test of an A law runs on both."""
    assert type(make(store="device")) is DeviceSlotStore


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
            store.locate(torch.tensor([0, wrong, -7]), check_range=True)
    pages, _ = store.locate(torch.tensor([], dtype=torch.int64), check_range=True)
    assert pages.tolist() == []


@pytest.mark.gpu
def test_cuda_gets_the_device_store() -> None:
    """Section 1: and the host store refuses it."""
    assert type(make(device="cuda")) is DeviceSlotStore
    with pytest.raises(ValueError, match="serves the CPU only"):
        make(device="cuda", store="host")


def test_the_host_store_is_for_the_cpu() -> None:
    """X1: refused before anything is built for the other device."""
    with pytest.raises(ValueError, match="serves the CPU only, got device meta"):
        make(device="meta", store="host")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be at least 1, got 0"),
        ({"size": -4}, ValueError, "size must be at least 1, got -4"),
        ({"size": 8.0}, TypeError, "size must be an int"),
        ({"page_size": 0}, ValueError, "page_size must be at least 1"),
        ({"page_size": -1}, ValueError, "page_size must be at least 1"),
        ({"page_size": "1"}, TypeError, "page_size must be an int"),
        ({"page_size": 3}, ValueError, "size 8 is not a multiple of page_size 3"),
        ({"page_size": 16}, ValueError, "size 8 is not a multiple of page_size 16"),
        ({"size": 2**31}, ValueError, "do not fit int32"),
        ({"store": "gpu"}, ValueError, "store must be 'auto', 'host' or 'device', got 'gpu'"),
        ({"device": "gpu"}, ValueError, "device 'gpu' is not one that torch knows"),
        ({"check_ownership": 1}, TypeError, "check_ownership must be"),
        ({"need_sort": "yes"}, TypeError, "need_sort must be"),
        ({"need_sort": None}, TypeError, "need_sort must be"),
    ],
)
def test_wrong_dimensions_are_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """X1, A1: nothing is built, and the message names the value."""
    with pytest.raises(error, match=message):
        make(**changes)


def test_the_last_slot_must_fit_int32() -> None:
    """A1: the bound is on size + page_size - 1."""
    with pytest.raises(ValueError, match=f"slots up to {2**31} do not fit"):
        make(size=2**31 // 3 * 3, page_size=3)


@pytest.mark.parametrize("store", ["host", "device"])
def test_held_pages_are_what_is_neither_free_nor_pending(store: str) -> None:
    """A2: the partition, by counters."""
    pages = make(store=store)
    taken = pages.take(5)
    pages.give(taken[:1])
    pages.begin_group()
    pages.give(taken[1:3])
    assert (pages.free_pages, pages.pending_pages, pages.held_pages) == (4, 2, 2)
    pages.end_group()
    assert (pages.free_pages, pages.pending_pages, pages.held_pages) == (6, 0, 2)


def test_taking_too_much_changes_nothing() -> None:
    """X4: for both stores."""
    for store in ("host", "device"):
        pages = make(store=store)
        assert pages.take(9) is None
        assert pages.free_pages == 8
        assert torch.as_tensor(pages.take(8)).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


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


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("kind", ["auto", "device"])
@pytest.mark.parametrize("page_size", [1, 2])
def test_a_group_leaves_nothing_pending(page_size: int, kind: StoreKind, checked: bool) -> None:
    """A2, A6: what waited is free afterwards, and what is held is counted as before."""
    store = make_slot_store(12, "cpu", page_size, False, checked, kind)
    slots = store.slots_of(store.take(5), 5 * page_size)
    for freed, free in ((2, 9), (0, 9), (1, 10)):
        store.begin_group()
        store.free(slots[: freed * page_size])
        store.end_group()
        slots = slots[freed * page_size :]
        pages = 12 // page_size
        assert (store.free_pages, store.pending_pages) == (free - 12 + pages, 0)
        assert store.held_pages == 12 - free


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
