"""States are exact in their dtype, and go into a buffer and come back unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.errors import UsageError
from pymllm.workloads.recurrence import EXACT_PRIMES, RecurrentStates

TOKENS = np.random.default_rng(1).integers(0, 2**32, 100).astype(np.uint32)


@pytest.mark.parametrize("dtype", EXACT_PRIMES)
def test_a_sequence_may_be_cut_anywhere(dtype: torch.dtype) -> None:
    """E1: through the buffer's dtype and back between two chunks, bit for bit."""
    model = RecurrentStates((2, 3), dtype, salt=5)
    cold = model.cold(TOKENS)
    assert (cold.shape, cold.dtype) == ((2, 3), dtype)
    for cut in (0, 1, 50, 99, 100):
        buffer = torch.zeros((2, 4, 3), dtype=dtype)
        buffer[:, 1] = model.cold(TOKENS[:cut])
        [value] = model.values(buffer[:, 1:2])
        buffer[:, 1] = model.states(model.recurrence.advance(value, TOKENS[cut:], None)[None])[:, 0]
        assert torch.equal(buffer[:, 1], cold)


@pytest.mark.parametrize("dtype", EXACT_PRIMES)
def test_every_value_below_the_prime_is_held_exactly(dtype: torch.dtype) -> None:
    """E1: the largest whole numbers of a dtype, its limit included, are told apart."""
    model = RecurrentStates((2, 1, 2), dtype, salt=1)
    prime = EXACT_PRIMES[dtype]
    values = np.arange(prime - 8, prime, dtype=np.int64).reshape(2, 4)
    states = model.states(values)
    assert states.shape == (2, 2, 1, 2)
    assert np.array_equal(model.values(states), values)


def test_namespaces_and_salts_differ() -> None:
    """E1: so a state of another request or buffer is noticed."""
    one, other = (RecurrentStates((1, 4), torch.float32, salt) for salt in (1, 2))
    states = [one.cold(TOKENS), one.cold(TOKENS, "a"), other.cold(TOKENS), one.cold(TOKENS[::-1].copy())]
    assert len({tuple(state.flatten().tolist()) for state in states}) == 4


def test_a_dtype_that_rounds_is_refused() -> None:
    """X1: a state that is rounded could hide a wrong one."""
    with pytest.raises(UsageError, match="float8_e4m3fn hold no exact numbers"):
        RecurrentStates((1, 1), torch.float8_e4m3fn, salt=0)
