"""Whole numbers become the bits that torch would write, and come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.mem_cache.bit_view import bit_view
from pymllm.workloads.recurrence import EXACT_PRIMES, bits_of, values_of


@pytest.mark.parametrize("dtype", EXACT_PRIMES)
def test_bits_are_those_that_torch_writes(dtype: torch.dtype) -> None:
    """E1: of every number up to 2,000 that the dtype holds, and of its largest."""
    prime = EXACT_PRIMES[dtype]
    values = np.array([*range(min(prime, 2000)), prime - 1], dtype=np.int64).reshape(1, -1)
    expected = bit_view(torch.from_numpy(values).to(dtype)).numpy()
    found = bits_of(values, dtype)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    assert np.array_equal(values_of(found, dtype), values)


@pytest.mark.parametrize("dtype", EXACT_PRIMES)
def test_bits_with_gaps_between_them_are_read(dtype: torch.dtype) -> None:
    """E1: as a view of some rows of a buffer has them."""
    values = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    assert np.array_equal(values_of(bits_of(values, dtype)[:, 1:, ::2], dtype), values[:, 1:, ::2])
