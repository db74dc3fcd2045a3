"""Integers of the same width as any dtype."""

from __future__ import annotations

import pytest
import torch

from pymllm.mem_cache.bit_view import bit_view

WIDTHS = {
    torch.bool: torch.int8,
    torch.float8_e4m3fn: torch.int8,
    torch.uint16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.int64: torch.int64,
    torch.complex128: torch.complex128,
}


@pytest.mark.parametrize(("dtype", "expected"), WIDTHS.items(), ids=str)
def test_the_view_has_the_width_of_the_dtype(dtype: torch.dtype, expected: torch.dtype) -> None:
    """P5: rows of any dtype can be moved without interpreting them."""
    tensor = torch.zeros(3, 2).to(dtype)
    view = bit_view(tensor)
    assert view.dtype is expected
    assert view.data_ptr() == tensor.data_ptr()
    assert view.shape == tensor.shape


def test_strides_survive_the_view() -> None:
    """P3: rows that are a slice of something wider need no copy."""
    tensor = torch.zeros(4, 6).t()[::2]
    assert bit_view(tensor).stride() == tensor.stride()
