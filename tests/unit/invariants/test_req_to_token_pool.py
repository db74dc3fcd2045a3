"""Each check of a `ReqToTokenPool` can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.errors import InvariantViolation
from pymllm.invariants.pools import check_req_to_token_pool
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool


def make_pool() -> ReqToTokenPool:
    """Rows 1 and 3 are held, row 2 was, row 4 never; the padding row has been written."""
    pool = ReqToTokenPool(4, 6, "cpu")
    pool.alloc(3)
    pool.write(([1, 2, 3, 0], [0, 1, 2, 0]), [5, 6, 7, 8])
    pool.free(2)
    return pool


def test_a_sound_pool_passes_in_every_state() -> None:
    """P1, P2, E2: a sound pool is not accused, whatever its padding row holds."""
    pool = ReqToTokenPool(4, 6, "cpu")
    check_req_to_token_pool(pool)
    pool = make_pool()
    check_req_to_token_pool(pool)
    check_req_to_token_pool(pool, kv_rows=9)
    pool.clear()
    assert check_req_to_token_pool(pool) is None


def widen_the_table(pool: ReqToTokenPool) -> None:
    pool.req_to_token = pool.req_to_token.long()


def cut_the_table(pool: ReqToTokenPool) -> None:
    pool.req_to_token = pool.req_to_token[:4]


def lose_a_row(pool: ReqToTokenPool) -> None:
    pool._free_rows.remove(4)


def free_a_row_twice(pool: ReqToTokenPool) -> None:
    pool._free_rows.append(4)


def hand_out_row_0(pool: ReqToTokenPool) -> None:
    pool._free_rows.insert(0, 0)


def hold_a_free_row(pool: ReqToTokenPool) -> None:
    pool._is_open[2] = True


def close_the_padding_row(pool: ReqToTokenPool) -> None:
    pool._is_open[0] = False


def reverse_the_free_rows(pool: ReqToTokenPool) -> None:
    pool._free_rows.reverse()


def leave_an_entry_behind(pool: ReqToTokenPool) -> None:
    pool.req_to_token[2, 5] = 1


def store_a_negative_slot(pool: ReqToTokenPool) -> None:
    pool.req_to_token[1, 5] = -1


@pytest.mark.parametrize(
    ("corrupt", "law"),
    [
        (widen_the_table, "P1"),
        (cut_the_table, "P1"),
        (lose_a_row, "P1"),
        (free_a_row_twice, "P1"),
        (hand_out_row_0, "P1"),
        (hold_a_free_row, "P1"),
        (close_the_padding_row, "P1"),
        (reverse_the_free_rows, "X3"),
        (leave_an_entry_behind, "P2"),
        (store_a_negative_slot, "P2"),
    ],
)
def test_a_corrupt_pool_is_accused_of_the_law_it_breaks(
    corrupt: Callable[[ReqToTokenPool], None], law: str
) -> None:
    """P1, P2, E2, X3: a checker nobody has seen fail is decoration."""
    pool = make_pool()
    corrupt(pool)
    with pytest.raises(InvariantViolation) as caught:
        check_req_to_token_pool(pool)
    assert caught.value.law == law


def test_an_entry_beyond_the_buffers_is_found_when_they_are_known() -> None:
    """E2: entries name rows of the KV buffers."""
    with pytest.raises(InvariantViolation, match="entries run to 8, slots from 0 to 7") as caught:
        check_req_to_token_pool(make_pool(), kv_rows=8)
    assert caught.value.law == "E2"
