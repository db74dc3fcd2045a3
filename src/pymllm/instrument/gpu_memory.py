"""The GPU memory of a test, from NVML and torch's allocator, with limits and text."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from pymllm.instrument.nvml import NvmlTracker
from pymllm.instrument.nvml_counters import DeviceUse, NvmlMemory
from pymllm.instrument.nvml_device import visible_devices
from pymllm.instrument.nvml_record import MemoryCurve, NvmlRecord
from pymllm.instrument.reading import BYTES, Reading
from pymllm.instrument.torch_memory import (
    AllocatorSource,
    TorchAllocator,
    TorchMemoryRecord,
    TorchMemoryTracker,
)

_UNITS = {
    "B": 1,
    **{f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": int(10 ** (3 * power)) for power, prefix in enumerate("kMGT", 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_bytes(size: int | str) -> int:
    """Return a number of bytes, given as a number or as text with a unit: ``"2 GiB"``, ``"1.5 GB"``."""
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
    """The result of comparing a test's memory with its limit."""

    KEPT = "kept"
    EXCEEDED = "exceeded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """The comparison of a test's memory with its limit.

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
    """The GPU memory of a test, as reported by NVML and by torch's allocator."""

    nvml: NvmlRecord  # the device
    torch: TorchMemoryRecord  # the allocator of this process
    own_start: Reading  # bytes that the driver attributes to this process
    own_end: Reading
    others: Reading  # how many other processes used the device, before or after: the higher number
    index: int | None = None  # CUDA's of the device, where several were watched

    @property
    def tensors(self) -> Reading:
        """The bytes of this process's tensors at the peak, beyond those before; exact."""
        if self.torch.allocated_peak.is_known and not self.torch.start.allocated.is_known:
            return self.torch.allocated_peak  # CUDA came into use within the test: nothing was there before
        return self.torch.allocated_peak.minus(self.torch.start.allocated)

    @property
    def device(self) -> Reading:
        """The bytes in use on the whole device at the highest sample, beyond those before the test."""
        return self.nvml.used_peak.minus(self.nvml.used_start)

    @property
    def beside(self) -> Reading:
        """The bytes of this process outside torch's allocator; unknown unless it is alone on the device.

        A lower bound, as both peaks may lie at different times: what the allocator reserved when the device
        was fullest is at most its own peak.
        """
        if not self.torch.start.reserved.is_known:
            return Reading.unknown(BYTES, "torch's allocator was not in use before")
        alone = self._alone(self.device)
        return alone.minus(self.torch.reserved_peak.minus(self.torch.start.reserved))

    @property
    def is_touched(self) -> bool:
        """Whether the test used memory of the device, or this process is listed on it."""
        return bool(self.tensors.value) or self.own_end.is_known

    @property
    def added(self) -> int:
        """The bytes that the test added at its peak, if known."""
        return self.tensors.value or self.device.value or 0

    def judge(self, limit: int, whole_device: bool = False) -> LimitVerdict:
        """Compare the growth of used memory since the start of a test with a limit in bytes.

        Where torch's allocator tells, its tensors are judged, nothing else: what is `beside` it comes with
        whichever test is the first to launch a kernel or to open a library. Elsewhere the device is asked,
        and counts only if this process is alone on it, so that a test which kept its limit is never accused;
        with ``whole_device`` everything counts. An allocator that is in use and counts nothing leaves the
        limit unknown: the device also has the context, and pools that are larger than what is in them.
        """
        if whole_device:
            found = [(self.device, "the whole device, by NVML")]
        elif self.tensors.is_known or self.torch.backend is not None:
            found = [(self.tensors, "tensors, by torch's allocator")]
        else:
            found = [
                (self._alone(self.device), "this process alone on the device, by NVML"),
                (self.own_end.minus(self.own_start), "this process, by NVML, after it ran"),
            ]
        known = [(reading.value, reading, by) for reading, by in found if reading.value is not None]
        if not known:
            asked = [*([] if whole_device else [self.tensors]), *(reading for reading, _ in found[:1])]
            why = Reading.unknown(BYTES, "; ".join(dict.fromkeys(str(it.reason) for it in asked)))
            return LimitVerdict(limit, LimitOutcome.UNKNOWN, why, "nobody")
        value, reading, by = max(known, key=lambda it: it[0])
        outcome = LimitOutcome.EXCEEDED if value > limit else LimitOutcome.KEPT
        if outcome is LimitOutcome.KEPT and by.endswith("after it ran"):
            why = Reading.unknown(BYTES, f"{reading} more are in use after it, and the peak was not measured")
            return LimitVerdict(limit, LimitOutcome.UNKNOWN, why, "nobody")
        where = "" if self.index is None else f", on cuda:{self.index}"
        return LimitVerdict(limit, outcome, reading, by + where)

    def _alone(self, reading: Reading) -> Reading:
        """Return a reading of the whole device, which is known only if no other process uses it."""
        if not reading.is_known or self.others.value == 0:
            return reading
        others = (
            f"{self.others.value} other processes use the device, too"
            if self.others.is_known
            else str(self.others.reason)
        )
        return Reading.unknown(BYTES, f"the memory in use may not be this process's: {others}")


