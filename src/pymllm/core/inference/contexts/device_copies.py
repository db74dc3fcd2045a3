"""Copies between rows of states, and from the host to their device, without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.bit_view import bit_view
from pymllm.mem_cache.fused_rows import is_capturing


def send(numbers: NDArray[np.integer], target: torch.Tensor) -> None:
    """Write host numbers into a tensor of the same dtype and size.

    Cost: one copy. No synchronisation: on CUDA it goes through pinned memory of its own, which torch keeps
    until the copy is done.
    """
    flags = numbers.flags
    # Torch reads neither what goes backwards nor, without a warning, what a caller keeps from being written.
    source = torch.from_numpy(numbers if flags.c_contiguous and flags.writeable else numbers.copy())
    if target.device.type != "cpu":
        source = source.pin_memory()  # pragma: needs cuda
    target.copy_(source, non_blocking=True)


def row_index(numbers: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Bring row numbers to a device.

    ``numbers``: shape ``(n,)``, int64. Returns the same in memory of its own. Cost: one copy, as
    of `send`; no synchronisation. While a CUDA graph is captured, `constant_index`.
    """
    if is_capturing(device):
        return constant_index(numbers, device)
    index = torch.empty(numbers.shape, dtype=torch.int64, device=device)
    send(numbers, index)
    return index


def constant_index(numbers: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Bring row numbers to a device so that a replay of a captured graph finds the same ones.

    ``numbers``: shape ``(n,)``, int64. A captured copy would read its host memory again at each replay, when
    somebody else has it. Numbers that are arguments of a launch are part of the graph. Cost: a launch for
    some ninety numbers; no synchronisation.
    """
    index = torch.zeros(numbers.shape, dtype=torch.int64, device=device)
    if numbers.size:
        torch._foreach_add_(index.unbind(), numbers.tolist())
    return index


def copy_rows(
    sources: Sequence[torch.Tensor], read: torch.Tensor, targets: Sequence[torch.Tensor], write: torch.Tensor
) -> None:
    """Copy the same rows between several pairs of buffers, in every layer and bit for bit.

    ``sources``, ``targets``: ``[layers, rows, ...]``; those of a pair are equal but for the number of rows.
    ``read``, ``write``: shape ``(n,)``, int64, on their device: rows of each source, and as many distinct
    rows of its target. Where the device has no memory for the rows, nothing has been written: all are
    gathered before the first is put in its place. A device that refuses to write the second pair leaves the
    first one written. Cost: two kernels per pair, however many rows and layers; no synchronisation. Laws: C7
    (bit-exact, the payload of a NaN included), X2.
    """
    gathered = [gather_rows(source, read) for source in sources]
    for target, rows in zip([bit_view(target) for target in targets], gathered, strict=True):
        target.index_copy_(1, write, rows)


def gather_rows(source: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """Return copies of rows in every layer, as bits: the only part of a copy that takes memory."""
    return bit_view(source).index_select(1, read)
