"""Who may run on a GPU: only where there is one, and one test at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable

from pymllm.instrument.nvml_device import device_index, find_device
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.reading import Unreadable
from pymllm.testing.gpu_lock import GpuLock

__all__ = ["MODES", "GpuGate", "device_name", "why_no_cuda"]

MODES = ("wait", "fail", "off")
"""What a test does whose GPU is in use: wait for it, fail, or run all the same."""


@functools.cache
def why_no_cuda() -> str | None:
    """Return why there is no CUDA device for torch, or ``None`` where there is one.

    Notes
    -----
    Loads torch, so ask only for a test that needs to know.
    """
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    return None if torch.cuda.is_available() else "torch.cuda.is_available() is False"


def device_name() -> str:
    """Return what all programs of this machine know CUDA's current device by: its UUID.

    Notes
    -----
    NVML is asked, which initialises no CUDA; torch only where that cannot tell.
    """
    try:
        with NvmlLibrary() as library:
            return find_device(library, device_index(None)).identity.uuid
    except Unreadable:
        import torch

        return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


class GpuGate:
    """Lets one test at a time on a GPU.

    Parameters
    ----------
    mode : str
        One of `MODES`.
    before_waiting : callable
        Told who has the GPU before the wait for it begins.
    name_device : callable, optional
        Names the device, once; by default `device_name` does.
    """

    def __init__(
        self,
        mode: str,
        before_waiting: Callable[[str], object],
        name_device: Callable[[], str] | None = None,
    ) -> None:
        self._mode = mode
        self._before_waiting = before_waiting
        self._name_device = name_device or device_name
        self._lock: GpuLock | None = None

    def enter(self) -> None:
        """Take the GPU for a test.

        Raises
        ------
        GpuBusyError
            Somebody else has it, and the mode is ``"fail"``.
        """
        if self._mode == "off":
            return
        if self._lock is None:
            self._lock = GpuLock(self._name_device())
        self._lock.acquire(wait=self._mode == "wait", before_waiting=self._before_waiting)

    def leave(self) -> None:
        """Give the GPU to the next; nothing where this has it not."""
        if self._lock is not None:
            self._lock.release()
