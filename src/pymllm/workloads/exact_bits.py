"""Whole numbers as the bits of a narrow float, and back, in NumPy, which has no bfloat16 of its own."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["bits_of", "values_of"]

_HALF_OF_FLOAT32 = 16  # A bfloat16 is the upper half of a float32; of small whole numbers the lower is zero.


def bits_of(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Write whole numbers as floats, and return their bits.

    Parameters
    ----------
    values : numpy.ndarray
        int64, any shape; numbers that the dtype holds exactly.
    dtype : torch.dtype
        ``float32``, ``float16`` or ``bfloat16``.

    Returns
    -------
    numpy.ndarray
        The same shape; int32 or int16, as wide as the dtype.

    Notes
    -----
    Cost: O(n), one to three passes: for the few numbers of a state a third of the way through torch.
    """
    if dtype is torch.float16:
        return values.astype(np.float16).view(np.int16)
    bits: np.ndarray = values.astype(np.float32).view(np.int32)
    return bits if dtype is torch.float32 else (bits >> _HALF_OF_FLOAT32).astype(np.int16)


def values_of(bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the whole numbers whose bits as floats these are, as int64; the way back from `bits_of`."""
    if dtype is torch.bfloat16:
        bits = bits.astype(np.int32) << _HALF_OF_FLOAT32
    floats: np.ndarray = bits.view(np.float16 if dtype is torch.float16 else np.float32)
    return floats.astype(np.int64)