class _Watch:
    """A watch on a device and on torch's allocator for it."""

    def __init__(
        self,
        device: Any,
        hz: float,
        source: AllocatorSource | None,
        use: Callable[[], DeviceUse] | None,
        index: int | None = None,
    ) -> None:
        self._index = index
        self._nvml = NvmlTracker(device, hz=hz)
        self._source = source or TorchAllocator(device)
        self._torch = TorchMemoryTracker(source=self._source)
        self._processes = NvmlMemory(device)
        self._use = self._processes.read if use is None else use
        self._before = self._after = _NOT_READ

    def enter(self) -> None:
        """Start watching."""
        self._settle()  # or whichever test is the first to multiply pays for the workspace of cuBLAS
        self._before = self._use()
        self._after = _NOT_READ
        self._torch.__enter__()
        self._nvml.__enter__()

    def leave(self) -> None:
        """Stop watching, and take the last readings."""
        self._nvml.__exit__()
        self._torch.__exit__()
        self._after = self._use()
        self._processes.close()
        self._settle()

    def _settle(self) -> None:
        if self._source.is_in_use():
            with suppress(RuntimeError):  # of a device that has failed; whoever waits for it next is told
                self._source.settle()

    def paused(self) -> AbstractContextManager[None]:
        """Take no samples in a ``with`` block, for regions that are timed."""
        return self._nvml.paused()

    @property
    def curve(self) -> MemoryCurve:
        """The memory of the device over time, so far."""
        return self._nvml.curve

    def summary(self) -> GpuMemoryRecord:
        """Return the record of the run so far."""
        others = [it.others for it in (self._before, self._after)]
        unknown = next((it for it in others if not it.is_known), None)
        return GpuMemoryRecord(
            nvml=self._nvml.summary(),
            torch=self._torch.summary(),
            own_start=self._before.own,
            own_end=self._after.own,
            others=unknown or max(others, key=lambda it: it.value or 0),
            index=self._index,
        )


