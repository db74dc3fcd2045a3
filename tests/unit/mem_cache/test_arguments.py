"""What pools and caches accept as an int, a size, a device, a dtype and an allocator."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.mem_cache import arguments


@pytest.mark.parametrize("value", [3, np.int16(3), torch.tensor(3), torch.tensor([3], dtype=torch.uint8)])
def test_one_integer_of_any_kind_is_an_int(value: Any) -> None:
    """X1: consumers take any integer dtype."""
    result = arguments.as_int("row", value)
    assert (result, type(result)) == (3, int)


@pytest.mark.parametrize(
    "value", [True, np.True_, torch.tensor(True), 1.0, torch.tensor(1.0), torch.tensor([1, 2]), "1", None]
)
def test_a_bool_a_float_or_a_run_is_no_int(value: Any) -> None:
    """X1: a malformed argument is a TypeError that names it."""
    with pytest.raises(TypeError, match="row must be an int"):
        arguments.as_int("row", value)


@pytest.mark.parametrize("value", [0, -1])
def test_a_size_below_its_minimum_is_refused(value: int) -> None:
    """X1: zero and negative sizes are ValueErrors."""
    with pytest.raises(ValueError, match=f"size must be at least 1, got {value}"):
        arguments.as_size("size", value)


def test_a_size_may_be_zero_where_zero_makes_sense() -> None:
    """X1: max_track_slots=0 is no error."""
    assert arguments.as_size("max_track_slots", 0, minimum=0) == 0


@pytest.mark.parametrize("value", [True, False, None])
def test_a_switch_passes_through(value: bool | None) -> None:
    """X1: on, off, and left to the pool are the three settings."""
    assert arguments.as_switch("check_bounds", value) is value


@pytest.mark.parametrize("value", [1, 0, "yes"])
def test_a_number_or_a_string_is_no_switch(value: Any) -> None:
    """X1: a malformed switch is a TypeError."""
    with pytest.raises(TypeError, match="check_bounds must be True, False or None"):
        arguments.as_switch("check_bounds", value)


@pytest.mark.parametrize("name", ["cpu", "cpu:0", torch.device("cpu")])
def test_a_device_equals_that_of_its_tensors(name: str | torch.device) -> None:
    """P3: a device comparison must not fail over a missing or needless number."""
    assert arguments.as_device(name) == torch.zeros(1).device


@pytest.mark.gpu
def test_cuda_without_a_number_is_the_current_card() -> None:
    """P3: "cuda" resolves to the card that tensors report."""
    assert arguments.as_device("cuda") == torch.zeros(1, device="cuda").device


def test_an_unknown_device_is_refused() -> None:
    """X1: a device that torch does not know is a ValueError that names it."""
    with pytest.raises(ValueError, match="'abacus' is not one that torch knows"):
        arguments.as_device("abacus")


@pytest.mark.parametrize("value", [None, 1.5, 0, ["cpu"], True])
def test_a_device_is_a_name_or_a_device(value: Any) -> None:
    """X1: what else it is, is named; a number alone would mean another device on every machine."""
    with pytest.raises(
        TypeError, match=rf"device must be a str or a torch\.device, got {type(value).__name__}"
    ):
        arguments.as_device(value)


def test_a_dtype_passes_through() -> None:
    """X1: a torch.dtype is what buffers are made of."""
    assert arguments.as_dtype(torch.bfloat16) is torch.bfloat16


@pytest.mark.parametrize("value", ["float16", np.float16, float])
def test_a_dtype_of_somebody_else_is_refused(value: Any) -> None:
    """X1: no guessing which torch dtype was meant."""
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype"):
        arguments.as_dtype(value)


INTEGER_DTYPES = sorted(arguments.INTEGER_DTYPES, key=str)


@pytest.mark.parametrize(
    "dtype", [*INTEGER_DTYPES, torch.bool, torch.float8_e5m2, torch.bfloat16, torch.complex128], ids=str
)
def test_rows_of_numbers_can_be_stored(device: torch.device, dtype: torch.dtype) -> None:
    """P3, P5: whatever is written can be read back by its index, on the device that it is for."""
    assert arguments.as_row_dtype(dtype, device) is dtype
    assert not torch.zeros(2, dtype=dtype, device=device)[torch.tensor([1], device=device)].any()


@pytest.mark.parametrize("dtype", [torch.float4_e2m1fn_x2, torch.bits16, torch.quint8, torch.int7], ids=str)
def test_rows_that_cannot_be_read_by_index_are_refused(dtype: torch.dtype) -> None:
    """X1: the message names the dtype and another way to keep the bytes."""
    with pytest.raises(ValueError, match=f"dtype {dtype} cannot be stored.*torch.uint8"):
        arguments.as_row_dtype(dtype, torch.device("cpu"))


@pytest.mark.parametrize("value", ["float16", np.float16, None])
def test_a_row_dtype_is_a_dtype(value: Any) -> None:
    """X1: no guessing here either."""
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype"):
        arguments.as_row_dtype(value, torch.device("cpu"))


@pytest.mark.parametrize(
    "read",
    [lambda: arguments.as_int("n", "x" * 3), lambda: arguments.as_size("n", [])],
)
def test_the_message_shows_what_was_given(read: Callable[[], object]) -> None:
    """X1: a message says which type came instead of an int."""
    with pytest.raises(TypeError, match=r"got (str 'xxx'|list \[\])"):
        read()


@pytest.mark.parametrize("pool", [None, SimpleNamespace(free=len)])
def test_none_or_what_can_take_slots_back_is_a_pool(pool: Any) -> None:
    """X1: duck typing stays open; no more than ``free`` is asked for."""
    assert arguments.as_pool(pool) is pool


@pytest.mark.parametrize("pool", [5, SimpleNamespace(), SimpleNamespace(free=5)])
def test_what_cannot_take_slots_back_is_no_pool(pool: Any) -> None:
    """X1: the error names the value and what it lacks."""
    with pytest.raises(TypeError, match="which has no method free: give a pool"):
        arguments.as_pool(pool)


def test_the_error_names_the_argument_and_the_method() -> None:
    """X1: a cache of two pools says which of them cannot be used."""
    with pytest.raises(TypeError, match="mamba_pool is 5, which has no method free_track_slot"):
        arguments.as_pool(5, "mamba_pool", "free_track_slot")


@pytest.mark.parametrize("callback", [None, print])
def test_none_or_a_function_is_a_callback(callback: Any) -> None:
    """X1: nothing is asked of it before it is called."""
    assert arguments.as_callback(callback) is callback


def test_what_cannot_be_called_is_no_callback() -> None:
    """X1: found at once, and not after the first eviction."""
    with pytest.raises(TypeError, match="on_node_evict is 5: give a function of a node id"):
        arguments.as_callback(5)


@pytest.mark.parametrize("pool", [None, SimpleNamespace(), SimpleNamespace(page_size=4)])
def test_a_page_is_as_large_as_the_pools_or_as_asked(pool: Any) -> None:
    """X1: a pool that names no page size leaves it to the cache."""
    assert arguments.as_page_size(torch.tensor(4), pool) == 4


@pytest.mark.parametrize(
    ("size", "error", "words"),
    [
        (8, ValueError, "page_size is 8, but the pool's is 4"),
        (0, ValueError, "page_size must be at least 1"),
        (4.0, TypeError, "page_size must be an int"),
    ],
)
def test_a_page_of_another_size_than_the_pools_is_refused(
    size: Any, error: type[Exception], words: str
) -> None:
    """X1: both sizes are named, and nonsense is told from a difference."""
    with pytest.raises(error, match=words):
        arguments.as_page_size(size, SimpleNamespace(page_size=4))
