"""Conversions of integers from any container to host arrays."""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as short_repr
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.arguments import INTEGER_DTYPES, refuse_masked

_INT64: Final = np.dtype(np.int64)
_LARGEST: Final = np.iinfo(np.int64).max
_FEW: Final = 16
_UNSIGNED_MAX: Final = np.maximum.reduce  # `ndarray.max` adds 0.7 us


def host_array(values: Any) -> NDArray[Any]:
    """Return a context's table as an array, from a tensor, an array or a sequence.

    Cost: O(1) for CPU tensors and arrays, O(n) for sequences; one copy, which synchronises, for a tensor on
    another device.
    """
    if isinstance(values, torch.Tensor):
        if not values.is_cpu:
            values = values.cpu()  # pragma: needs cuda
        array: NDArray[Any] = values.numpy()
        return array
    return np.asarray(values)


def host_integers(
    name: str, values: Sequence[Any] | torch.Tensor | NDArray[np.integer], stop: int | None = None
) -> NDArray[np.int64]:
    """Return integers as a one-dimensional int64 array.

    ``values``: integers of any shape, on any device. Bools are none, though one among ints in a list is not
    noticed. Cost: O(n); a tensor of another device is copied once, which synchronises. Law: X1.
    """
    if type(values) is list:
        array = np.array(values)
    elif isinstance(values, (str, bytes)) or not isinstance(values, (torch.Tensor, np.ndarray, Sequence)):
        raise TypeError(f"{name} must be a sequence or a tensor of ints, got {type(values).__name__}")
    elif isinstance(values, torch.Tensor):
        if values.numel() and values.dtype not in INTEGER_DTYPES:
            raise TypeError(f"{name} must be integers, got a tensor of {values.dtype}")
        array = host_array(values)
    else:
        array = host_array(refuse_masked(name, values))
    if array.dtype is not _INT64:
        if array.dtype.kind not in "iu" and array.size:
            _refuse_beyond_int64(name, values)
            raise TypeError(f"{name} must be integers, got {short_repr(values)}")
        if array.dtype.kind == "u" and array.size and array.max() > _LARGEST:
            raise ValueError(f"{name} has {array.max()}, which int64 does not have")
        array = array.astype(np.int64)
    if array.ndim != 1:
        array = array.reshape(-1)
    if stop is not None and is_outside(array, stop):
        wrong = array[(array < 0) | (array >= stop)]
        raise IndexError(f"{name} has {wrong[0]}, outside 0..{stop - 1}")
    return array


def is_outside(numbers: NDArray[np.int64], stop: int) -> bool:
    """Tell whether any number is outside ``0 .. stop - 1``. Cost: O(n)."""
    if numbers.size <= _FEW:
        few = numbers.tolist()  # 0.3 us for one, 0.65 for 16; a reduction takes 0.9
        return bool(few) and not (min(few) >= 0 and max(few) < stop)
    # Seen as unsigned, a negative number is a huge one: one reduction finds both ends of the range.
    return bool(_UNSIGNED_MAX(numbers.view(np.uint64)) >= stop)


def _refuse_beyond_int64(name: str, values: Any) -> None:
    """Raise an error for integers that do not fit int64."""
    if isinstance(values, Sequence) and all(type(value) is int for value in values):
        beyond = next(value for value in values if not -_LARGEST - 1 <= value <= _LARGEST)
        raise ValueError(f"{name} has {beyond}, which int64 does not have")


def check_as_many(name: str, values: NDArray[np.int64], count: int, of_what: str) -> None:
    """Raise an error if the number of values differs from another number."""
    if values.size != count:
        raise ValueError(f"{values.size} {name} for {count} {of_what}; give one for each")
