"""What makes a run's figures worthless: slowed clocks, errors of memory, errors that the driver reports."""

from __future__ import annotations

import time
from typing import Any

from pymllm.instrument.nvml_device import NvmlDevice
from pymllm.instrument.nvml_library import LOST, TIMED_OUT, NvmlFailure, NvmlLibrary
from pymllm.instrument.nvml_record import Health
from pymllm.instrument.reading import COUNT, Reading, Unreadable

__all__ = ["HealthWatch", "why_invalid"]

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
    """Looks at a device's health at the start, at each sample, and at the end.

    Parameters
    ----------
    library : NvmlLibrary
        Open.
    device : NvmlDevice
        Clocks and errors are those of the whole GPU, also for a MIG instance.
    xid_period : float, default 1.0
        Seconds from one look at reported errors to the next; the driver keeps them until then.

    Notes
    -----
    Without privileges, the driver tells a MIG instance only of the errors that concern the whole GPU.
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
        """Look at the clocks, and now and then take the errors that were reported.

        Notes
        -----
        Cost: a call of the driver, and once a second a wait of a millisecond. What could not be asked once is
        not asked again.
        """
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
        """Remember a reason that says that the device was lost."""
        if isinstance(reason, NvmlFailure) and reason.code == LOST and self._lost is None:
            self._lost = str(reason)

    def close(self) -> None:
        """Look at everything once more, and stop watching."""
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

    def seen(self) -> Health:
        """Return what was seen so far; errors of memory are known only after `close`."""
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
        """Return what could not be watched, each with its reason."""
        reasons = [("clocks", self._clocks_reason), ("XID errors", self._xid_reason)]
        names = ("corrected memory errors", "uncorrected memory errors", "remapped rows")
        reasons += [(name, it.reason) for name, it in zip(names, self._since_start, strict=True)]
        return tuple(f"{name}: {reason}" for name, reason in reasons if reason is not None)

    def _counts(self) -> tuple[Reading, ...]:
        """Return errors of memory since the driver was loaded, corrected and not, and replaced rows ever."""
        library, gpu = self._library, self._device.gpu
        since = library.constant("NVML_VOLATILE_ECC")
        kinds = ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED")
        calls: list[tuple[Any, ...]] = [
            ("nvmlDeviceGetTotalEccErrors", gpu, library.constant(kind), since) for kind in kinds
        ]
        calls.append(("nvmlDeviceGetRemappedRows", gpu))
        return tuple(self._count(*call) for call in calls)

    def _count(self, *call: Any) -> Reading:
        """Ask for a count; of replaced rows there are two, for corrected errors and for others."""
        try:
            answer = self._library.call(*call)
        except Unreadable as reason:
            self.notice(reason)
            return Reading.unknown(COUNT, str(reason))
        return Reading(sum(answer[:2]) if isinstance(answer, tuple) else answer, COUNT)

    def _watch_events(self) -> None:
        """Ask for the errors that the driver will report from now on."""
        library, gpu = self._library, self._device.gpu
        wanted = library.constant("nvmlEventTypeXidCriticalError")
        if not library.call("nvmlDeviceGetSupportedEventTypes", gpu) & wanted:
            raise Unreadable("the driver does not report them for this device")
        self._events = library.call("nvmlEventSetCreate")
        library.call("nvmlDeviceRegisterEvents", gpu, wanted, self._events)

    def _take_events(self) -> None:
        """Take what was reported, but not what another MIG instance of the GPU did."""
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
    """Return how many there are since; unknown where the count began anew."""
    new = after.minus(before)
    if new.value is None or new.value >= 0:
        return new
    return Reading.unknown(COUNT, f"the count fell from {before} to {after}, as after a reset")


def why_invalid(health: Health) -> tuple[str, ...]:
    """Return why figures of a run with this health should not be trusted.

    Parameters
    ----------
    health : Health
        What was seen.

    Notes
    -----
    A power cap and corrected errors are no reason: both are how a sound device may run.
    """
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
