"""States of an exact recurrence in the shape and dtype of a buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from pymllm.errors import UsageError
from pymllm.workloads.recurrence import Recurrence

__all__ = ["EXACT_PRIMES", "RecurrentStates"]

EXACT_PRIMES: Mapping[torch.dtype, int] = MappingProxyType(
    {torch.float32: 16_777_213, torch.float16: 2_039, torch.bfloat16: 251}
)
"""For each dtype the largest prime up to which it holds every whole number."""


class RecurrentStates:
    """What a small exact model writes into one buffer of states.

    Parameters
    ----------
    shape : tuple of int
        Layers, and then the shape of one layer's state of one request.
    dtype : torch.dtype
        A key of `EXACT_PRIMES`.
    salt : int
        Buffers of different salts take the same token in differently.

    Attributes
    ----------
    recurrence : Recurrence
        Advances values; a value is a row of ``prod(shape)`` whole numbers.

    Raises
    ------
    UsageError
        The dtype is not exact enough.

    Notes
    -----
    Laws: E1.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, salt: int) -> None:
        if dtype not in EXACT_PRIMES:
            raise UsageError(f"states of {dtype} hold no exact numbers; use one of {list(EXACT_PRIMES)}")
        self.shape = shape
        self.dtype = dtype
        self.recurrence = Recurrence(math.prod(shape), EXACT_PRIMES[dtype], salt)

    def values(self, states: torch.Tensor) -> np.ndarray:
        """Read states as values.

        Parameters
        ----------
        states : torch.Tensor
            ``[layers, n, ...]``, on any device.

        Returns
        -------
        numpy.ndarray
            Shape ``(n, elements)``, int64.
        """
        return states.cpu().transpose(0, 1).flatten(1).to(torch.int64).numpy()

    def states(self, values: np.ndarray) -> torch.Tensor:
        """Bring values of shape ``(n, elements)`` into the buffer's shape and dtype, on the host."""
        layers, *rest = self.shape
        return torch.from_numpy(values).view(-1, layers, *rest).transpose(0, 1).to(self.dtype)

    def cold(self, tokens: np.ndarray, namespace: str | int | None = None) -> torch.Tensor:
        """Compute the state after a whole sequence from nothing: ``[layers, ...]``, on the host."""
        return self.states(self.recurrence.cold(tokens, namespace)[None])[:, 0]
