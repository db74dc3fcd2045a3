"""Copies of numbers from the host to a device, without waiting for the device."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

_NOWHERE_FAR: Final = ("cpu", "meta")


def as_tensor(numbers: torch.Tensor | NDArray[np.integer]) -> torch.Tensor:
    """Return numbers as a tensor that shares their memory."""
    return torch.from_numpy(numbers) if isinstance(numbers, np.ndarray) else numbers


def is_capturing(device: torch.device) -> bool:
    """Tell whether kernel launches on a device are being captured in a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def bring(numbers: torch.Tensor, device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Return integers as a tensor of a dtype on a device.

    ``numbers``: shape ``(n,)``. Returns ``numbers`` themselves where they are that. Cost: at most one copy.
    No synchronisation: what is on the host goes to CUDA through pinned memory, as of `send`; while a graph is
    captured, as of `constant_index`.
    """
    if numbers.dtype is dtype and numbers.device == device:  # 0.2 us, where `to` takes 0.4 to find it out
        return numbers
    if device.type in _NOWHERE_FAR or not numbers.is_cpu:
        return numbers.to(device, dtype)
    return row_index(numbers.to(dtype).numpy(), device)


def send(numbers: NDArray[np.integer], target: torch.Tensor) -> None:
    """Write host numbers into a tensor of the same dtype and size.

    Cost: one copy. No synchronisation: on CUDA it goes through pinned memory of its own, which torch keeps
    until the copy is done.
    """
    flags = numbers.flags
    # Torch reads neither what goes backwards nor, without a warning, what a caller keeps from being written.
    source = torch.from_numpy(numbers if flags.c_contiguous and flags.writeable else numbers.copy())
    if target.device.type not in _NOWHERE_FAR:
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)


def row_index(numbers: NDArray[np.integer], device: torch.device) -> torch.Tensor:
    """Return row numbers as a tensor on a device.

    ``numbers``: shape ``(n,)``, int64 or another integer that torch has. Returns the same in memory of its
    own. Cost: one copy, as of `send`; no synchronisation. While a CUDA graph is captured, `constant_index`.
    """
    if is_capturing(device):
        return constant_index(numbers, device)
    index = torch.empty(numbers.shape, dtype=_dtype_of(numbers), device=device)
    send(numbers, index)
    return index


def constant_index(numbers: NDArray[np.integer], device: torch.device) -> torch.Tensor:
    """Return row numbers on a device that stay the same in each replay of a captured graph.

    ``numbers``: as of `row_index`. A captured copy would read its host memory again at each replay, when
    somebody else has it. Numbers that are arguments of a launch are part of the graph. Cost: a launch for
    some ninety numbers; no synchronisation.
    """
    index = torch.zeros(numbers.shape, dtype=_dtype_of(numbers), device=device)
    if numbers.size:
        torch._foreach_add_(index.unbind(), numbers.tolist())
    return index


def _dtype_of(numbers: NDArray[np.integer]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, numbers.dtype)).dtype
