"""The checks of slot allocators and pools accept sound trackers, and each of their looks can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pymllm.invariants as checks
from pymllm.errors import InvariantViolation
from pymllm.invariants import check_gdn_pool, check_kv_pool, check_req_to_token_pool
from pymllm.invariants.pools import check_free_numbers, check_subject
from pymllm.invariants.slots import (
    check_slot_store,
    check_swa_allocator,
    check_token_allocator,
    some_repeated,
)
from pymllm.mem_cache import GDNPool, KVPool, MambaRadixCache, RadixCache, ReqToTokenPool
from pymllm.mem_cache.slots import device_store, host_store
from pymllm.mem_cache.slots.device_store import DeviceSlotStore
from pymllm.mem_cache.slots.host_queue import HostQueueStore
from pymllm.mem_cache.slots.host_store import HostSlotStore
from pymllm.mem_cache.slots.slot_store import SlotStore
from pymllm.mem_cache.slots.store_choice import StoreKind
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
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


def make_gdn_pool(max_track_slots: int = 3) -> GDNPool:
    pool = GDNPool(2, 2, 1, 2, 3, 4, 3, "cpu", torch.float16, max_track_slots)
    pool.alloc_track_slot()
    return pool


def make_kv_pool(page_size: int = 4) -> KVPool:
    return KVPool(8, 2, 2, 3, "cpu", torch.float32, v_head_num=1, page_size=page_size)


def make_rows() -> ReqToTokenPool:
    """Rows 1 and 3 are held, row 2 was, row 4 never; the padding row has been written."""
    pool = ReqToTokenPool(4, 6, "cpu")
    pool.alloc(3)
    pool.write(([1, 2, 3, 0], [0, 1, 2, 0]), [5, 6, 7, 8])
    pool.free(2)
    return pool


@pytest.mark.parametrize("max_track_slots", [0, 3])
def test_a_sound_pool_of_states_passes(max_track_slots: int) -> None:
    """P4, P5: with and without track slots."""
    assert check_gdn_pool(make_gdn_pool(max_track_slots)) is None


@pytest.mark.parametrize("page_size", [1, 4])
def test_sound_buffers_pass_before_and_after_a_write(page_size: int) -> None:
    """P3, A1: whatever the rows hold."""
    pool = make_kv_pool(page_size)
    check_kv_pool(pool)
    pool.set_kv_buffer(1, torch.tensor([7]), torch.ones(1, 2, 3), torch.ones(1, 1, 3))
    assert check_kv_pool(pool) is None


def test_sound_rows_pass_in_every_state() -> None:
    """P1, P2, E2: whatever the padding row holds."""
    check_req_to_token_pool(ReqToTokenPool(4, 6, "cpu"))
    pool = make_rows()
    check_req_to_token_pool(pool)
    check_req_to_token_pool(pool, kv_rows=9)
    pool.clear()
    assert check_req_to_token_pool(pool) is None


OF_STATES = [
    ("pool.recurrent_state = pool.recurrent_state.transpose(-1, -2).contiguous()", "P4"),
    ("pool.recurrent_state = pool.recurrent_state.half()", "P4"),
    ("pool.conv_state = torch.zeros(2, 6, 4, 3, dtype=torch.float16)", "P4"),
    ("pool.conv_state = torch.zeros(6, 2, 4, 2, dtype=torch.float16).transpose(0, 1)", "P4"),
    ("pool._held_track_slots.clear()", "P5"),
    ("pool._free_track_slots.insert(0, 2)", "P5"),
    ("pool._free_track_slots.reverse()", "X3"),
]
OF_BUFFERS = [
    ("pool.v_buffer.pop()", "P3"),
    ("pool.k_buffer[1] = torch.zeros(9, 2, 3)", "A1"),
    ("pool.k_buffer[0] = torch.zeros(12, 3, 2)", "P3"),
    ("pool.v_buffer[1] = pool.v_buffer[1].half()", "P3"),
    ("pool.v_buffer[1] = pool.v_buffer[1].to('meta')", "P3"),
    ("pool.k_buffer[0] = torch.zeros(3, 2, 12).permute(2, 1, 0)", "P3"),
    ("pool.k_buffer[1] = pool.k_buffer[0]", "P3"),
]
OF_ROWS = [
    ("pool.req_to_token = pool.req_to_token.long()", "P1"),
    ("pool.req_to_token = pool.req_to_token[:4]", "P1"),
    ("pool._free_rows.remove(4)", "P1"),
    ("pool._free_rows.append(4)", "P1"),
    ("pool._free_rows.insert(0, 0)", "P1"),
    ("pool._is_open[2] = True", "P1"),
    ("pool._is_open[0] = False", "P1"),
    ("pool._free_rows.reverse()", "X3"),
    ("pool.req_to_token[2, 5] = 1", "P2"),
    ("pool.req_to_token[1, 5] = -1", "P2"),
]


@pytest.mark.parametrize(
    ("make", "check", "damage", "law"),
    [
        *((make_gdn_pool, check_gdn_pool, *case) for case in OF_STATES),
        *((make_kv_pool, check_kv_pool, *case) for case in OF_BUFFERS),
        *((make_rows, check_req_to_token_pool, *case) for case in OF_ROWS),
    ],
)
def test_a_corrupt_pool_is_accused_of_the_law_it_breaks(
    make: Callable[[], Any], check: Callable[[Any], None], damage: str, law: str
) -> None:
    """A1, P1-P5, X3: a checker nobody has seen fail is decoration."""
    pool = make()
    exec(damage, {"pool": pool, "torch": torch})
    assert law_of(check, pool) == law


def test_an_entry_beyond_the_buffers_is_found_when_they_are_known() -> None:
    """E2: entries name rows of the KV buffers."""
    message = "entries run to 8, slots from 0 to 7"
    assert law_of(lambda pool: check_req_to_token_pool(pool, kv_rows=8), make_rows(), message) == "E2"


@pytest.mark.parametrize(("free", "held"), [([1, 3, 2], [4]), ([], [4, 2, 1, 3]), ([1, 2, 3, 4], [])])
def test_a_partition_in_heap_order_passes(free: list[int], held: list[int]) -> None:
    """P1, P5, X3: any split of the numbers is sound."""
    assert check_free_numbers("P1", "row", range(1, 5), free, held) is None


@pytest.mark.parametrize(
    ("free", "held", "law", "message"),
    [
        ([1, 3], [4], "P1", r"lost \[2\], twice \[\], foreign \[\]"),
        ([1, 2, 3], [3, 4], "P1", r"twice \[3\]"),
        ([1, 2, 2, 3], [4], "P1", r"twice \[2\]"),
        ([0, 1, 2, 3], [4], "P1", r"foreign \[0\]"),
        ([1, 2, 5], [4], "P1", r"lost \[3\], twice \[\], foreign \[5\]"),
        ([3, 1, 2], [4], "X3", "free rows are out of order, 1 comes behind 3"),
        ([1, 2, 4, 3][::-1], [], "X3", "2 comes behind 3: which one is handed out next"),
    ],
)
def test_books_that_do_not_add_up_are_refused(
    free: list[int], held: list[int], law: str, message: str
) -> None:
    """P1, P5, X3: lost, doubled and foreign numbers are named, and so is a heap out of order."""
    with pytest.raises(InvariantViolation, match=message) as caught:
        check_free_numbers("P1", "row", range(1, 5), free, held)
    assert caught.value.law == law


def test_objects_of_the_class_and_below_pass() -> None:
    """X1: whoever derives from a class is checked like it."""

    class Mine(RadixCache):
        pass

    check_subject(Mine(), RadixCache)
    with pytest.raises(TypeError, match=r"is a MambaRadixCache: give a RadixCache$"):
        check_subject(MambaRadixCache(), RadixCache)


@pytest.mark.parametrize("given", [None, 5, MambaRadixCache()], ids=["None", "int", "cache"])
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("check_dynamic_context", "DynamicInferenceContext"),
        ("check_gdn_pool", "GDNPool"),
        ("check_kv_block_allocator", "KVBlockAllocator"),
        ("check_kv_pool", "KVPool"),
        ("check_mamba_slot_allocator", "MambaSlotAllocator"),
        ("check_radix_cache", "RadixCache"),
        ("check_req_to_token_pool", "ReqToTokenPool"),
        ("check_swa_allocator", "SWATokenToKVPoolAllocator"),
        ("check_token_allocator", "TokenToKVPoolAllocator"),
    ],
)
def test_what_a_check_cannot_walk_is_refused(name: str, wanted: str, given: object) -> None:
    """X1: one line with what came and what is wanted, not the name of a private field."""
    with pytest.raises(TypeError, match=f"is a {type(given).__name__}: give a {wanted}$"):
        getattr(checks, name)(given)


@pytest.mark.parametrize("given", [None, 5, RadixCache()], ids=["None", "int", "cache"])
def test_a_cache_without_states_is_refused(given: Any) -> None:
    """X1: either prefix cache looks like the other for a while."""
    with pytest.raises(TypeError, match=f"is a {type(given).__name__}: give a MambaRadixCache$"):
        checks.check_mamba_radix_cache(given)
