"""How much GPU memory a test used, by NVML and torch's allocator, and whether that was too much."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self

from pymllm.instrument.nvml import NvmlTracker
from pymllm.instrument.nvml_counters import DeviceUse, NvmlMemory
from pymllm.instrument.nvml_record import MemoryCurve, NvmlRecord
from pymllm.instrument.reading import BYTES, Reading
from pymllm.instrument.torch_memory import AllocatorSource, TorchMemoryRecord, TorchMemoryTracker

_UNITS = {
    "B": 1,
    **{f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": int(10 ** (3 * power)) for power, prefix in enumerate("kMGT", 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_bytes(size: int | str) -> int:
    """Return a number of bytes, given as one or with a unit: ``"2 GiB"``, ``"512MiB"``, ``"1.5 GB"``."""
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"size must be a number of bytes or a text such as '2 GiB', got {size!r}")
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"size must be at least 0, got {size}")
        return size
    found = _SIZE.fullmatch(size.strip())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"size is {size!r}; write a number and one of {', '.join(_UNITS)}, such as '2 GiB'")
    return round(float(found[1]) * _UNITS[found[2]])


class LimitOutcome(enum.Enum):
    """Whether a limit was kept, as far as that is known."""

    KEPT = "kept"
    EXCEEDED = "exceeded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """Whether a test stayed within its limit.

    ``found``: at least so many bytes on top of what was in use before. ``by``: who measured them.
    """

    limit: int
    outcome: LimitOutcome
    found: Reading
    by: str

    def __str__(self) -> str:
        limit = Reading(self.limit, BYTES)
        if self.outcome is LimitOutcome.UNKNOWN:
            return f"whether the limit of {limit} was kept is unknown: {self.found.reason}"
        return f"{self.found} on top of what was in use before; the limit is {limit} ({self.by})"


@dataclass(frozen=True, slots=True)
class GpuMemoryRecord:
    """A test as NVML and torch's allocator saw it."""

    nvml: NvmlRecord  # the device
    torch: TorchMemoryRecord  # the allocator of this process
    own_start: Reading  # bytes that the driver attributes to this process
    own_end: Reading
    others: Reading  # how many other processes used the device, before or after: the higher number

    @property
    def tensors(self) -> Reading:
        """Bytes of tensors at the peak, above those before; exact, and of this process alone."""
        if self.torch.allocated_peak.is_known and not self.torch.start.allocated.is_known:
            return self.torch.allocated_peak  # CUDA came into use within the test: nothing was there before
        return self.torch.allocated_peak.minus(self.torch.start.allocated)

    @property
    def device(self) -> Reading:
        """Bytes in use on the whole device at the highest sample, above those before; by anybody."""
        return self.nvml.used_peak.minus(self.nvml.used_start)

    @property
    def beside(self) -> Reading:
        """Bytes that this process took beside torch's allocator; unknown unless it is alone on the device.

        A lower bound, as both peaks may lie at different times: what the allocator reserved when the device
        was fullest is at most its own peak.
        """
        if not self.torch.start.reserved.is_known:
            return Reading.unknown(BYTES, "torch's allocator was not in use before")
        alone = self._alone(self.device)
        return alone.minus(self.torch.reserved_peak.minus(self.torch.start.reserved))

    def judge(self, limit: int, whole_device: bool = False) -> LimitVerdict:
        """Say whether the memory used on top of what was in use before stayed within a limit, in bytes.

        Where torch's allocator tells, its tensors are judged, nothing else: what is `beside` it comes with
        whichever test is the first to launch a kernel or to open a library. Elsewhere the device is asked,
        and counts only if this process is alone on it, so that a test which kept its limit is never accused;
        with ``whole_device`` everything counts.
        """
        if whole_device:
            found = [(self.device, "the whole device, by NVML")]
        elif self.tensors.is_known:
            found = [(self.tensors, "tensors, by torch's allocator")]
        else:
            found = [
                (self._alone(self.device), "this process alone on the device, by NVML"),
                (self.own_end.minus(self.own_start), "this process, by NVML, after it ran"),
            ]
        known = [(reading.value, reading, by) for reading, by in found if reading.value is not None]
        if not known:
            asked = [*([] if whole_device else [self.tensors]), found[0][0]]
            why = Reading.unknown(BYTES, "; ".join(dict.fromkeys(str(it.reason) for it in asked)))
            return LimitVerdict(limit, LimitOutcome.UNKNOWN, why, "nobody")
        value, reading, by = max(known, key=lambda it: it[0])
        outcome = LimitOutcome.EXCEEDED if value > limit else LimitOutcome.KEPT
        if outcome is LimitOutcome.KEPT and by.endswith("after it ran"):
            why = Reading.unknown(BYTES, f"{reading} more are in use after it, and the peak was not measured")
            return LimitVerdict(limit, LimitOutcome.UNKNOWN, why, "nobody")
        return LimitVerdict(limit, outcome, reading, by)

    def _alone(self, reading: Reading) -> Reading:
        """Return a reading of the whole device, known only if no other process uses the device."""
        if not reading.is_known or self.others.value == 0:
            return reading
        others = (
            f"{self.others.value} other processes use the device, too"
            if self.others.is_known
            else str(self.others.reason)
        )
        return Reading.unknown(BYTES, f"the memory in use may not be this process's: {others}")


class GpuMemory:
    """Watches a device, as `NvmlTracker` takes it, and torch's allocator while a test runs."""

    def __init__(
        self,
        device: Any = None,
        *,
        hz: float = 10.0,
        source: AllocatorSource | None = None,
        use: Callable[[], DeviceUse] | None = None,
    ) -> None:
        self._nvml = NvmlTracker(device, hz=hz)
        self._torch = TorchMemoryTracker(None if isinstance(device, str) else device, source=source)
        self._processes = NvmlMemory(device)
        self._use = self._processes.read if use is None else use
        self._before = self._after = _NOT_READ

    def __enter__(self) -> Self:
        self._before = self._use()
        self._after = _NOT_READ
        self._torch.__enter__()
        self._nvml.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._nvml.__exit__(*error)
        self._torch.__exit__(*error)
        self._after = self._use()
        self._processes.close()

    def paused(self) -> AbstractContextManager[None]:
        """Take no sample inside: for regions that are timed."""
        return self._nvml.paused()

    @property
    def curve(self) -> MemoryCurve:
        """Device memory over time, so far."""
        return self._nvml.curve

    def summary(self) -> GpuMemoryRecord:
        """Return what was seen so far."""
        others = [it.others for it in (self._before, self._after)]
        unknown = next((it for it in others if not it.is_known), None)
        return GpuMemoryRecord(
            nvml=self._nvml.summary(),
            torch=self._torch.summary(),
            own_start=self._before.own,
            own_end=self._after.own,
            others=unknown or max(others, key=lambda it: it.value or 0),
        )


_NOT_READ = DeviceUse(
    *(Reading.unknown(unit, "the test is not over") for unit in (BYTES, BYTES, "processes"))
)
