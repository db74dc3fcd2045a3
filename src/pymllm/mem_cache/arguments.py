"""Argument checks that pools and caches share.

Here live the rules of law X1 that are about one argument alone: what counts as an int, a size, a
device, a dtype or an allocator. What counts as an index is in `pymllm.mem_cache.pools.rows`; rules that
need a pool's state (who holds a row, how long a buffer is named in the message) stay with the pool.
"""

from __future__ import annotations

import math
import operator
from reprlib import repr as short_repr
from typing import Any, Final, SupportsIndex

import numpy as np
import torch

LAST_INT32: Final = 2**31 - 1
"""The largest slot number, and so the bound of rows and positions, since tables store them as int32."""
_MOST_BYTES: Final = 2**63 - 1

#: What counts as an integer: torch's other dtypes of whole numbers are no more than names for packed bits.
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
    """Return one integer from an int, a NumPy integer, or an integer tensor of one element.

    Cost: O(1); reading a tensor of a CUDA device synchronises. Laws: X1.
    """
    if type(value) is int:
        return value
    is_flag = isinstance(value, bool) or (isinstance(value, torch.Tensor) and value.dtype is torch.bool)
    if not is_flag and not isinstance(value, np.ma.MaskedArray):
        try:
            return operator.index(value)
        except TypeError:
            pass
        except RuntimeError:
            if getattr(value, "dtype", None) is not torch.uint64:
                raise
            return int(value.item())  # type: ignore[attr-defined]  # torch makes no index beyond int64
    raise TypeError(f"{name} must be an int, got {type(value).__name__} {value!r}")


def refuse_masked(name: str, value: Any) -> Any:
    """Raise an error for a masked array, which has no number under its mask.

    Returns the same. Laws: X1.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and under its mask there is no number: "
            "give .compressed(), which leaves that out, or .filled(number)"
        )
    return value


def as_size(name: str, value: SupportsIndex, minimum: int = 1, maximum: int | None = None) -> int:
    """Return a size after checking it against a smallest and perhaps a largest value (X1)."""
    size = as_int(name, value)
    if size < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {size}")
    if maximum is not None and size > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {size}")
    return size


def refuse_long_pool(size: int, page_size: int) -> None:
    """Raise an error for a pool with more slots than int32 can number (X1)."""
    if size + page_size - 1 > LAST_INT32:
        raise ValueError(f"slots up to {size + page_size - 1} do not fit int32 (at most {LAST_INT32})")


def make_zeros(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a buffer of zeros that can be written inside and outside of inference mode.

    A pool is often built while a model loads under inference mode, and a tensor born there could not be
    written outside. `ValueError` for more bytes than can be numbered; `MemoryError` where the host has no
    memory for them, and torch's own error where a device has none. Laws: X1.
    """
    size = math.prod(shape) * dtype.itemsize
    if size > _MOST_BYTES:
        raise ValueError(f"{name} of shape {shape} would have {size} bytes; at most {_MOST_BYTES} can be")
    try:
        with torch.inference_mode(False):
            return torch.zeros(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        if device.type != "cpu" or isinstance(error, torch.OutOfMemoryError):
            raise
        raise MemoryError(f"no memory for {name} of shape {shape}: {size} bytes on the host") from error


def as_switch(name: str, value: bool | None) -> bool | None:
    """Raise an error for a switch that is not on, off, or left to the pool.

    Returns the same. Laws: X1.
    """
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{name} must be True, False or None, got {type(value).__name__} {value!r}")
    return value


def as_device(device: str | torch.device) -> torch.device:
    """Return a device in the form that its tensors report (X1)."""
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"device must be a str or a torch.device, got {type(device).__name__} {device!r}")
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device {device!r} is not one that torch knows: {error}") from error
    try:
        # Only an allocation tells which card "cuda" is, and that "cpu:0" reports itself as "cpu".
        return torch.empty(0, device=named).device
    except (AssertionError, RuntimeError) as error:  # the first of a torch without such devices
        if isinstance(error, torch.OutOfMemoryError):
            raise
        said = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"device {device!r} cannot be used here: {said}") from error


def as_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return a `torch.dtype`; raise an error for anything else (X1)."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {type(dtype).__name__} {dtype!r}")
    return dtype


def as_row_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return a dtype for rows of a buffer; raise an error for one that rows cannot have.

    Cost: one gather of one element; no synchronisation. Laws: X1, P3, P5.
    """
    is_number = as_dtype(dtype).is_floating_point or dtype.is_complex or dtype in INTEGER_DTYPES
    try:
        if not (is_number or dtype is torch.bool):
            raise NotImplementedError
        # Which of the numbers can be read by index is best asked of this torch and this device.
        torch.zeros(1, dtype=dtype, device=device)[torch.zeros(1, dtype=torch.int64, device=device)]
    except NotImplementedError:
        raise ValueError(
            f"dtype {dtype} cannot be stored: torch does not read its rows by index; "
            "keep its bytes in a pool of torch.uint8"
        ) from None
    return dtype


def as_pool(pool: Any, name: str = "token_to_kv_pool_allocator", method: str = "free") -> Any:
    """Return a pool; raise an error for one without the method that takes memory back.

    Returns the pool. Laws: X1.
    """
    if pool is not None and not callable(getattr(pool, method, None)):
        raise TypeError(f"{name} is {short_repr(pool)}, which has no method {method}: give a pool, or None")
    return pool


def as_page_size(page_size: SupportsIndex, pool: Any) -> int:
    """Return a cache's page size, which must equal the pool's (X1)."""
    size = as_size("page_size", page_size)
    pool_page = getattr(pool, "page_size", size)
    if pool_page != size:
        raise ValueError(f"page_size is {page_size}, but the pool's is {pool_page}: give both the same")
    return size


def as_callback(callback: Any, name: str = "on_node_evict") -> Any:
    """Return a callback or ``None``; raise an error for an object that cannot be called (X1)."""
    if callback is not None and not callable(callback):
        raise TypeError(f"{name} is {short_repr(callback)}: give a function of a node id, or None")
    return callback
