"""Rows of `ReqToTokenPool`: who has them, and what is in them."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.mem_cache.pools import req_to_token_pool
from pymllm.mem_cache.pools.req_to_token_pool import ReqToTokenPool
from tests.far_device import Apart

CONTEXT = 8


def make_pool(max_reqs: int = 4, device: torch.device | str = "cpu") -> ReqToTokenPool:
    return ReqToTokenPool(max_reqs, CONTEXT, device)


def alloc(pool: ReqToTokenPool, n: int = 1) -> list[int]:
    rows = pool.alloc(n)
    assert rows is not None
    return rows


def test_the_table_has_a_padding_row_and_starts_as_zeros(device: torch.device) -> None:
    """P1: max_reqs + 1 rows, size max_reqs, int32, zero."""
    pool = make_pool(device=device)
    assert pool.size == pool.available_size() == 4
    assert pool.req_to_token.shape == (5, CONTEXT)
    assert pool.req_to_token.dtype is torch.int32
    assert pool.req_to_token.device == pool.device
    assert not pool.req_to_token.any()


@pytest.mark.notices("B116")
def test_rows_count_from_1_lowest_first() -> None:
    """P1, X3: row 0 is never handed out, and what comes next is determined."""
    pool = make_pool()
    assert pool.alloc() == [1]
    assert pool.alloc(2) == [2, 3]
    pool.free(2)
    pool.free(1)
    assert pool.alloc(3) == [1, 2, 4]
    assert pool.available_size() == 0


@pytest.mark.notices("B107", when="cpu")
def test_a_freed_row_carries_nothing_over(device: torch.device) -> None:
    """P2, E2: the next request in the row finds zeros, and other rows are left alone."""
    pool = make_pool(device=device)
    first, second = alloc(pool, 2)
    pool.write((first, slice(0, CONTEXT)), torch.arange(1, 9, device=device))
    pool.write((second, slice(0, 2)), torch.tensor([9, 9], device=device))
    pool.free(first)
    assert not pool.req_to_token[first].any()
    assert pool.req_to_token[second, :2].tolist() == [9, 9]
    assert alloc(pool) == [first]


@pytest.mark.parametrize("slot", [np.int64(1), torch.tensor(1), torch.tensor([1], dtype=torch.int32)])
def test_a_row_to_free_may_be_any_integer_kind(slot: Any) -> None:
    """X1: consumers take any integer dtype."""
    pool = make_pool()
    alloc(pool)
    pool.free(slot)
    assert pool.available_size() == 4


@pytest.mark.parametrize(
    ("stretch", "columns"),
    [
        (slice(0, 3), [0, 1, 2]),
        (slice(5, 8), [5, 6, 7]),
        (slice(None, 2), [0, 1]),
        (slice(6, None), [6, 7]),
        (slice(None), list(range(8))),
        (slice(2, 4, 1), [2, 3]),
        (slice(4, 4), []),
        (slice(8, 8), []),
        (slice(np.int32(1), torch.tensor(3)), [1, 2]),
    ],
)
def test_a_stretch_is_written_and_nothing_beside_it(
    device: torch.device, stretch: slice, columns: list[int]
) -> None:
    """P2: one write names one stretch of one row."""
    pool = make_pool(device=device)
    row = alloc(pool, 2)[1]
    pool.write((row, stretch), torch.arange(11, 11 + len(columns), device=device))
    expected = torch.zeros_like(pool.req_to_token)
    expected[row, columns] = torch.arange(11, 11 + len(columns), dtype=torch.int32, device=device)
    assert torch.equal(pool.req_to_token, expected)


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([5, 6], dtype=torch.uint8),
        torch.tensor([5, 6], dtype=torch.int32),
        torch.tensor([5, 6], dtype=torch.int64),
        np.array([5, 6], dtype=np.uint64),
        np.array([5, 0, 6])[::2],
        [5, 6],
        (np.int8(5), 6),
        range(5, 7),
    ],
)
def test_slots_of_any_integer_kind_are_stored_alike(device: torch.device, values: Any) -> None:
    """P2: a tree gives int64, an allocator int32; the table holds int32."""
    pool = make_pool(device=device)
    [row] = alloc(pool)
    pool.write((row, slice(3, 5)), values)
    assert pool.req_to_token.dtype is torch.int32
    assert pool.req_to_token[row].tolist() == [0, 0, 0, 5, 6, 0, 0, 0]


def test_switched_off_checks_still_write_where_told() -> None:
    """P2: check_bounds=False looks at no values; a row named by an int is still looked at."""
    pool = ReqToTokenPool(2, CONTEXT, "cpu", check_bounds=False)
    [row] = alloc(pool)
    pool.write(([row], [3]), [7])
    assert pool.req_to_token[row].tolist() == [0, 0, 0, 7, 0, 0, 0, 0]
    with pytest.raises(OwnershipError, match="row 2 is not handed out"):
        pool.write((2, slice(0, 1)), [1])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "positions", "values", "error"),
    [([1, 3], [0, 0], [1, 1], OwnershipError), ([1], [8], [1], IndexError), ([1], [0], [-1], IndexError)],
)
def test_device_tensors_are_looked_at_on_request(
    rows: list[int], positions: list[int], values: list[int], error: type[Exception]
) -> None:
    """P3: check_bounds=True reads device indices and values before the write."""
    pool = ReqToTokenPool(4, CONTEXT, "cuda", check_bounds=True)
    alloc(pool, 2)
    with pytest.raises(error):
        pool.write(
            (torch.tensor(rows, device="cuda"), torch.tensor(positions, device="cuda")),
            torch.tensor(values, device="cuda"),
        )
    assert not pool.req_to_token.any()


def test_a_table_from_inference_mode_is_writable_outside() -> None:
    """P2: where the pool was built does not decide where it can be written."""
    with torch.inference_mode():
        pool = make_pool()
    [row] = alloc(pool)
    pool.write((row, slice(0, 1)), [3])
    pool.free(row)
    assert not pool.req_to_token.any()


def test_the_example_in_the_docstring_runs() -> None:
    """The example in the docstring runs as it is printed."""
    result = doctest.testmod(req_to_token_pool)
    assert result.attempted == 5
    assert result.failed == 0


def test_the_table_is_on_the_device_that_was_named() -> None:
    """P1: also where torch has another default."""
    assert make_pool(device="meta").req_to_token.device.type == "meta"


@pytest.mark.parametrize("check_bounds", [None, False])
def test_an_entry_named_by_plain_ints_is_always_looked_at(check_bounds: bool | None) -> None:
    """P2, E5, X1: row 0 takes what is padded, and nobody's row takes anything."""
    pool = ReqToTokenPool(2, CONTEXT, "cpu", check_bounds=check_bounds)
    pool.write((0, 1), 7)
    assert pool.req_to_token[0, 1] == 7
    for entry, error, message in (
        ((3, 0), IndexError, r"row 3 is outside 0\.\.2 \(1 of 1 are\); padded entries name row 0"),
        ((-1, 0), IndexError, r"row -1 is outside 0\.\.2"),
        (
            (0, CONTEXT),
            IndexError,
            r"position 8 is outside 0\.\.7 \(1 of 1 are\); max_con",
        ),
        ((1, 0), OwnershipError, "row 1 is not handed out"),
    ):
        with pytest.raises(error, match=message):
            pool.write(entry, 5)
    assert pool.req_to_token.count_nonzero() == 1