class GpuMemory:
    """A watch on one device, or on each that this process may use, during a test."""

    def __init__(
        self,
        device: Any = None,
        *,
        hz: float = 10.0,
        source: AllocatorSource | None = None,
        use: Callable[[], DeviceUse] | None = None,
    ) -> None:
        one = device is not None or source is not None or use is not None
        indices = [] if one else visible_devices()
        if len(indices) > 1:
            self._watches = [_Watch(index, hz, None, None, index) for index in indices]
        else:
            self._watches = [_Watch(device, hz, source, use)]

    def __enter__(self) -> Self:
        for watch in self._watches:
            watch.enter()
        return self

    def __exit__(self, *error: object) -> None:
        for watch in reversed(self._watches):
            watch.leave()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take no samples in a ``with`` block, for regions that are timed."""
        with ExitStack() as stack:
            for watch in self._watches:
                stack.enter_context(watch.paused())
            yield

    @property
    def curve(self) -> MemoryCurve:
        """The memory over time of the device that the test used most, so far."""
        return self._watches[0].curve if len(self._watches) == 1 else self.summary().nvml.curve

    def summary(self) -> GpuMemoryRecord:
        """Return the record so far of the device that the test used most, or else of the current one."""
        return max(self.touched(), key=lambda it: it.added)

    def touched(self) -> list[GpuMemoryRecord]:
        """Return the record of each device that the test used, or else of the current one."""
        records = [watch.summary() for watch in self._watches]
        return [it for it in records if it.is_touched] or records[:1]

    def judge(self, limit: int, whole_device: bool = False) -> LimitVerdict:
        """Compare memory with a limit in bytes on each device used; the worst verdict counts."""
        verdicts = [it.judge(limit, whole_device) for it in self.touched()]
        return max(verdicts, key=lambda it: (_WORSE.index(it.outcome), it.found.value or 0))


_WORSE = (LimitOutcome.KEPT, LimitOutcome.UNKNOWN, LimitOutcome.EXCEEDED)


_NOT_READ = DeviceUse(
    *(Reading.unknown(unit, "the test is not over") for unit in (BYTES, BYTES, "processes"))
)


SCHEMA = "pymllm.gpu-memory"
VERSION = 1

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_POINTS = 240  # of a curve in a log


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Return values in time order as a line of bars, each for the maximum of its interval."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [len(values) * place // count for place in range(count + 1)]
    highest = [max(values[start:stop]) for start, stop in itertools.pairwise(edges)]
    low, span = min(values), max(values) - min(values)
    steps = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / span * steps) if span else 0] for value in highest)


def curve_text(curve: MemoryCurve) -> str:
    """Return a curve as text with its numbers, or a note that there is none."""
    if not len(curve):
        return "no sample of the device's memory"
    peak = max(range(len(curve)), key=curve.used.__getitem__)
    low, high = (Reading(value, BYTES) for value in (min(curve.used), curve.used[peak]))
    return (
        f"{sparkline(curve.used)}\n"
        f"{low} to {high}, highest after {curve.times[peak]:.2f} s; {len(curve)} samples in"
        f" {curve.times[-1]:.2f} s"
    )


def record_text(record: GpuMemoryRecord, verdict: LimitVerdict | None = None) -> str:
    """Return a few lines of text about a test's memory."""
    lines = [] if verdict is None else [str(verdict)]
    if record.nvml.device is None:
        lines.append(f"device: not watched: {record.nvml.reason}")
    else:
        lines += [curve_text(record.nvml.curve), str(record.nvml)]
    torch = record.torch
    if torch.allocated_peak.is_known:
        lines += [
            f"tensors: {torch.start.allocated} before, {torch.allocated_peak} at most,"
            f" {torch.end.allocated} after",
            f"torch's allocator reserved: {torch.start.reserved} before, {torch.reserved_peak} at most,"
            f" {torch.end.reserved} after",
            f"retries: {torch.alloc_retries}; out of memory: {torch.ooms}",
            f"taken beside the allocator, at least: {record.beside}",
        ]
    else:
        lines.append(f"torch's allocator: not watched: {torch.allocated_peak.reason}")
    return "\n".join(lines)


def make_line(
    test: str,
    worker: str,
    record: GpuMemoryRecord,
    verdict: LimitVerdict | None,
    untouched: str | None = None,
) -> str:
    """Return a line of JSON about a test, for a log.

    The worker is pytest-xdist's, or ``"main"``; ``untouched`` says how it is known that a test which is
    marked for a GPU touched none. Of a long curve, evenly spread samples are kept, the last one
    always.
    """
    plain = dataclasses.asdict(record)
    plain["nvml"]["curve"] = {key: _thinned(values) for key, values in plain["nvml"]["curve"].items()}
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "test": test,
        "worker": worker,
        "limit": None if verdict is None else dataclasses.asdict(verdict),
        "untouched": untouched,
        **plain,
    }
    return json.dumps(document, default=_plain)


def gpu_memory_schema() -> dict[str, Any]:
    """Return the JSON schema of a line of the log."""
    from pymllm.history.schema import schema_of  # a log is written without msgspec

    record = schema_of(GpuMemoryRecord)
    first: dict[str, Any] = {
        "schema": {"const": SCHEMA},
        "version": {"const": VERSION},
        "test": {"type": "string"},
        "worker": {"type": "string"},
        "limit": {"anyOf": [schema_of(LimitVerdict), {"type": "null"}]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of the log of pytest --gpu-memory-log",
        **record,
        "properties": {**first, "untouched": {"type": ["string", "null"]}, **record["properties"]},
        "required": [*first, *record["required"]],
    }


def _thinned(values: Sequence[float]) -> list[float]:
    stride = -(-len(values) // _POINTS) or 1
    return list(values[::-1][::stride])[::-1]


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{value!r} has no place in a log")
