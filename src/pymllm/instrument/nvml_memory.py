"""Bytes of a device: what ``used`` means on this machine, and how many are this process's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pymllm.instrument.nvml_device import NvmlDevice, device_index, find_device
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.nvml_record import UsedMeans
from pymllm.instrument.reading import BYTES, Reading, Unreadable

__all__ = ["DeviceUse", "MemoryGauge", "NvmlMemory", "ProcessMemory", "process_memory"]

_NO_VALUE = (1 << 64) - 1
_SLACK = 1 << 20  # bytes by which parts may miss the whole: what a driver rounds


class MemoryGauge:
    """Memory in use on a device, and what that is on this machine.

    Parameters
    ----------
    library : NvmlLibrary
        Open.
    device : NvmlDevice
        Whose memory.

    Raises
    ------
    Unreadable
        When no form of the call gives a value.

    Attributes
    ----------
    means : UsedMeans
        What the driver's ``used`` was found to be.
    total, reserved : Reading
        Bytes.

    Notes
    -----
    The second form of the call tells the driver's own reserve apart, but texts and drivers disagree on
    whether its ``used`` has the reserve inside. So the sums are tried once, and `read` takes the reserve away
    wherever it is known to be inside: figures of two drivers can then be compared.
    """

    def __init__(self, library: NvmlLibrary, device: NvmlDevice) -> None:
        self._library = library
        self._call: tuple[Any, ...] = (
            "nvmlDeviceGetMemoryInfo",
            device.handle,
            library.constant("nvmlMemory_v2"),
        )
        self.reserved = Reading.unknown(BYTES, "the driver does not tell its own reserve apart")
        self._inside = 0
        try:
            memory = self._ask()
        except Unreadable:
            self._call = self._call[:2]
            memory = self._ask()
            rest = memory.total - memory.free - memory.used
            self.means = UsedMeans.UNSEPARATED if abs(rest) <= _SLACK else UsedMeans.UNEXPLAINED
        else:
            self.reserved = Reading(memory.reserved, BYTES)
            rest = memory.total - memory.free - memory.used
            if abs(rest - memory.reserved) <= _SLACK:
                self.means = UsedMeans.WITHOUT_RESERVED
            elif abs(rest) <= _SLACK:
                self.means = UsedMeans.WITH_RESERVED
                self._inside = memory.reserved
            else:
                self.means = UsedMeans.UNEXPLAINED
        self.total = Reading(memory.total, BYTES)

    def read(self) -> int:
        """Return the bytes in use on the device, by anybody.

        Raises
        ------
        Unreadable
            When the driver gives none.

        Notes
        -----
        Cost: one call of the driver, about ten microseconds.
        """
        return max(0, int(self._ask().used) - self._inside)

    def _ask(self) -> Any:
        memory = self._library.call(*self._call)
        if memory.used == _NO_VALUE or memory.total == _NO_VALUE:
            raise Unreadable("nvmlDeviceGetMemoryInfo: the driver gives no value for this device")
        return memory


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What the driver's list of processes says about this process.

    Parameters
    ----------
    mine : Reading
        Bytes of this process.
    others : Reading
        How many other processes are in the list. Unknown unless this process is in it: only then are the
        list's numbers those that this process knows itself by.
    """

    mine: Reading
    others: Reading


def process_memory(library: NvmlLibrary, device: NvmlDevice) -> ProcessMemory:
    """Look this process up in the driver's list.

    Parameters
    ----------
    library : NvmlLibrary
        Open.
    device : NvmlDevice
        On which to look.

    Notes
    -----
    Cost: milliseconds, during which the driver may hold a lock that stalls every program on the device. Ask
    before and after a run, never during one.

    Unknown is common: Windows never tells, and inside a container the list has the numbers that processes
    have outside it, or none at all.
    """
    try:
        processes = library.first_of(
            ("nvmlDeviceGetComputeRunningProcesses_v3", device.handle),
            ("nvmlDeviceGetComputeRunningProcesses_v2", device.handle),
        )
    except Unreadable as error:
        reason = str(error)
        return ProcessMemory(Reading.unknown(BYTES, reason), Reading.unknown("processes", reason))
    mine = [process for process in processes if process.pid == os.getpid()]
    if not mine:
        reason = (
            f"process {os.getpid()} is not among the {len(processes)} that the driver lists: it does not use"
            " the device, or has another number outside its container"
        )
        return ProcessMemory(Reading.unknown(BYTES, reason), Reading.unknown("processes", reason))
    others = Reading(len(processes) - len(mine), "processes")
    sizes = [process.usedGpuMemory for process in mine]
    if None in sizes:
        return ProcessMemory(
            Reading.unknown(BYTES, "the driver lists this process without its memory"), others
        )
    return ProcessMemory(Reading(sum(sizes), BYTES), others)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device's memory at one time.

    Parameters
    ----------
    used : Reading
        Bytes in use by anybody.
    own : Reading
        Bytes that the driver attributes to this process.
    others : Reading
        How many other processes use the device.
    """

    used: Reading
    own: Reading
    others: Reading


class NvmlMemory:
    """Reads a device's memory now and then, without a thread.

    Parameters
    ----------
    device : int, str, torch.device or None
        As `NvmlTracker` takes it.
    """

    def __init__(self, device: Any = None) -> None:
        device_index(device)
        self._name = device
        self._library = NvmlLibrary()
        self._device: NvmlDevice | None = None
        self._gauge: MemoryGauge | None = None

    def read(self) -> DeviceUse:
        """Return the device's memory; unknown, with the reason, where it cannot be read.

        Notes
        -----
        Opens NVML when it is first asked, and again where it could not be opened then. Cost: see
        `process_memory`.
        """
        try:
            if self._device is None:
                self._library.open()
                self._device = find_device(self._library, device_index(self._name))
            if self._gauge is None:
                self._gauge = MemoryGauge(self._library, self._device)
            used = Reading(self._gauge.read(), BYTES)
        except Unreadable as reason:
            used = Reading.unknown(BYTES, str(reason))
            if self._device is None:
                self._library.close()
                return DeviceUse(used, used, Reading.unknown("processes", str(reason)))
        processes = process_memory(self._library, self._device)
        return DeviceUse(used, processes.mine, processes.others)

    def close(self) -> None:
        """Let go of NVML; the next `read` opens it again."""
        self._device = self._gauge = None
        self._library.close()
