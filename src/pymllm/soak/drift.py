"""The estimate of whether memory grows with a campaign's operations, made in a fixed amount of memory.

That says a robust slope (`pymllm.instrument.slope`), shared by the processes: a run that was large, or a
collection that came late, moves it little. Its spread is the interval that has the true slope with a
probability of 95 %.
"""

from __future__ import annotations

import enum
import itertools
import math
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pymllm.documents.campaigns import DriftRow
from pymllm.instrument.slope import MOST_SAMPLES, estimate_slope
from pymllm.soak.ledger import Memory

MILLION = 1_000_000
_WARMING_UP = 0.25  # of the samples of a process: modules, classes and caches come with the first runs
_SAMPLES_MOST, _LONG = 100_000, 512  # samples of all processes, and of one of which some may go
_PAIRS_MOST = 2_000_000  # of samples, over all processes
_FEWEST = 8  # samples after that, over all processes


class DriftVerdict(enum.Enum):
    """The verdict on the growth of a measure of memory."""

    FLAT = "flat"
    """Even the upper end of the estimate is below the bound."""
    GROWS = "grows"
    """Even the lower end of the estimate is above the bound, and the growth is more than noise."""
    TOO_SHORT = "too short to tell"
    """The estimate spans the bound, or there are too few samples."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A way to measure memory, with the bounds for its growth."""

    name: str  # name, unit: field of `Memory`, and what it counts
    unit: str
    bound: float  # growth per million operations that is a leak,
    noise: float  # but not before it adds up to this


MEASURES: tuple[Measure, ...] = (
    Measure("blocks", "blocks", 50_000.0, 5_000.0),
    Measure("malloc", "bytes", float(1 << 20), float(8 << 20)),
    Measure("uss", "bytes", float(16 << 20), float(64 << 20)),
    Measure("rss", "bytes", float(16 << 20), float(64 << 20)),
)
"""Memory in use has a low bound: one object for every twenty operations, and a byte of all else for each.
What the process has from the system may grow by sixteen: arenas stay for a few objects in them. Over 10
million operations sound classes went up by 1,066 blocks and 8.8 MiB of arenas in a million."""
_COURSES = ("operations", "is_first", *(measure.name for measure in MEASURES))


@dataclass(frozen=True, slots=True)
class Drift:
    """The growth of one measure per operation."""

    measure: str  # measure, unit: what was measured: ``blocks``, ``malloc``, ``uss`` or ``rss``
    unit: str
    # slope, low, high: units per million operations, and the ends of its spread; ``None`` where there are too
    # few samples to tell
    slope: float | None
    low: float | None
    high: float | None
    bound: float  # growth above it is a leak
    samples: int  # samples, processes: looked at, after those of the warming up were left out
    processes: int
    verdict: DriftVerdict

    def row(self) -> DriftRow:
        """Return the measure's row in a document."""
        slope, low, high = (None if it is None else round(it, 1) for it in (self.slope, self.low, self.high))
        return DriftRow(
            measure=self.measure,
            unit=self.unit,
            slope=slope,
            low=low,
            high=high,
            bound=self.bound,
            samples=self.samples,
            processes=self.processes,
            verdict=self.verdict.value,
        )


class MemoryCourse:
    """The memory samples of a campaign, by process, kept in few bytes so as not to be a leak themselves.

    Looked at is the floor, the least that a process ever has again: what a run leaves behind until the next
    one is no growth. What the floor rises by with the first run of a process at a place is left out, with the
    operations of that run: modules and classes come once. ``peak`` is the largest resident memory of any
    process, in bytes. Of more than ``most`` samples, every second one of long courses goes, and where all are
    short, every second process, by a digest of its name: the same whoever comes first.
    """

    def __init__(self, most: int = _SAMPLES_MOST) -> None:
        self.peak = 0
        self._of: dict[str, dict[str, array[float]]] = {}
        self._most = most
        self._samples = 0
        self._share = 1  # one process in so many is looked at

    @property
    def processes(self) -> list[str]:
        """The ids of the measured processes, in order."""
        return sorted(self._of)

    def samples(self, process: str, name: str) -> list[tuple[int, int]]:
        """Return the numbers of operations, and a measure of `Memory` after each, in order."""
        course = self._of[process]
        return sorted(zip(map(int, course["operations"]), map(int, course[name]), strict=True))

    def add(self, memory: Memory) -> None:
        """Add a sample of a process, in any order."""
        self.peak = max(self.peak, memory.rss)
        if not memory.process or zlib.crc32(memory.process.encode()) % self._share:
            return
        course = self._of.setdefault(memory.process, {name: array("d") for name in _COURSES})
        for name, numbers in course.items():
            numbers.append(getattr(memory, name))
        self._samples += 1
        if self._samples > self._most:
            self._thin()

    def _thin(self) -> None:
        long = [it for it in self._of.values() if len(it["operations"]) > _LONG]
        for course in long:
            ordered = _ordered(course)
            first = ordered["is_first"]
            kept = [at for at in range(len(first)) if first[at] or at % 2]  # what a first run added is known
            for name, numbers in ordered.items():
                course[name] = array("d", [numbers[at] for at in kept])
        if not long:
            self._share *= 2
            gone = [name for name in self._of if zlib.crc32(name.encode()) % self._share]
            for name in gone:
                del self._of[name]
        self._samples = sum(len(it["operations"]) for it in self._of.values())

    def estimate(self) -> tuple[Drift, ...]:
        """Return the growth of each measure that was taken."""
        ordered = {name: _ordered(self._of[name]) for name in self.processes}
        return tuple(
            estimate_drift(measure, {name: _risen(course, measure.name) for name, course in ordered.items()})
            for measure in MEASURES
            if not ordered or all(all(course[measure.name]) for course in ordered.values())
        )


def _ordered(course: Mapping[str, array[float]]) -> dict[str, array[float]]:
    """Return a process's samples in the order of operations, since ledger lines are in the order of runs."""
    operations = course["operations"]
    order = sorted(range(len(operations)), key=operations.__getitem__)
    return {name: array("d", [numbers[at] for at in order]) for name, numbers in course.items()}


def _risen(course: Mapping[str, Sequence[float]], name: str) -> tuple[list[float], list[float]]:
    """Return the numbers of operations, and the rise of the memory floor, without the first runs."""
    spent, risen = [0.0], [0.0]
    # The least of each value and those after it.
    floor = list(itertools.accumulate(reversed(course[name]), min))[::-1]
    operations = course["operations"]
    for at in range(1, len(floor)):
        if not course["is_first"][at]:
            spent.append(spent[-1] + operations[at] - operations[at - 1])
            risen.append(risen[-1] + floor[at] - floor[at - 1])
    return spent[1:], risen[1:]


def estimate_drift(measure: Measure, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Drift:
    """Estimate the growth per operation from each process's samples: operations, and memory after them."""
    points_of = [list(zip(*course, strict=True)) for course in series.values()]
    warm = [points[int(len(points) * _WARMING_UP) :] for points in points_of]
    settled = [points for points in warm if len(points) >= 3]
    # Of many processes fewer samples each: pairs take memory.
    most = min(MOST_SAMPLES, max(_FEWEST, math.isqrt(2 * _PAIRS_MOST // max(len(settled), 1))))
    found = estimate_slope(settled, most=most)
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
