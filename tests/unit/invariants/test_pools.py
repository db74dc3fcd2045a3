"""The checks of pools accept sound ones, and each of their looks can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pymllm.invariants as checks
from pymllm.errors import InvariantViolation
from pymllm.invariants import check_gdn_pool, check_kv_pool, check_req_to_token_pool
from pymllm.invariants.pools import check_free_numbers, check_subject
from pymllm.mem_cache import GDNPool, KVPool, MambaRadixCache, RadixCache, ReqToTokenPool
from tests.unit.invariants.damage import law_of


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
        ([3, 1, 2], [4], "X3", "free row 1 lies below 3"),
        ([1, 2, 4, 3][::-1], [], "X3", "would not come first"),
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
