"""The checks of slot allocators accept sound books, and each of their looks can fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants.slots import (
    check_slot_store,
    check_swa_allocator,
    check_token_allocator,
    some_repeated,
)
from pymllm.mem_cache import device_store, host_store
from pymllm.mem_cache.device_store import DeviceSlotStore
from pymllm.mem_cache.host_queue import HostQueueStore
from pymllm.mem_cache.host_store import HostSlotStore
from pymllm.mem_cache.slot_store import SlotStore, StoreKind
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator
from tests.unit.invariants.damage import law_of

CHUNK = 1 << host_store._CHUNK_BITS


def make_store(kind: type[SlotStore], size: int = 12, check_ownership: bool = True) -> Any:
    """A store with pages 1 and 2 pending, 3 young, 4 to 6 held, and the rest old."""
    store: Any = kind(size, 1, torch.device("cpu"), True, check_ownership)
    pages = store.take(6)
    store.give(pages[2:3])
    store.begin_group()
    store.give(pages[:1])
    store.give(pages[1:2])
    return store


@pytest.mark.parametrize("kind", [HostSlotStore, HostQueueStore, DeviceSlotStore])
@pytest.mark.parametrize("check_ownership", [True, False])
def test_a_sound_store_passes_and_tells_who_holds_what(kind: type[SlotStore], check_ownership: bool) -> None:
    """A2: before, inside and after a group."""
    store = make_store(kind, check_ownership=check_ownership)
    held = [False] * 4 + [True] * 3 + [False] * 6
    assert check_slot_store(store).tolist() == held
    store.end_group()
    assert check_slot_store(store).tolist() == held
    store.clear()
    assert not check_slot_store(store).any()


NAMED = {"np": np, "torch": torch, "device_store": device_store, "host_store": host_store}
OF_A_HOST_STORE = [
    ("store._state[0] = 0", "A1", "padding"),
    ("store._state[13] = 0", "A1", "padding"),
    ("store._state[5] = host_store._PENDING - 1", "A2", "11 of 12 pages"),
    ("store._state[12] = -1", "A2", "of 12 pages"),
    ("store._state[12] = host_store._HELD", "A2", "6 pages are free, counted 7"),
    (
        "store._state[12] = store._epoch; store._ready = store._ready[:-1]",
        "A4",
        "2 pages were freed since the last merge, counted 1",
    ),
    ("store._pending.pop()", "A2", r"pages \[1\] are listed as pending, \[1 2\] are marked"),
    ("store._pending.append(store._pending[0])", "A2", r"pages \[1 1 2\] are listed as pending"),
    ("store.pending_pages += 1", "A2", "2 pages are pending, counted 3"),
    ("store.free_pages -= 1", "A2", "7 pages are free, counted 6"),
    ("store.group_open = False", "A6", "2 pages are pending and no group is open"),
    (
        "store._ready = np.concatenate([np.array([4]), store._ready]); store._ready_from = 0",
        "A4",
        "ready pages",
    ),
    ("store._ready[[-1, -2]] = store._ready[[-2, -1]]", "A4", "ready pages"),
    ("store._young_chunks[:] = False", "A2", "no search finds the young free pages of chunk 0"),
]
OF_A_QUEUE = [  # there is no label to compare with, so only the lists themselves can be wrong
    ("store._first = 12", "A2", "7 free pages from place 12 on, in a ring of 12"),
    ("store.free_pages = 13", "A2", "13 free pages from place 6 on"),
    ("store._ring[store._first] = 0", "A1", r"pages \[0\] are listed"),
    ("store._ring[store._first] = 1", "A2", r"pages \[1\] are free or pending more than once"),
    ("store.group_open = False", "A6", "2 pages are pending and no group is open"),
]
OF_A_DEVICE_STORE = [
    ("store._released.append(torch.tensor([0], dtype=torch.int32))", "A1", r"pages \[0\] are listed"),
    ("store._main[-1] = 13", "A1", r"pages \[13\] are listed, the pool has 1..12"),
    (
        "store._released.append(torch.tensor([12], dtype=torch.int32))",
        "A2",
        r"pages \[12\] are free or pending more than once",
    ),
    ("store.free_pages -= 1", "A2", "7 pages are free, counted 6"),
    ("store.pending_pages += 1", "A2", "2 pages are pending, counted 3"),
    ("store.group_open = False", "A6", "2 pages are pending and no group is open"),
    (
        "store._unread.append(torch.tensor([5, 5])); store.group_open = False; "
        "store._pending, store.pending_pages = [], 0",
        "A6",
        r"pages \[5\] are pending and no group is open",
    ),
    ("store._main[[-1, -2]] = store._main[[-2, -1]]", "A4", "not in ascending order"),
    ("store._main_sure -= 1", "A2", r"pages \[12\] are listed behind those"),
    ("store._state[5] = device_store._FREE", "A5", r"pages \[5\] carry another label"),
    ("store._state[1] = device_store._HELD", "A5", r"pages \[1\] carry another label"),
    ("store._state[0] = device_store._HELD", "A5", r"pages \[0\] carry another label"),
    ("store._state[13] = device_store._FREE", "A5", r"pages \[13\] carry another label"),
]


@pytest.mark.parametrize(
    ("kind", "damage", "law", "message"),
    [
        *((HostSlotStore, *case) for case in OF_A_HOST_STORE),
        *((HostQueueStore, *case) for case in OF_A_QUEUE),
        *((DeviceSlotStore, *case) for case in OF_A_DEVICE_STORE),
    ],
)
def test_a_broken_store_is_found(kind: type[SlotStore], damage: str, law: str, message: str) -> None:
    """A1, A2, A4-A6: one field wrong is enough, and the law is named."""
    store = make_store(kind)
    exec(damage, {**NAMED, "store": store})
    assert law_of(check_slot_store, store, message) == law


def test_old_pages_without_a_flag_are_found() -> None:
    """A2: in a chunk that the search has not reached."""
    store = make_store(HostSlotStore, size=4 * CHUNK)
    store._old_chunks[2] = False
    assert law_of(check_slot_store, store, "no search finds the old free pages of chunk 1") == "A2"


def test_another_kind_of_store_is_not_waved_through() -> None:
    """X1: a check that cannot look says so."""
    with pytest.raises(TypeError, match="no walk for a object"):
        check_slot_store(object())  # type: ignore[arg-type]


def test_repeated_pages_are_named_once() -> None:
    """A2: for messages, and only the first few."""
    assert some_repeated(np.array([3, 1, 3, 2, 1], np.int32)) == [1, 3]
    assert len(some_repeated(np.repeat(np.arange(20, dtype=np.int32), 2))) == 8


def make_allocator(store: StoreKind) -> SWATokenToKVPoolAllocator:
    """Full pages 1, 2 and 3 held with halves 1, 2 and 3, page 4 held without one."""
    allocator = SWATokenToKVPoolAllocator(8, 6, "cpu", store=store)
    slots = allocator.alloc(4)
    assert slots is not None
    allocator.free_swa(slots[3:])
    return allocator


@pytest.mark.parametrize("store", ["host", "device"])
def test_a_sound_allocator_passes(store: StoreKind) -> None:
    """A7: with halves gone, inside a group, and with no half in use at all."""
    allocator = make_allocator(store)
    check_swa_allocator(allocator)
    allocator.free_group_begin()
    check_swa_allocator(allocator)
    allocator.clear()
    assert check_swa_allocator(allocator) is None


@pytest.mark.parametrize("store", ["host", "device"])
@pytest.mark.parametrize(
    ("damage", "law", "message"),
    [
        ("allocator._full.free_pages += 1", "A2", "4 pages are free, counted 5"),
        ("allocator._swa.free_pages += 1", "A2", "3 pages are free, counted 4"),
        ("allocator._swa.begin_group()", "A6", "in one of the two pools only"),
        ("allocator._half_of[7] = 3", "A7", r"full pages \[7\] have SWA halves and are not handed out"),
        ("allocator._half_of[1] = 7", "A7", r"halves \[7\] are outside the SWA pages 1..6"),
        ("allocator._half_of[1] = -1", "A7", r"halves \[-1\] are outside"),
        ("allocator._half_of[1] = 2", "A7", r"SWA pages \[2\] are the half of several"),
        ("allocator._half_of[1] = 0", "A7", r"SWA pages \[1\] are handed out without"),
        (
            "allocator._half_of[4] = 5",
            "A7",
            r"SWA pages \[5\] are handed out without a full page, or free with one",
        ),
    ],
)
def test_broken_halves_are_found(store: StoreKind, damage: str, law: str, message: str) -> None:
    """A2, A6, A7: one field wrong is enough, and the law is named."""
    allocator = make_allocator(store)
    exec(damage, {"allocator": allocator})
    assert law_of(check_swa_allocator, allocator, message) == law


@pytest.mark.parametrize("store", ["host", "device"])
def test_a_sound_allocator_without_halves_passes_and_a_miscounted_one_does_not(store: StoreKind) -> None:
    """A2: a counter that disagrees with a recount."""
    allocator = TokenToKVPoolAllocator(8, "cpu", store=store)
    allocator.alloc(3)
    check_token_allocator(allocator)
    allocator._store.free_pages += 1
    with pytest.raises(InvariantViolation, match="5 pages are free, counted 6"):
        check_token_allocator(allocator)
