"""A recurrent model that computes exactly: its state is a function of all tokens before it, in their order.

Each element of a state is an integer below a prime, small enough for the state's dtype to hold it exactly,
and each token maps it affinely: ``x -> a * x + b`` modulo the prime, with a and b of the token, the layer and
the element. Affine maps compose, so a chunk is folded into one map without a loop over its tokens, and they
do not commute, so the same tokens in another order give another state.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from pymllm.workloads.fingerprint import prefix_fingerprints

# The largest primes whose residues the mantissas hold exactly.
PRIMES: Final = {torch.float32: 16_777_213, torch.float16: 2_039, torch.bfloat16: 251}


class ExactRecurrence:
    """The states of one kind (conv or SSM) of all layers of one request."""

    def __init__(self, layers: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int) -> None:
        self.shape = (layers, *shape)
        self.dtype = dtype
        self.prime = PRIMES[dtype]
        elements = int(np.prod(self.shape))
        seeds = prefix_fingerprints(np.arange(2 * elements) + salt).reshape(2, 1, elements)
        self._seeds = seeds | np.uint64(1)

    def _maps(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Factors (never 0: no token forgets what was before it) and offsets, for each token and element."""
        mixed = (tokens.astype(np.uint64)[None, :, None] + np.uint64(1)) * self._seeds
        mixed ^= mixed >> np.uint64(29)
        factors = mixed[0] % np.uint64(self.prime - 1) + np.uint64(1)
        return factors.astype(np.int64), (mixed[1] % np.uint64(self.prime)).astype(np.int64)

    def advance(self, state: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the state after some more tokens, folding neighbours until one map is left."""
        factors, offsets = self._maps(tokens)
        while len(factors) > 1:
            whole = len(factors) // 2 * 2
            first, second = factors[:whole:2], factors[1:whole:2]
            composed = first * second % self.prime
            shifted = (second * offsets[:whole:2] + offsets[1:whole:2]) % self.prime
            factors = np.concatenate((composed, factors[whole:]))
            offsets = np.concatenate((shifted, offsets[whole:]))
        return (factors[0] * state + offsets[0]) % self.prime if len(factors) else state

    def cold(self, tokens: np.ndarray) -> torch.Tensor:
        """Return the state after all of ``tokens``, computed from nothing in one go."""
        return self.write(self.advance(np.zeros(int(np.prod(self.shape)), np.int64), tokens))

    def one_by_one(self, tokens: np.ndarray) -> torch.Tensor:
        """Return the same as `cold`, token by token."""
        state = np.zeros(int(np.prod(self.shape)), np.int64)
        for factors, offsets in zip(*self._maps(tokens), strict=True):
            state = (factors * state + offsets) % self.prime
        return self.write(state)

    def read(self, state: torch.Tensor) -> np.ndarray:
        """Read a state that `write` made."""
        return state.cpu().to(torch.float64).numpy().astype(np.int64).reshape(-1)

    def write(self, state: np.ndarray) -> torch.Tensor:
        """Put a state into its dtype, which holds it exactly."""
        return torch.from_numpy(state.reshape(self.shape)).to(self.dtype)
