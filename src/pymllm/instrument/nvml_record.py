"""The record of an NVML tracker's run, as frozen plain data of bounded size."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass

from pymllm.instrument.nvml_device import DeviceIdentity
from pymllm.instrument.reading import Reading, Unreadable


class UsedMeans(enum.Enum):
    """The meaning of the driver's ``used``, on which drivers and manuals disagree."""

    WITH_RESERVED = "with reserved"
    """free + used = total: the driver's own reserve is included, and was subtracted."""
    WITHOUT_RESERVED = "without reserved"
    """free + used + reserved = total: the driver's own reserve is not included."""
    UNSEPARATED = "unseparated"
    """free + used = total, and the driver does not report its own reserve."""
    UNEXPLAINED = "unexplained"
    """The parts do not add up to the total, and the value is the driver's own."""
    UNKNOWN = "unknown"
    """The device's memory cannot be read."""


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """The memory of a device over time.

    Seconds since the tracker's start, rising, and bytes in use on the whole device then, by anybody.
    """

    times: tuple[float, ...] = ()
    used: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the device during the run."""

    slowdowns: tuple[str, ...]  # reasons seen for slower clocks (heat, power), in the order of NVML's bits
    xids: tuple[int, ...]  # numbers of the XID errors that the driver reported, in order
    ecc_corrected: Reading  # new memory errors, as the next
    ecc_uncorrected: Reading
    remapped_rows: Reading  # rows of memory newly replaced
    lost: str | None  # what said that the device was lost


@dataclass(frozen=True, slots=True)
class SamplingCost:
    """The cost of watching a run."""

    samples: int  # taken; the curve may keep fewer
    failures: int  # samples in which some counter that had worked before gave nothing
    total_ns: int  # in samples, together; the longest one is next
    longest_ns: int
    ends_ns: int  # before and after the run: opening, and the list of processes
    pauses: int  # times that sampling was paused, and for how long
    paused_ns: int

    def __str__(self) -> str:
        mean = self.total_ns / max(self.samples, 1)
        return (
            f"{self.samples} samples of {mean / 1e3:.0f} us on average and {self.longest_ns / 1e3:.0f} us at"
            f" most, {self.total_ns / 1e6:.1f} ms in all, and {self.ends_ns / 1e6:.1f} ms before and after"
        )


@dataclass(frozen=True, slots=True)
class NvmlRecord:
    """A run as NVML reported it, which ``msgspec.json.encode`` can write."""

    device: DeviceIdentity | None  # None where it could not be found, and reason says why
    reason: str | None  # why nothing could be watched
    seconds: float  # from start to end, or to now
    used_means: UsedMeans  # what the driver's ``used`` was found to be on this machine
    total: Reading  # bytes of the device, and of those the driver's own
    reserved: Reading
    used_start: Reading  # bytes in use on the whole device, by all processes
    used_end: Reading
    used_peak: Reading  # the highest sample: what rises and falls between two samples is not seen
    process_start: Reading  # bytes that the driver attributes to this process
    process_end: Reading
    utilization_mean: Reading  # per cent of the time in which a kernel ran, over the samples
    utilization_peak: Reading
    health: Health
    invalid: tuple[str, ...]  # why figures of this run should not be trusted; empty where nothing was seen
    unwatched: tuple[str, ...]  # what of that could not be watched, with the reasons
    cost: SamplingCost
    curve: MemoryCurve

    @property
    def is_valid(self) -> bool | None:
        """Whether nothing made the run invalid; ``None`` if some counter was not watched."""
        if self.invalid:
            return False
        return None if self.unwatched else True

    def __str__(self) -> str:
        if self.device is None:
            return f"not watched: {self.reason}"
        lines = [
            f"{self.device.name} ({self.device.uuid}), driver {self.device.driver}",
            "device memory: "
            + _in_words(
                ("at the start", self.used_start), ("at most", self.used_peak), ("at the end", self.used_end)
            ),
            "this process: "
            + _in_words(("at the start", self.process_start), ("at the end", self.process_end)),
            "utilization: "
            + _in_words(("on average", self.utilization_mean), ("at most", self.utilization_peak)),
            f"watching took {self.cost}; the run, {self.seconds:.2f} s",
        ]
        lines += [f"invalid: {reason}" for reason in self.invalid]
        lines += [f"not watched: {reason}" for reason in self.unwatched]
        return "\n".join(lines)


def _in_words(*readings: tuple[str, Reading]) -> str:
    """Return readings with their times as text, with a common reason only once."""
    first = readings[0][1]
    if all(reading == first and not reading.is_known for _, reading in readings):
        return str(first)
    return ", ".join(f"{reading} {when}" for when, reading in readings)


class CurveRecorder:
    """A curve of at most so many evenly spread samples, which when full drops every second one.

    Cost: 16 bytes a kept sample, 256 KiB at most by default; at 10 Hz that is half an hour in full.
    """

    def __init__(self, most: int = 16384) -> None:
        if most < 2 or most % 2:
            raise ValueError(f"most must be even and at least 2, got {most}; 16384 is the default")
        self._most = most
        self._stride = 1
        self._taken = 0
        self._times = array("d")
        self._used = array("Q")
        self.first: int | None = None
        self.last: int | None = None

    def add(self, seconds: float, used: int) -> None:
        """Add a sample: bytes in use, and seconds since the start, which must not decrease."""
        self.first = used if self.first is None else self.first
        self.last = used
        if self._taken % self._stride == 0:
            if len(self._times) == self._most:
                self._times, self._used = self._times[::2], self._used[::2]
                self._stride *= 2
            self._times.append(seconds)
            self._used.append(used)
        self._taken += 1

    def curve(self) -> MemoryCurve:
        """Return the samples that are kept."""
        return MemoryCurve(tuple(self._times), tuple(self._used))


_PATIENCE = 3  # failures in a row after which a counter is not asked again


class Channel:
    """A value read at every sample, until reading it fails for good."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.reason: str | None = None
        self.failures = 0
        self.is_open = True
        self._count = 0
        self._sum = 0
        self._peak = 0
        self._in_a_row = 0

    def take(self, answer: int | Unreadable) -> None:
        """Record a reading, or the reason for its absence."""
        if isinstance(answer, int):
            self.add(answer)
        else:
            self.fail(answer)

    def add(self, value: int) -> None:
        """Take a sample."""
        self._count += 1
        self._sum += value
        self._peak = max(self._peak, value)
        self._in_a_row = 0

    def fail(self, reason: Unreadable) -> None:
        """Record a reason; a channel that never worked or keeps failing is closed."""
        self.reason = str(reason)
        self.failures += self._count > 0
        self._in_a_row += 1
        self.is_open = self._count > 0 and self._in_a_row < _PATIENCE

    @property
    def is_failing(self) -> bool:
        """Whether the last reading failed."""
        return self._in_a_row > 0

    def mean(self) -> Reading:
        """Return the mean of the samples, rounded."""
        if not self._count:
            return Reading.unknown(self.unit, self.reason or "no sample was taken")
        return Reading(round(self._sum / self._count), self.unit)

    def peak(self) -> Reading:
        """Return the highest sample."""
        return Reading(self._peak, self.unit) if self._count else self.mean()
