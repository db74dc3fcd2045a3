"""The health of the GPUs of this process, from test to test: errors, lost devices, lowered clocks."""

from __future__ import annotations

from pymllm.instrument.nvml_counters import HealthWatch, why_invalid
from pymllm.instrument.nvml_device import find_device, visible_devices
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.reading import Unreadable


class GpuHealth:
    """A watch on all GPUs that this process may use; blind where NVML cannot be asked.

    Cost: a few milliseconds for each look at a GPU.
    """

    def __init__(self) -> None:
        self._library = NvmlLibrary()
        self._watches: list[tuple[str, HealthWatch]] = []
        self.take()

    def take(self) -> tuple[str, ...]:
        """Return the events since the last call that spoil tests, with the GPU's UUID."""
        try:
            return self._library.within(self._take)
        except Unreadable as reason:  # of a driver that hangs, which is no health; told once
            hung = (str(reason),) if self._watches else ()
            self._watches = []
            return hung

    def _take(self) -> tuple[str, ...]:
        if not self._watches:
            self._open()
            return ()
        return tuple(f"{uuid}: {why}" for uuid, watch in self._watches for why in why_invalid(watch.take()))

    def _open(self) -> None:
        self._library.open(None)
        try:
            devices = [find_device(self._library, index) for index in visible_devices()]
        except Unreadable:
            self._library.close()
            raise
        self._watches = [(it.identity.uuid, HealthWatch(self._library, it)) for it in devices]

    def close(self) -> None:
        """Release NVML."""
        self._watches = []
        self._library.close()
