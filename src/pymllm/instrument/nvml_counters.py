"""The readings of a device: bytes in use, their meaning, and events that make figures invalid."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any

from pymllm.instrument.nvml_device import NvmlDevice, device_index, find_device
from pymllm.instrument.nvml_library import LOST, TIMED_OUT, NvmlFailure, NvmlLibrary
from pymllm.instrument.nvml_record import Health, UsedMeans
from pymllm.instrument.reading import BYTES, COUNT, Reading, Unreadable

_NO_VALUE = (1 << 64) - 1
_SLACK = 1 << 20  # bytes by which parts may miss the whole: what a driver rounds


class MemoryGauge:
    """A reader of a device's memory in use, and its meaning; `Unreadable` if no call works.

    Texts and drivers disagree on whether ``used`` has the driver's own reserve inside. So the sums are tried
    once, and `read` takes the reserve away where it is known to be inside: figures of two drivers can be
    compared.
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
        """Return the bytes in use by all processes, in one driver call of about ten microseconds."""
        return max(0, int(self._ask().used) - self._inside)

    def _ask(self) -> Any:
        memory = self._library.call(*self._call)
        if memory.used == _NO_VALUE or memory.total == _NO_VALUE:
            raise Unreadable("nvmlDeviceGetMemoryInfo: the driver gives no value for this device")
        return memory


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The bytes of this process in the driver's list, and the number of other processes there.

    The others are unknown unless this process is in the list: only then are its numbers those known here.
    With 0 bytes of this one they are unknown, too: so says a driver that translates numbers of processes for
    a container, and such a list leaves out whatever runs in another container.
    """

    mine: Reading
    others: Reading


def process_memory(library: NvmlLibrary, device: NvmlDevice) -> ProcessMemory:
    """Return this process's entry in the driver's list, often unknown as on Windows and in containers.

    Cost: milliseconds, in which the driver may hold a lock that stalls every program on the device: ask
    before and after a run, never during one.
    """
    try:
        processes = _list_processes(library, device)
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
    sizes = [_size_of(process) for process in mine]
    unknown = next((size for size in sizes if not size.is_known), None)
    if unknown is not None and any(process.usedGpuMemory == 0 for process in mine):
        reason = f"{unknown.reason}, and may leave out those of other containers"
        others = Reading.unknown("processes", reason)
    return ProcessMemory(unknown or Reading(sum(size.value or 0 for size in sizes), BYTES), others)


def _size_of(process: Any) -> Reading:
    """Return the bytes of a listed process; 0 means unknown, since listed processes use memory."""
    if process.usedGpuMemory:
        return Reading(process.usedGpuMemory, BYTES)
    told = "without its memory" if process.usedGpuMemory is None else "with 0 bytes, which no context has"
    who = "this process" if process.pid == os.getpid() else f"process {process.pid}"
    return Reading.unknown(BYTES, f"the driver lists {who} {told}")


def _list_processes(library: NvmlLibrary, device: NvmlDevice) -> Any:
    return library.first_of(
        ("nvmlDeviceGetComputeRunningProcesses_v3", device.handle),
        ("nvmlDeviceGetComputeRunningProcesses_v2", device.handle),
    )


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device's memory at one time: bytes in use by all and by this process, and other processes."""

    used: Reading
    own: Reading
    others: Reading


class NvmlMemory:
    """A reader of a device's memory without a thread."""

    def __init__(self, device: Any = None) -> None:
        device_index(device)
        self._name = device
        self._library = NvmlLibrary()
        self._device: NvmlDevice | None = None
        self._gauge: MemoryGauge | None = None

    def read(self) -> DeviceUse:
        """Return the device's memory, or unknown; NVML is opened at the first call."""
        try:
            return self._library.within(self._read)
        except Unreadable as reason:
            used = Reading.unknown(BYTES, str(reason))
            return DeviceUse(used, used, Reading.unknown("processes", str(reason)))

    def _read(self) -> DeviceUse:
        device = self._open()
        try:
            if self._gauge is None:
                self._gauge = MemoryGauge(self._library, device)
            used = Reading(self._gauge.read(), BYTES)
        except Unreadable as reason:
            used = Reading.unknown(BYTES, str(reason))
        processes = process_memory(self._library, device)
        return DeviceUse(used, processes.mine, processes.others)

    def holders(self) -> list[tuple[int, Reading]] | str:
        """Return the processes that the driver lists, with their bytes, or why it lists none."""
        try:
            found = self._library.within(lambda: _list_processes(self._library, self._open()))
        except Unreadable as reason:
            return str(reason)
        return [(it.pid, _size_of(it)) for it in found]

    def lists_this_process(self) -> bool:
        """Tell whether the driver lists this process, with or without known bytes."""
        found = self.holders()
        return not isinstance(found, str) and any(pid == os.getpid() for pid, _ in found)

    def _open(self) -> NvmlDevice:
        """Open NVML and find the device; on failure leave NVML closed."""
        if self._device is None:
            self._library.open(None)
            try:
                self._device = find_device(self._library, device_index(self._name))
            except Unreadable:
                self._library.close()
                raise
        return self._device

    def close(self) -> None:
        """Release NVML; the next `read` opens it again."""
        self._device = self._gauge = None
        self._library.close()


