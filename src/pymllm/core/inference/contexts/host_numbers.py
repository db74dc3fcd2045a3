"""Integers of any container, as an array that Python can read at once."""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as short_repr
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["host_array", "host_integers"]


def host_array(values: Any) -> NDArray[Any]:
    """Read a table that a context offers, whatever keeps it.

    Parameters
    ----------
    values : torch.Tensor, numpy.ndarray or sequence
        Numbers, on any device.

    Returns
    -------
    numpy.ndarray
        The same numbers; a view where they are in host memory.

    Notes
    -----
    Cost: O(1) for CPU tensors and arrays, O(n) for sequences; one copy, which synchronises, for a tensor on
    another device.
    """
    if isinstance(values, torch.Tensor):
        if values.device.type != "cpu":
            values = values.cpu()  # pragma: needs cuda
        array: NDArray[Any] = values.detach().numpy()
        return array
    return np.asarray(values)


def host_integers(
    name: str, values: Sequence[Any] | torch.Tensor | NDArray[np.integer], stop: int | None = None
) -> NDArray[np.int64]:
    """Read integers as one dimension of int64.

    Parameters
    ----------
    name : str
        What they are called in a message.
    values : sequence of int, torch.Tensor or numpy.ndarray
        Integers of any shape, on any device. Bools are none.
    stop : int, optional
        First value that is too large; negative values are refused with it.

    Returns
    -------
    numpy.ndarray
        Shape ``(n,)``; it may share memory with ``values``.

    Raises
    ------
    TypeError
        Something is not an integer.
    ValueError
        A sequence whose elements differ in length.
    OverflowError
        An integer does not fit 64 bits.
    IndexError
        A value is outside ``0 .. stop - 1``; the message names the first.

    Notes
    -----
    Cost: O(n); a tensor of another device is copied once, which synchronises. Law: X1.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, (torch.Tensor, np.ndarray, Sequence)):
        raise TypeError(f"{name} must be a sequence or a tensor of ints, got {type(values).__name__}")
    array = host_array(values)
    if array.dtype != np.int64:
        if array.dtype.kind not in "iu" and array.size:
            raise TypeError(f"{name} must be integers, got {short_repr(values)}")
        array = array.astype(np.int64)
    if array.ndim != 1:
        array = array.reshape(-1)
    # Seen as unsigned, a negative number is a huge one: one reduction finds both ends of the range.
    if stop is not None and array.size and array.view(np.uint64).max() >= stop:
        wrong = array[(array < 0) | (array >= stop)]
        raise IndexError(f"{name} has {wrong[0]}, outside 0..{stop - 1}")
    return array
