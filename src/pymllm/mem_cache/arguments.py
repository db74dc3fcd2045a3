"""Checks of arguments that every data pool shares.

Here live the rules of law X1 that are about one argument alone: what counts as an int, a size, a
device or an index. Rules that need a pool's state (who holds a row, how long a buffer is named in
the message) stay with the pool.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "IndexLike",
    "as_device",
    "as_dtype",
    "as_index",
    "as_int",
    "as_integers",
    "as_size",
    "check_range",
    "is_readable",
    "is_single",
]

IndexLike: TypeAlias = "torch.Tensor | npt.NDArray[np.integer] | Sequence[int]"

INTEGER_DTYPES = frozenset(
    {
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    }
)


def as_int(name: str, value: SupportsIndex) -> int:
    """Read one integer: an int, a NumPy integer, or an integer tensor of one element.

    Parameters
    ----------
    name : str
        What the value is called in the message.
    value : int
        The value. A bool is not an int, neither as a Python bool nor in a tensor.

    Returns
    -------
    int
        The value as a Python int.

    Raises
    ------
    TypeError
        It is a bool, a float, or anything else that is not one integer.

    Notes
    -----
    Cost: O(1); reading a tensor of a CUDA device synchronises.
    Laws: X1.
    """
    if type(value) is int:
        return value
    is_flag = isinstance(value, bool) or (isinstance(value, torch.Tensor) and value.dtype is torch.bool)
    if not is_flag:
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, got {type(value).__name__} {value!r}")


def as_size(name: str, value: SupportsIndex, minimum: int = 1) -> int:
    """Read a size that has a smallest value.

    Parameters
    ----------
    name : str
        What the size is called in the message.
    value : int
        The size.
    minimum : int
        The smallest size that makes sense, 1 unless zero does.

    Returns
    -------
    int
        The size as a Python int.

    Raises
    ------
    TypeError
        It is not an int.
    ValueError
        It is below ``minimum``.

    Notes
    -----
    Laws: X1.
    """
    size = as_int(name, value)
    if size < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {size}")
    return size


def as_switch(name: str, value: bool | None) -> bool | None:
    """Refuse anything that is not on, off, or left to the pool.

    Parameters
    ----------
    name : str
        What the switch is called in the message.
    value : bool or None
        The setting.

    Returns
    -------
    bool or None
        The same.

    Raises
    ------
    TypeError
        It is something else; a number or a string is no switch.

    Notes
    -----
    Laws: X1.
    """
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{name} must be True, False or None, got {type(value).__name__} {value!r}")
    return value


def as_device(device: str | torch.device) -> torch.device:
    """Resolve a device to the one its tensors will report.

    Parameters
    ----------
    device : str or torch.device
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` and so on. ``"cuda"`` means the current one.

    Returns
    -------
    torch.device
        Equal to ``tensor.device`` of what is allocated there.

    Raises
    ------
    ValueError
        Torch knows no such device. A device that this machine lacks is torch's own error.

    Notes
    -----
    Laws: X1.
    """
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device {device!r} is not one that torch knows: {error}") from error
    # Only an allocation tells which card "cuda" is, and that "cpu:0" reports itself as "cpu".
    return torch.empty(0, device=named).device


def as_dtype(dtype: torch.dtype) -> torch.dtype:
    """Refuse anything that is not a `torch.dtype`.

    Parameters
    ----------
    dtype : torch.dtype
        Storage type of a buffer.

    Returns
    -------
    torch.dtype
        The same.

    Raises
    ------
    TypeError
        It is something else, such as a NumPy type or its name.

    Notes
    -----
    Laws: X1.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {type(dtype).__name__} {dtype!r}")
    return dtype


def as_integers(name: str, value: IndexLike) -> torch.Tensor:
    """Read integers of any dtype and shape as a flat tensor.

    Parameters
    ----------
    name : str
        What the integers are called in the message.
    value : torch.Tensor, numpy.ndarray or sequence of int
        Integers of any shape. Bools are not integers.

    Returns
    -------
    torch.Tensor
        Shape ``(n,)``; a tensor keeps its dtype and device, anything else becomes int64 on the CPU. It may
        share memory with ``value``.

    Raises
    ------
    TypeError
        The dtype or an element is not an integer.

    Notes
    -----
    Cost: O(1) for contiguous tensors, else O(n); no synchronisation.
    Laws: X1.
    """
    if isinstance(value, torch.Tensor):
        if value.dtype not in INTEGER_DTYPES:
            raise TypeError(f"{name} must have an integer dtype, got {value.dtype}")
        return value if value.ndim == 1 else value.reshape(-1)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iu":
            raise TypeError(f"{name} must have an integer dtype, got {value.dtype}")
        return torch.from_numpy(np.ascontiguousarray(value, dtype=np.int64).reshape(-1))
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(
            f"{name} must be a tensor, an array or a sequence of ints, got {type(value).__name__}"
        )
    return torch.tensor([as_int(name, item) for item in value], dtype=torch.int64)


def as_index(name: str, value: IndexLike) -> torch.Tensor:
    """Read indices of any integer dtype and shape as a flat int64 tensor.

    Parameters
    ----------
    name : str
        What the indices are called in the message.
    value : torch.Tensor, numpy.ndarray or sequence of int
        Indices of any shape. Bools are not indices, and uint8 is a number here, never a mask.

    Returns
    -------
    torch.Tensor
        Shape ``(n,)``, int64, on the device of ``value`` (CPU unless it is a tensor). It may share
        memory with ``value``.

    Raises
    ------
    TypeError
        The dtype or an element is not an integer.

    Notes
    -----
    Cost: O(n) where a conversion is needed, else O(1); no synchronisation.
    Laws: X1.
    """
    integers = as_integers(name, value)
    return integers if integers.dtype is torch.int64 else integers.to(torch.int64)


def is_single(value: object) -> TypeGuard[SupportsIndex]:
    """Tell whether ``value`` is meant as one number and not as a run of them.

    Parameters
    ----------
    value : object
        Anything that was given for an index.

    Returns
    -------
    bool
        True for numbers and for tensors and arrays without dimensions; a run of one is a run.
    """
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.ndim == 0
    return hasattr(value, "__index__")


def is_readable(index: torch.Tensor, check_bounds: bool | None) -> bool:
    """Tell whether the values of ``index`` are to be looked at.

    Parameters
    ----------
    index : torch.Tensor
        Any tensor.
    check_bounds : bool or None
        The pool's setting: always, never, or (None) where looking costs no synchronisation.

    Returns
    -------
    bool
        The setting, or whether ``index`` is on the host.
    """
    return index.device.type == "cpu" if check_bounds is None else check_bounds


def check_range(name: str, index: torch.Tensor, stop: int, advice: str) -> None:
    """Refuse integers outside ``0 .. stop - 1``.

    Parameters
    ----------
    name : str
        What the indices are called in the message.
    index : torch.Tensor
        Shape ``(n,)``, any integer dtype.
    stop : int
        First value that is too large.
    advice : str
        What the caller should do about it.

    Raises
    ------
    IndexError
        Some index is negative or at least ``stop``; the message names the first one.

    Notes
    -----
    Cost: O(n); synchronises where ``index`` is on another device than the host.
    Laws: X1, P3, P5.
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
