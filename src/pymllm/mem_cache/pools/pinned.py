"""Page-locked host memory, made by registering ordinary memory of the exact size with CUDA.

Torch's own pinned memory is rounded up to a power of two: 20 GiB become 32.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch

_ALIGNED: Final = 64  # what torch gives tensors on the host


class PinnedMemory(mmap.mmap):
    """Zeros in memory that stays page-locked for CUDA while any tensor refers to it.

    ``size``: bytes, rounded up to whole pages of the host. CUDA must be in use in this process: nothing is
    started here. `RuntimeError` where the driver refuses.
    """

    _locked: tuple[Any, int, int] | None = None  # CUDA's runtime, the address, and of which process

    def __new__(cls, size: int) -> PinnedMemory:
        """Map and lock so many bytes of memory."""
        # Shared with forked children, as mmap has it: after a fork, a write to a private page would go to a
        # copy, while the device goes on with the page itself.
        memory = super().__new__(cls, -1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        address = torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = runtime.cudaHostRegister(address, len(memory), 0)
        if int(error):
            raise RuntimeError(
                f"{len(memory)} bytes cannot be page-locked (cudaHostRegister: "
                f"{runtime.cudaGetErrorString(error)}); build the pool with pin_memory=False"
            )
        memory._locked = runtime, address, os.getpid()
        return memory

    def tensors(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[torch.Tensor]:
        """Return consecutive tensors in the memory, each of which keeps all of it alive."""
        made = []
        start = 0
        for shape in shapes:
            count = torch.Size(shape).numel() * dtype.itemsize
            flat = torch.frombuffer(self, dtype=torch.uint8, offset=start, count=count)
            made.append(flat.view(dtype).view(shape))
            start += size_of(shape, dtype)
        return made

    def __del__(self) -> None:
        """Unlock the memory, since CUDA would treat later mappings at its address as page-locked."""
        if self._locked is None or sys.is_finalizing():
            return
        runtime, address, process = self._locked
        if process == os.getpid():  # a forked child has neither the lock nor CUDA
            runtime.cudaHostUnregister(address)


def size_of(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes of a tensor, rounded up to the start of the next one."""
    return -(-torch.Size(shape).numel() * dtype.itemsize // _ALIGNED) * _ALIGNED


def can_pin(device: torch.device) -> bool:
    """Tell whether buffers of a device can be page-locked, without initialising the device."""
    return device.type == "cpu" and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
