"""Does memory grow with the number of operations? A robust slope with its spread, and what it says.

The slope is a robust one (`pymllm.instrument.slope`), shared by the processes: a run that was large, or a
collection that came late, moves it little. The spread is the interval that has the true slope with a
probability of 95 %.
"""

from __future__ import annotations

import enum
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pymllm.conformance.soak.records import Memory
from pymllm.instrument.slope import estimate_slope

__all__ = ["MEASURES", "Drift", "DriftVerdict", "MemoryCourse", "estimate_drift"]

MILLION = 1_000_000
_WARMING_UP = 0.25  # of the samples of a process: modules, classes and caches come with the first runs
_FEWEST = 8  # samples after that, over all processes


class DriftVerdict(enum.Enum):
    """What the samples say."""

    FLAT = "flat"
    """Even the upper end of the spread is below the bound."""
    GROWS = "grows"
    """Even the lower end of the spread is above the bound, and what has grown is more than noise."""
    TOO_SHORT = "too short to tell"
    """Neither, or there are too few samples."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A way to look at memory.

    Parameters
    ----------
    name, unit : str
        Field of `Memory`, and what it counts.
    bound : float
        Growth per million operations that is a leak,
    noise : float
        but not before it adds up to this.
    """

    name: str
    unit: str
    bound: float
    noise: float


MEASURES: tuple[Measure, ...] = (
    Measure("uss", "bytes", float(1 << 20), float(8 << 20)),
    Measure("rss", "bytes", float(4 << 20), float(16 << 20)),
    Measure("blocks", "blocks", 50_000.0, 5_000.0),
)
"""What the process shares with nobody may grow by a byte per operation and is called flat, its resident
memory, which has more noise, by four; the objects of Python by one for every twenty operations. Over
100,000 operations sound classes went up and down by 2 MiB and 1,000 blocks."""
_COURSES = ("operations", *(measure.name for measure in MEASURES))


@dataclass(frozen=True, slots=True)
class Drift:
    """How one measure changes with operations.

    Parameters
    ----------
    measure, unit : str
        What was measured: ``uss``, ``rss`` or ``blocks``.
    slope, low, high : float or None
        Units per million operations, and the ends of its spread; ``None`` where there are too few samples
        to tell.
    bound : float
        Growth above it is a leak.
    samples, processes : int
        Looked at, after those of the warming up were left out.
    verdict : DriftVerdict
        What it says.
    """

    measure: str
    unit: str
    slope: float | None
    low: float | None
    high: float | None
    bound: float
    samples: int
    processes: int
    verdict: DriftVerdict


class MemoryCourse:
    """The samples of a campaign, by process; in few bytes, so as not to be a leak themselves.

    What a process has grown by in its first run at a place is left out, with the operations of that run:
    modules and classes come once. Where such a run left memory behind that went later, the slope is too low.

    Attributes
    ----------
    peak : int
        The largest resident memory of any process, in bytes.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._of: dict[str, dict[str, array[float]]] = {}
        self._last: dict[str, Memory] = {}

    def add(self, memory: Memory) -> None:
        """Take a sample, one behind the other for each process."""
        self.peak = max(self.peak, memory.rss)
        before = self._last.get(memory.process)
        self._last[memory.process] = memory
        if not memory.process or before is None or memory.is_first:
            return
        course = self._of.setdefault(memory.process, {name: array("d") for name in _COURSES})
        for name, numbers in course.items():
            grown = getattr(memory, name) - getattr(before, name)
            numbers.append((numbers[-1] if numbers else 0) + grown)

    def estimate(self) -> tuple[Drift, ...]:
        """Return the drift of each measure."""
        return tuple(
            estimate_drift(
                measure, {name: (it["operations"], it[measure.name]) for name, it in self._of.items()}
            )
            for measure in MEASURES
        )


def estimate_drift(measure: Measure, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Drift:
    """Estimate the slope of some series of samples.

    Parameters
    ----------
    measure : Measure
        Of `MEASURES`.
    series : mapping
        By process: operations, and what was measured after them.
    """
    settled = [_settled(operations, values) for operations, values in series.values()]
    settled = [points for points in settled if len(points) >= 3]
    found = estimate_slope(settled)
    samples, processes = found.samples if found else sum(map(len, settled)), len(settled)
    if found is None or samples < _FEWEST:
        none = None, None, None
        return Drift(
            measure.name, measure.unit, *none, measure.bound, samples, processes, DriftVerdict.TOO_SHORT
        )
    slope, low, high = (value * MILLION for value in (found.value, found.low, found.high))
    span = max(points[-1][0] - points[0][0] for points in settled)
    verdict = (
        DriftVerdict.GROWS
        if low > measure.bound and low * span / MILLION > measure.noise
        else DriftVerdict.FLAT
        if high < measure.bound
        else DriftVerdict.TOO_SHORT
    )
    return Drift(
        measure.name,
        measure.unit,
        slope,
        low if math.isfinite(low) else None,
        high if math.isfinite(high) else None,
        measure.bound,
        samples,
        processes,
        verdict,
    )


def _settled(operations: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Leave out the warming up."""
    return list(zip(operations, values, strict=True))[int(len(operations) * _WARMING_UP) :]
