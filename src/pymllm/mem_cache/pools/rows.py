"""Row indices of pools: which values are indices, whether to read them, and the bits of rows.

As in `pymllm.mem_cache.arguments`, the checks here are about one argument alone (law X1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from pymllm.mem_cache.arguments import INTEGER_DTYPES, as_int, refuse_masked

IndexLike: TypeAlias = "torch.Tensor | npt.NDArray[np.integer] | Sequence[int]"


def as_integers(name: str, value: IndexLike) -> torch.Tensor:
    """Return integers of any dtype and shape as a flat tensor.

    ``value``: integers of any shape. Bools are not integers. Returns shape ``(n,)``; a tensor keeps its dtype
    and device, anything else becomes int64 on the CPU. It may share memory with ``value``. Cost: O(1) for
    contiguous tensors, else O(n); no synchronisation. Laws: X1.
    """
    if isinstance(value, torch.Tensor):
        if value.dtype not in INTEGER_DTYPES:
            raise TypeError(f"{name} must have an integer dtype, got {value.dtype}")
        if value.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got layout {value.layout}")
        if value.dtype is torch.uint64 and value.is_cpu:
            _refuse_beyond_int64(name, value.numpy())
        return value if value.ndim == 1 else value.reshape(-1)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iu":
            raise TypeError(f"{name} must have an integer dtype, got {value.dtype}")
        if type(value) is not np.ndarray:
            refuse_masked(name, value)
        if value.dtype == np.uint64:
            _refuse_beyond_int64(name, value)
        return torch.from_numpy(np.ascontiguousarray(value, dtype=np.int64).reshape(-1))
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(
            f"{name} must be a tensor, an array or a sequence of ints, got {type(value).__name__}"
        )
    numbers = [as_int(name, item) for item in value]
    try:
        # By way of NumPy, so that torch's default device has no say.
        return torch.from_numpy(np.array(numbers, dtype=np.int64))
    except OverflowError:
        beyond = next(number for number in numbers if not -(2**63) <= number < 2**63)
        raise _beyond_int64(name, beyond) from None


def _refuse_beyond_int64(name: str, numbers: npt.NDArray[np.integer]) -> None:
    """Raise an error for numbers that would be negative as int64."""
    if numbers.size and numbers.max() >= 2**63:
        raise _beyond_int64(name, int(numbers[numbers >= 2**63][0]))


def _beyond_int64(name: str, number: int) -> ValueError:
    return ValueError(f"{name} has {number}, which int64 does not have")


def as_index(name: str, value: IndexLike) -> torch.Tensor:
    """Return indices of any integer dtype and shape as a flat int64 tensor.

    ``value``: indices of any shape. Bools are not indices, and uint8 is a number here, never a mask. Returns
    shape ``(n,)``, int64, on the device of ``value`` (CPU unless it is a tensor). It may share memory with
    ``value``. Cost: O(n) where a conversion is needed, else O(1); no synchronisation. Laws: X1.
    """
    integers = as_integers(name, value)
    return integers if integers.dtype is torch.int64 else integers.to(torch.int64)


def is_single(value: object) -> TypeGuard[SupportsIndex]:
    """Tell whether ``value`` stands for one number rather than for a series of numbers."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.ndim == 0
    return hasattr(value, "__index__")


def is_readable(index: torch.Tensor, check_bounds: bool | None) -> bool:
    """Tell whether to check the values of ``index``, which may be costly on a device.

    ``check_bounds``: the pool's setting: always, never, or (None) where looking costs no synchronisation.
    """
    return index.device.type == "cpu" if check_bounds is None else check_bounds


def check_range(name: str, index: torch.Tensor, stop: int, advice: str) -> None:
    """Raise an error for integers outside ``0 .. stop - 1``.

    ``index``: shape ``(n,)``, any integer dtype. Cost: O(n); synchronises where ``index`` is on another
    device than the host. Laws: X1, P3, P5.
    """
    values = index.cpu().numpy()
    if values.dtype != np.int64 and (values.dtype != np.int32 or stop > 2**31):
        values = values.astype(np.int64)
    # Seen as unsigned, a negative number is a huge one: one reduction finds both ends of the range.
    unsigned = values.view(np.uint64 if values.itemsize == 8 else np.uint32)
    if not values.size or unsigned.max() < stop:
        return
    wrong = values[(values < 0) | (values >= stop)]
    raise IndexError(
        f"{name} {wrong[0]} is outside 0..{stop - 1} ({wrong.size} of {values.size} are); {advice}"
    )


_INTEGER_OF_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor as integers of the same width.

    ``tensor``: any shape, strides and dtype. Returns the same memory, shape and strides, as int8, int16,
    int32 or int64. A dtype of another width (complex128) stays as it is. Cost: O(1). Source: torch 2.13 has
    no ``index_copy_`` for float8, which KV caches are stored in, nor for uint16. Laws: P5 (bit-exact, the
    payload of a NaN included), P3.
    """
    return tensor.view(_INTEGER_OF_WIDTH.get(tensor.dtype.itemsize, tensor.dtype))
