"""What the pools accept as an index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pymllm.mem_cache import index_arguments
from pymllm.mem_cache.arguments import INTEGER_DTYPES as INTEGER_DTYPE_SET

INTEGER_DTYPES = sorted(INTEGER_DTYPE_SET, key=str)


def test_integers_are_dense() -> None:
    """X1: a sparse tensor names entries of its own, not what it seems to hold."""
    with pytest.raises(TypeError, match=r"slots must be a dense tensor, got layout torch\.sparse_coo"):
        index_arguments.as_integers("slots", torch.tensor([1, 2]).to_sparse())


@pytest.mark.parametrize("dtype", INTEGER_DTYPES, ids=str)
def test_indices_of_any_integer_dtype_and_shape_become_flat(dtype: torch.dtype) -> None:
    """P3: every consumer takes any integer dtype; uint8 is a number, not a mask."""
    index = index_arguments.as_index("slot", torch.tensor([[1, 0], [2, 1]], dtype=torch.int64).to(dtype))
    assert index.dtype is torch.int64
    assert index.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        (1, np.int32(2)),
        range(1, 3),
        np.array([1, 2], dtype=np.uint16),
        np.array([0, 1, 0, 2])[1::2],
        np.array([[1], [2]], dtype=np.uint64),
    ],
)
def test_arrays_and_sequences_are_indices_too(value: Any) -> None:
    """X1: what names rows need not be a tensor."""
    for read in (index_arguments.as_index, index_arguments.as_integers):
        index = read("rows", value)
        assert index.dtype is torch.int64
        assert index.tolist() == [1, 2]


@pytest.mark.parametrize("value", [[], (), np.array([], dtype=np.int32), torch.empty(0, dtype=torch.int32)])
def test_no_index_at_all_is_an_empty_index(value: Any) -> None:
    """X1: an empty sequence has no dtype to complain about."""
    index = index_arguments.as_index("rows", value)
    assert (index.dtype, index.shape) == (torch.int64, (0,))


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([True, False]),
        torch.tensor([1.0]),
        np.array([True]),
        np.array([1.0]),
        [1, True],
        [1.0],
        "12",
        b"12",
        None,
        5,
        {1: 2},
    ],
)
def test_what_is_no_run_of_integers_is_refused(value: Any) -> None:
    """X1: bools, floats and text never become indices."""
    with pytest.raises(TypeError, match="rows must"):
        index_arguments.as_index("rows", value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, True),
        (np.int8(3), True),
        (np.array(3), True),
        (torch.tensor(3), True),
        (torch.tensor([3]), False),
        (np.array([3]), False),
        ([3], False),
        (range(1), False),
        (3.0, False),
    ],
)
def test_a_run_of_one_is_not_a_single_number(value: Any, expected: bool) -> None:
    """X1: one index and a batch of one take different forms."""
    assert index_arguments.is_single(value) is expected


@pytest.mark.parametrize(("setting", "expected"), [(None, True), (True, True), (False, False)])
def test_host_indices_are_looked_at_unless_switched_off(setting: bool | None, expected: bool) -> None:
    """P3: looking at a host tensor costs no synchronisation."""
    assert index_arguments.is_readable(torch.zeros(1), setting) is expected


@pytest.mark.parametrize(("setting", "expected"), [(None, False), (True, True), (False, False)])
def test_device_indices_are_looked_at_only_on_request(setting: bool | None, expected: bool) -> None:
    """P3: looking at a device tensor synchronises; a meta tensor stands for one here."""
    assert index_arguments.is_readable(torch.zeros(1, device="meta"), setting) is expected


@pytest.mark.parametrize("values", [[], [0], [0, 4, 2]])
def test_indices_inside_the_range_pass(values: list[int]) -> None:
    """P3: both ends of the range belong to it."""
    index = torch.tensor(values, dtype=torch.int64)
    index_arguments.check_range("slot", index, 5, "advice")
    assert index.tolist() == values


@pytest.mark.parametrize(("values", "first"), [([1, 5, -1], 5), ([-1, 7], -1), ([2**63 - 1], 2**63 - 1)])
def test_indices_outside_the_range_are_counted_and_named(values: list[int], first: int) -> None:
    """X1: the message names the value, the bound and what to do."""
    wrong = sum(not 0 <= value < 5 for value in values)
    with pytest.raises(
        IndexError, match=rf"slot {first} is outside 0\.\.4 \({wrong} of {len(values)} are\); advice"
    ):
        index_arguments.check_range("slot", torch.tensor(values), 5, "advice")


@pytest.mark.parametrize("dtype", INTEGER_DTYPES, ids=str)
def test_a_negative_number_of_any_width_is_outside(dtype: torch.dtype) -> None:
    """P3: reading a number as unsigned must not let a short one in."""
    numbers = torch.tensor([3, 100], dtype=torch.int64).to(dtype)
    index_arguments.check_range("slot", numbers, 2**40, "advice")
    with pytest.raises(IndexError, match="slot 100 is outside"):
        index_arguments.check_range("slot", numbers, 100, "advice")
    if dtype.is_signed:
        for stop in (100, 2**31, 2**31 + 1, 2**40):
            with pytest.raises(IndexError, match="slot -1 is outside"):
                index_arguments.check_range("slot", torch.tensor([-1], dtype=dtype), stop, "advice")


def test_an_index_too_large_for_int64_is_still_outside() -> None:
    """X1: a uint64 that wraps around in int64 must not land inside a buffer."""
    index = index_arguments.as_index("slot", torch.tensor([2**64 - 1], dtype=torch.uint64))
    for stop in (5, 2**31 + 1):
        with pytest.raises(IndexError, match="slot -1 is outside"):
            index_arguments.check_range("slot", index, stop, "advice")
