"""What an NVML tracker says after a run: plain frozen data, ready for JSON, in bounded memory."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass

from pymllm.instrument.nvml_device import DeviceIdentity
from pymllm.instrument.reading import Reading


class UsedMeans(enum.Enum):
    """What the driver's ``used`` was found to be; drivers and their manuals disagree."""

    WITH_RESERVED = "with reserved"
    """free + used = total: the driver's own reserve is inside, and was taken away."""
    WITHOUT_RESERVED = "without reserved"
    """free + used + reserved = total: the driver's own reserve is not in it."""
    UNSEPARATED = "unseparated"
    """free + used = total, and the driver does not say how much of it is its own reserve."""
    UNEXPLAINED = "unexplained"
    """The parts do not add up to the total: it is what the driver says."""
    UNKNOWN = "unknown"
    """The device's memory cannot be read."""


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Device memory over time.

    Seconds since the tracker's start, rising, and bytes in use on the whole device then, by anybody.
    """

    times: tuple[float, ...] = ()
    used: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Health:
    """What happened to the device during the run.

    Parameters
    ----------
    slowdowns : tuple of str
        Reasons seen for slower clocks: heat, a power brake, a power cap, in the order of NVML's bits.
    xids : tuple of int
        Numbers of the XID errors that the driver reported, in order.
    ecc_corrected, ecc_uncorrected : Reading
        New memory errors.
    remapped_rows : Reading
        Rows of memory newly replaced.
    lost : str or None
        What said that the device was lost.
    """

    slowdowns: tuple[str, ...]
    xids: tuple[int, ...]
    ecc_corrected: Reading
    ecc_uncorrected: Reading
    remapped_rows: Reading
    lost: str | None


@dataclass(frozen=True, slots=True)
class SamplingCost:
    """What watching cost the run.

    Parameters
    ----------
    samples : int
        Taken; the curve may keep fewer.
    failures : int
        Samples in which some counter that had worked before gave nothing.
    total_ns, longest_ns : int
        Nanoseconds in samples, together and the longest one.
    ends_ns : int
        Nanoseconds that start and end took, before and after the run: opening, and the list of processes.
    pauses : int
        Times that sampling was paused.
    paused_ns : int
        Nanoseconds for which it was.
    """

    samples: int
    failures: int
    total_ns: int
    longest_ns: int
    ends_ns: int
    pauses: int
    paused_ns: int

    def __str__(self) -> str:
        mean = self.total_ns / max(self.samples, 1)
        return (
            f"{self.samples} samples of {mean / 1e3:.0f} us on average and {self.longest_ns / 1e3:.0f} us at"
            f" most, {self.total_ns / 1e6:.1f} ms in all, and {self.ends_ns / 1e6:.1f} ms before and after"
        )


@dataclass(frozen=True, slots=True)
class NvmlRecord:
    """A run as NVML saw it.

    Parameters
    ----------
    device : DeviceIdentity or None
        Of which this speaks; ``None`` where it could not be found, and ``reason`` says why.
    reason : str or None
        Why nothing could be watched.
    seconds : float
        From start to end, or to now.
    used_means : UsedMeans
        What ``used`` was found to be on this machine.
    total, reserved : Reading
        Bytes of the device, and of those the driver's own.
    used_start, used_end, used_peak : Reading
        Bytes in use on the whole device, by anybody. The peak is the highest sample, so a shorter one
        between two samples is not seen.
    process_start, process_end : Reading
        Bytes that the driver attributes to this process.
    utilization_mean, utilization_peak : Reading
        Per cent of the time in which a kernel ran, over the samples.
    health : Health
        What happened to the device.
    invalid : tuple of str
        Why figures of this run should not be trusted; empty where nothing was seen.
    unwatched : tuple of str
        What of that could not be watched, with the reasons.
    cost : SamplingCost
        What watching cost.
    curve : MemoryCurve
        Device memory over time.

    Notes
    -----
    ``msgspec.json.encode(record)`` writes it, and ``dataclasses.asdict`` makes plain containers of it.
    """

    device: DeviceIdentity | None
    reason: str | None
    seconds: float
    used_means: UsedMeans
    total: Reading
    reserved: Reading
    used_start: Reading
    used_end: Reading
    used_peak: Reading
    process_start: Reading
    process_end: Reading
    utilization_mean: Reading
    utilization_peak: Reading
    health: Health
    invalid: tuple[str, ...]
    unwatched: tuple[str, ...]
    cost: SamplingCost
    curve: MemoryCurve

    @property
    def is_valid(self) -> bool | None:
        """Whether nothing spoilt the run: ``None`` where nothing was seen, but something was not watched."""
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
    """Write readings with their times; a reason that all of them share, once."""
    first = readings[0][1]
    if all(reading == first and not reading.is_known for _, reading in readings):
        return str(first)
    return ", ".join(f"{reading} {when}" for when, reading in readings)


class CurveRecorder:
    """Takes samples and keeps at most so many, evenly spread: when full, it drops every second one.

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
        """Take a sample of bytes at seconds since the start, later than those before."""
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
        """Return what is kept."""
        return MemoryCurve(tuple(self._times), tuple(self._used))
