"""Page-locked memory of the host: plain memory that CUDA is told of, which takes no more than what is in it.

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
    """Zeros that are page-locked for CUDA, until nothing looks at them any more.

    ``size``: bytes, rounded up to whole pages of the host. CUDA must be in use in this process: nothing is
    started here. `RuntimeError` where the driver refuses.
    """

    _locked: tuple[Any, int, int] | None = None  # CUDA's runtime, the address, and of which process

    def __new__(cls, size: int) -> PinnedMemory:
        """Map and lock so many bytes."""
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
        """Return tensors side by side, each of which keeps all of the memory."""
        made = []
        start = 0
        for shape in shapes:
            count = torch.Size(shape).numel() * dtype.itemsize
            flat = torch.frombuffer(self, dtype=torch.uint8, offset=start, count=count)
            made.append(flat.view(dtype).view(shape))
            start += size_of(shape, dtype)
        return made

    def __del__(self) -> None:
        """Unlock it: CUDA would take whatever is mapped there next for page-locked."""
        if self._locked is None or sys.is_finalizing():
            return
        runtime, address, process = self._locked
        if process == os.getpid():  # a forked child has neither the lock nor CUDA
            runtime.cudaHostUnregister(address)


def size_of(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes from the beginning of a tensor to that of the next one."""
    return -(-torch.Size(shape).numel() * dtype.itemsize // _ALIGNED) * _ALIGNED


def can_pin(device: torch.device) -> bool:
    """Tell whether buffers on a device can be page-locked without starting anything."""
    return device.type == "cpu" and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
