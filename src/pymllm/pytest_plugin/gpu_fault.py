"""Faults of a GPU after a launch: asked for at the end of a test, and told in that test's name."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from pymllm.instrument.torch_memory import TorchAllocator, has_context


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A fault found while waiting for a device; with a dead context, all further calls fail."""

    index: int
    said: str
    is_deadly: bool

    def __str__(self) -> str:
        end = "; the CUDA context of this process is dead" if self.is_deadly else ""
        return f"on cuda:{self.index}: {self.said}{end}"


def wait_for_gpus() -> GpuFault | None:
    """Wait for each device that this process uses through torch, and return the first fault found."""
    if not TorchAllocator().is_in_use():
        return None
    torch: Any = sys.modules["torch"]
    for index in range(torch.cuda.device_count()):
        if has_context(index):
            said = _wait(torch, index)
            if said is not None:
                return GpuFault(index, said, is_deadly=_wait(torch, index) is not None)
    return None


def _wait(torch: Any, index: int) -> str | None:
    try:
        torch.cuda.synchronize(index)
    except RuntimeError as error:  # torch.AcceleratorError, where there is one
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None