# Bits of the clocks' event reasons that slow a device down, and whether figures are worthless then. A power
# cap is how a device normally runs at full load; what only says idle or a setting is left out.
_SLOWDOWNS: tuple[tuple[int, str, bool], ...] = (
    (0x04, "software power cap", False),
    (0x08, "hardware slowdown", True),
    (0x20, "software thermal slowdown", True),
    (0x40, "hardware thermal slowdown", True),
    (0x80, "hardware power brake", True),
)
_EVENTS_MOST = 64  # taken at once: a device that reports without end must not hold the sampler
_WAIT_MS = 1  # NVIDIA's texts disagree on zero: one says that it waits for ever
_ANY_INSTANCE = 0xFFFFFFFF  # of an event that belongs to no MIG instance


class HealthWatch:
    """A watch on a device's health: at the start, at each sample, and at the end.

    Clocks and errors are those of the whole GPU, also for a MIG instance, which without privileges is told
    only of the errors that concern all of it. Reported errors are taken every ``xid_period`` seconds; the
    driver keeps them.
    """

    def __init__(self, library: NvmlLibrary, device: NvmlDevice, xid_period: float = 1.0) -> None:
        self._library = library
        self._device = device
        self._xid_period = xid_period
        self._taken = time.monotonic()
        self._lost: str | None = None
        self._bits = 0
        self._clocks_reason: str | None = None
        self._xids: list[int] = []
        self._xid_reason: str | None = None
        self._events: Any = None
        self._at_start = self._counts()
        self._since_start = tuple(Reading.unknown(COUNT, "counted when the run ends") for _ in self._at_start)
        try:
            self._watch_events()
        except Unreadable as reason:
            self._xid_reason = str(reason)

    def sample(self) -> None:
        """Read the clocks, and sometimes error counts; a reading that has failed is not repeated."""
        self._look_at_clocks()
        if time.monotonic() - self._taken >= self._xid_period:
            self._look_at_events()

    def _look_at_clocks(self) -> None:
        if self._clocks_reason is None:
            try:
                self._bits |= self._library.first_of(
                    ("nvmlDeviceGetCurrentClocksEventReasons", self._device.gpu),
                    ("nvmlDeviceGetCurrentClocksThrottleReasons", self._device.gpu),
                )
            except Unreadable as reason:
                self._clocks_reason = str(reason)
                self.notice(reason)

    def _look_at_events(self) -> None:
        self._taken = time.monotonic()
        if self._xid_reason is None:
            try:
                self._take_events()
            except Unreadable as reason:
                self._xid_reason = str(reason)
                self.notice(reason)

    def notice(self, reason: Unreadable) -> None:
        """Record an error that means that the device was lost."""
        if isinstance(reason, NvmlFailure) and reason.code == LOST and self._lost is None:
            self._lost = str(reason)

    def close(self) -> None:
        """Take all readings once more, and stop watching."""
        self._look_at_clocks()
        self._look_at_events()
        self._since_start = tuple(
            _new(before, after) for before, after in zip(self._at_start, self._counts(), strict=True)
        )
        if self._events is not None:
            try:
                self._library.call("nvmlEventSetFree", self._events)
            except Unreadable as reason:
                self.notice(reason)
            self._events = None

    def take(self) -> Health:
        """Take all readings, return the health since the last call, and start again; a loss counts once."""
        was_lost = self._lost is not None
        self._look_at_clocks()
        self._look_at_events()
        counts = self._counts()
        self._since_start = tuple(_new(old, new) for old, new in zip(self._at_start, counts, strict=True))
        found = self.seen()
        self._at_start, self._bits = counts, 0
        self._xids.clear()
        return replace(found, lost=None) if was_lost else found

    def seen(self) -> Health:
        """Return the health so far; memory errors are known only after `close`."""
        corrected, uncorrected, rows = self._since_start
        return Health(
            slowdowns=tuple(name for bit, name, _ in _SLOWDOWNS if self._bits & bit),
            xids=tuple(self._xids),
            ecc_corrected=corrected,
            ecc_uncorrected=uncorrected,
            remapped_rows=rows,
            lost=self._lost,
        )

    def unwatched(self) -> tuple[str, ...]:
        """Return the counters that could not be watched, each with its reason."""
        reasons = [("clocks", self._clocks_reason), ("XID errors", self._xid_reason)]
        names = ("corrected memory errors", "uncorrected memory errors", "remapped rows")
        reasons += [(name, it.reason) for name, it in zip(names, self._since_start, strict=True)]
        return tuple(f"{name}: {reason}" for name, reason in reasons if reason is not None)

    def _counts(self) -> tuple[Reading, ...]:
        """Return memory errors since the driver was loaded, by correction, and all rows ever replaced."""
        library, gpu = self._library, self._device.gpu
        since = library.constant("NVML_VOLATILE_ECC")
        kinds = ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED")
        calls: list[tuple[Any, ...]] = [
            ("nvmlDeviceGetTotalEccErrors", gpu, library.constant(kind), since) for kind in kinds
        ]
        calls.append(("nvmlDeviceGetRemappedRows", gpu))
        return tuple(self._count(*call) for call in calls)

    def _count(self, *call: Any) -> Reading:
        """Return a count; for replaced rows, the sum of those for corrected and for other errors."""
        try:
            answer = self._library.call(*call)
        except Unreadable as reason:
            self.notice(reason)
            return Reading.unknown(COUNT, str(reason))
        return Reading(sum(answer[:2]) if isinstance(answer, tuple) else answer, COUNT)

    def _watch_events(self) -> None:
        """Register for the errors that the driver will report from now on."""
        library, gpu = self._library, self._device.gpu
        wanted = library.constant("nvmlEventTypeXidCriticalError")
        if not library.call("nvmlDeviceGetSupportedEventTypes", gpu) & wanted:
            raise Unreadable("the driver does not report them for this device")
        self._events = library.call("nvmlEventSetCreate")
        library.call("nvmlDeviceRegisterEvents", gpu, wanted, self._events)

    def _take_events(self) -> None:
        """Read the reported errors, except those of another MIG instance of the GPU."""
        for _ in range(_EVENTS_MOST):
            try:
                event = self._library.call("nvmlEventSetWait", self._events, _WAIT_MS)
            except NvmlFailure as failure:
                if failure.code == TIMED_OUT:
                    return
                raise
            if event.gpuInstanceId in (self._device.instance, _ANY_INSTANCE) or self._device.instance is None:
                self._xids.append(int(event.eventData))


def _new(before: Reading, after: Reading) -> Reading:
    """Return the increase of a count; unknown if the count restarted."""
    new = after.minus(before)
    if new.value is None or new.value >= 0:
        return new
    return Reading.unknown(COUNT, f"the count fell from {before} to {after}, as after a reset")


def why_invalid(health: Health) -> tuple[str, ...]:
    """Return the reason to distrust a run's figures; power caps and corrected errors are none."""
    spoilt = {name for _, name, spoils in _SLOWDOWNS if spoils}
    reasons = [f"clocks were lowered: {name}" for name in health.slowdowns if name in spoilt]
    reasons += [f"the driver reported XID {xid}" for xid in dict.fromkeys(health.xids)]
    if health.ecc_uncorrected.value:
        reasons.append(f"{health.ecc_uncorrected} uncorrected memory errors")
    if health.remapped_rows.value:
        reasons.append(f"{health.remapped_rows} rows of memory were remapped")
    if health.lost is not None:
        reasons.append(f"the device was lost ({health.lost})")
    return tuple(reasons)