def test_writes_and_frees_wait_for_nothing(apart: Apart) -> None:
    """P2: the table follows the device's work, however entries and slots are named."""
    device, synchronisations = apart
    pool = ReqToTokenPool(4, CONTEXT, device)
    slots = torch.arange(1, 9, device=device, dtype=torch.int32)
    rows, positions = torch.tensor([1, 2], device=device), torch.tensor([7, 0], device=device)
    with synchronisations() as waits:
        assert pool.alloc(3) == [1, 2, 3]
        pool.write((1, slice(0, 8)), slots)
        pool.write((rows, positions), slots[:2])
        pool.write((2, 1), 9)
        pool.write((2, 2), slots[2])
        pool.write((rows[1], 3), slots[3:4])
        pool.write((2, positions[0] - 3), [5])
        pool.write(([2, 2], np.array([5, 6])), [6, 7])
        pool.write((2, slice(7, 8)), 8)
        pool.write((2, slice(7, 8)), slots[7])
        pool.free(3)
    assert waits == []
    assert pool.req_to_token[:3].tolist() == [[0] * 8, [1, 2, 3, 4, 5, 6, 7, 1], [2, 9, 3, 4, 5, 6, 7, 8]]
    with synchronisations() as waits:
        pool.clear()
    assert waits == []
