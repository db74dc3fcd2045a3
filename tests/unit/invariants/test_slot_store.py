"""Each check of the free lists can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants.slots import check_slot_store, some_repeated
from pymllm.mem_cache import device_store, host_store
from pymllm.mem_cache.device_store import DeviceSlotStore
from pymllm.mem_cache.host_queue import HostQueueStore
from pymllm.mem_cache.host_store import HostSlotStore
from pymllm.mem_cache.slot_store import SlotStore

CHUNK = 1 << host_store._CHUNK_BITS


def make(kind: type[SlotStore], size: int = 12, check_ownership: bool = True) -> Any:
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
    store = make(kind, check_ownership=check_ownership)
    held = [False] * 4 + [True] * 3 + [False] * 6
    assert check_slot_store(store).tolist() == held
    store.end_group()
    assert check_slot_store(store).tolist() == held
    store.clear()
    assert not check_slot_store(store).any()


def free_page_0(store: HostSlotStore) -> None:
    store._state[0] = 0


def free_the_rest_of_the_last_chunk(store: HostSlotStore) -> None:
    store._state[13] = 0


def give_a_page_no_label(store: HostSlotStore) -> None:
    store._state[5] = host_store._PENDING - 1


def give_a_page_a_negative_label(store: HostSlotStore) -> None:
    store._state[12] = -1


def hand_out_an_old_page_twice(store: HostSlotStore) -> None:
    store._state[12] = host_store._HELD


def count_an_old_page_as_young(store: HostSlotStore) -> None:
    store._state[12] = store._epoch
    store._ready = store._ready[:-1]


def lose_a_pending_page(store: HostSlotStore) -> None:
    store._pending.pop()


def list_a_pending_page_twice(store: HostSlotStore) -> None:
    store._pending.append(store._pending[0])


def miscount_pending_pages(store: SlotStore) -> None:
    store.pending_pages += 1


def miscount_free_pages(store: SlotStore) -> None:
    store.free_pages -= 1


def close_the_group_only(store: SlotStore) -> None:
    store.group_open = False


def make_a_held_page_ready(store: HostSlotStore) -> None:
    store._ready = np.concatenate([np.array([4]), store._ready])
    store._ready_from = 0


def swap_ready_pages(store: HostSlotStore) -> None:
    store._ready[[-1, -2]] = store._ready[[-2, -1]]


def lose_the_young(store: HostSlotStore) -> None:
    store._young_chunks[:] = False


@pytest.mark.parametrize(
    ("fault", "law", "message"),
    [
        (free_page_0, "A1", "padding"),
        (free_the_rest_of_the_last_chunk, "A1", "padding"),
        (give_a_page_no_label, "A2", "11 of 12 pages"),
        (give_a_page_a_negative_label, "A2", "of 12 pages"),
        (hand_out_an_old_page_twice, "A2", "6 pages are free, counted 7"),
        (count_an_old_page_as_young, "A4", "2 pages were freed since the last merge, counted 1"),
        (lose_a_pending_page, "A2", r"pages \[1\] are listed as pending, \[1 2\] are marked"),
        (list_a_pending_page_twice, "A2", r"pages \[1 1 2\] are listed as pending"),
        (miscount_pending_pages, "A2", "2 pages are pending, counted 3"),
        (miscount_free_pages, "A2", "7 pages are free, counted 6"),
        (close_the_group_only, "A6", "2 pages are pending and no group is open"),
        (make_a_held_page_ready, "A4", "ready pages"),
        (swap_ready_pages, "A4", "ready pages"),
        (lose_the_young, "A2", "no search finds the young free pages of chunk 0"),
    ],
)
def test_a_broken_host_store_is_found(fault: Callable[[HostSlotStore], None], law: str, message: str) -> None:
    """A1, A2, A4, A6: one field wrong is enough, and the law is named."""
    store = make(HostSlotStore)
    fault(store)
    with pytest.raises(InvariantViolation, match=message) as caught:
        check_slot_store(store)
    assert caught.value.law == law


def test_old_pages_without_a_flag_are_found() -> None:
    """A2: in a chunk that the search has not reached."""
    store = make(HostSlotStore, size=4 * CHUNK)
    store._old_chunks[2] = False
    with pytest.raises(InvariantViolation, match="no search finds the old free pages of chunk 1") as caught:
        check_slot_store(store)
    assert caught.value.law == "A2"


def start_outside_the_ring(store: HostQueueStore) -> None:
    store._first = 12


def count_more_than_there_are(store: HostQueueStore) -> None:
    store.free_pages = 13


def queue_page_0(store: HostQueueStore) -> None:
    store._ring[store._first] = 0


def queue_a_pending_page(store: HostQueueStore) -> None:
    store._ring[store._first] = 1


def close_the_queue_s_group(store: HostQueueStore) -> None:
    store.group_open = False


@pytest.mark.parametrize(
    ("fault", "law", "message"),
    [
        (start_outside_the_ring, "A2", "7 free pages from place 12 on, in a ring of 12"),
        (count_more_than_there_are, "A2", "13 free pages from place 6 on"),
        (queue_page_0, "A1", r"pages \[0\] are listed"),
        (queue_a_pending_page, "A2", r"pages \[1\] are free or pending more than once"),
        (close_the_queue_s_group, "A6", "2 pages are pending and no group is open"),
    ],
)
def test_a_broken_queue_is_found(fault: Callable[[HostQueueStore], None], law: str, message: str) -> None:
    """A1, A2, A6: there is no label to compare with, so only the lists themselves can be wrong."""
    store = make(HostQueueStore)
    fault(store)
    with pytest.raises(InvariantViolation, match=message) as caught:
        check_slot_store(store)
    assert caught.value.law == law


def list_page_0(store: DeviceSlotStore) -> None:
    store._released.append(torch.tensor([0], dtype=torch.int32))


def list_a_page_outside(store: DeviceSlotStore) -> None:
    store._main[-1] = 13


def release_a_free_page(store: DeviceSlotStore) -> None:
    store._released.append(torch.tensor([12], dtype=torch.int32))


def leave_a_page_unread(store: DeviceSlotStore) -> None:
    store._unread.append(torch.tensor([5, 5]))
    store.group_open = False
    store._pending, store.pending_pages = [], 0


def swap_main_pages(store: DeviceSlotStore) -> None:
    store._main[[-1, -2]] = store._main[[-2, -1]]


def miscount_what_is_handed_out_next(store: DeviceSlotStore) -> None:
    store._main_sure -= 1


def label_a_held_page_free(store: DeviceSlotStore) -> None:
    store._state[5] = device_store._FREE


def label_a_pending_page_held(store: DeviceSlotStore) -> None:
    store._state[1] = device_store._HELD


def label_padding_held(store: DeviceSlotStore) -> None:
    store._state[0] = device_store._HELD


def label_what_is_behind_the_pool_free(store: DeviceSlotStore) -> None:
    store._state[13] = device_store._FREE


@pytest.mark.parametrize(
    ("fault", "law", "message"),
    [
        (list_page_0, "A1", r"pages \[0\] are listed"),
        (list_a_page_outside, "A1", r"pages \[13\] are listed, the pool has 1..12"),
        (release_a_free_page, "A2", r"pages \[12\] are free or pending more than once"),
        (miscount_free_pages, "A2", "7 pages are free, counted 6"),
        (miscount_pending_pages, "A2", "2 pages are pending, counted 3"),
        (close_the_group_only, "A6", "2 pages are pending and no group is open"),
        (leave_a_page_unread, "A6", r"pages \[5\] are pending and no group is open"),
        (swap_main_pages, "A4", "not in ascending order"),
        (miscount_what_is_handed_out_next, "A2", r"pages \[12\] are listed behind those"),
        (label_a_held_page_free, "A5", r"pages \[5\] carry another label"),
        (label_a_pending_page_held, "A5", r"pages \[1\] carry another label"),
        (label_padding_held, "A5", r"pages \[0\] carry another label"),
        (label_what_is_behind_the_pool_free, "A5", r"pages \[13\] carry another label"),
    ],
)
def test_a_broken_device_store_is_found(
    fault: Callable[[DeviceSlotStore], None], law: str, message: str
) -> None:
    """A1, A2, A4-A6: one field wrong is enough, and the law is named."""
    store = make(DeviceSlotStore)
    fault(store)
    with pytest.raises(InvariantViolation, match=message) as caught:
        check_slot_store(store)
    assert caught.value.law == law


def test_another_kind_of_store_is_not_waved_through() -> None:
    """X1: a check that cannot look says so."""
    with pytest.raises(TypeError, match="no walk for a object"):
        check_slot_store(object())  # type: ignore[arg-type]


def test_repeated_pages_are_named_once() -> None:
    """A2: for messages, and only the first few."""
    assert some_repeated(np.array([3, 1, 3, 2, 1], np.int32)) == [1, 3]
    assert len(some_repeated(np.repeat(np.arange(20, dtype=np.int32), 2))) == 8
