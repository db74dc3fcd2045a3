"""The results of a campaign so far, whatever its length, in memory that does not grow with it.

Whether memory grows with the operations says a robust slope (`pymllm.instrument.slope`), shared by the
processes: a run that was large, or a collection that came late, moves it little. Its spread is the interval
that has the true slope with a probability of 95 %.
"""

from __future__ import annotations

import enum
import itertools
import json
import math
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from pymllm.conformance.documents import DriftRow, FailureRow, SoakedAdapter
from pymllm.conformance.soak.ledger import CampaignHeader, Failure, Memory, Place, RunRecord
from pymllm.history.files import Config
from pymllm.instrument.slope import MOST_SAMPLES, estimate_slope
from pymllm.oracle.coverage import expected_names
from pymllm.oracle.laws import laws_of

MILLION = 1_000_000
_WARMING_UP = 0.25  # of the samples of a process: modules, classes and caches come with the first runs
_SAMPLES_MOST, _LONG = 100_000, 512  # samples of all processes, and of one of which some may go
_PAIRS_MOST = 2_000_000  # of samples, over all processes
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
    """A way to look at memory."""

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
"""What is in use is held to little: one object for every twenty operations, and a byte of everything else for
each. What the process has from the system may grow by sixteen: arenas stay for a few objects in them. Over 10
million operations sound classes went up by 1,066 blocks and 8.8 MiB of arenas in a million."""
_COURSES = ("operations", "is_first", *(measure.name for measure in MEASURES))


@dataclass(frozen=True, slots=True)
class Drift:
    """How one measure changes with operations."""

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
        """Return what a document says of it."""
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
    """The samples of a campaign, by process; in few bytes, so as not to be a leak themselves.

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
        """The processes that are looked at, in order."""
        return sorted(self._of)

    def samples(self, process: str, name: str) -> list[tuple[int, int]]:
        """Return operations and a measure of `Memory` after them, in their order."""
        course = self._of[process]
        return sorted(zip(map(int, course["operations"]), map(int, course[name]), strict=True))

    def add(self, memory: Memory) -> None:
        """Take a sample of a process, in whichever order."""
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
        """Return the drift of each measure that was taken."""
        ordered = {name: _ordered(self._of[name]) for name in self.processes}
        return tuple(
            estimate_drift(measure, {name: _risen(course, measure.name) for name, course in ordered.items()})
            for measure in MEASURES
            if not ordered or all(all(course[measure.name]) for course in ordered.values())
        )


def _ordered(course: Mapping[str, array[float]]) -> dict[str, array[float]]:
    """Return a course by operations: lines of a ledger come in the order of runs."""
    operations = course["operations"]
    order = sorted(range(len(operations)), key=operations.__getitem__)
    return {name: array("d", [numbers[at] for at in order]) for name, numbers in course.items()}


def _risen(course: Mapping[str, Sequence[float]], name: str) -> tuple[list[float], list[float]]:
    """Return operations, and what the floor had risen by after them, without first runs."""
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
    """Estimate a slope over series by process: operations, and what was measured after them."""
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


_SHARES = ("adapter", "judge", "walks", "again", "driver")


def expected_at(place: Place) -> frozenset[str]:
    """Return the coverage goals that a long run at a place must reach."""
    is_driven = place.machine == "LifecycleMachine"
    return expected_names(place.kind, place.config, place.capabilities, of_engine=is_driven)


@dataclass(slots=True)
class FailureTotals:
    """A law that runs of one adapter broke, or a problem with it."""

    first: RunRecord  # the run that met it first
    runs: int = 0  # how many met it

    def row(self) -> FailureRow:
        """Return what a document says of it."""
        first = self.first
        assert first.failure is not None  # it is counted as one
        return FailureRow(
            runs=self.runs,
            source=first.version,
            config=first.config,
            machine=first.machine,
            seed=first.seed,
            limit=first.limit,
            failure=first.failure,
            file=first.file,
            short=first.short,
        )


@dataclass(slots=True)
class AdapterTotals:
    """What is known of one adapter."""

    name: str  # name, kind: of the adapter
    kind: str
    # planned, played: places of the campaigns, a machine on a configuration each, and those where runs were
    # played
    planned: set[str] = field(default_factory=set)
    expected: frozenset[str] = frozenset()  # coverage goals that they must reach
    laws: frozenset[str] = frozenset()  # that can be tested at some place
    played: set[str] = field(default_factory=set)
    runs: int = 0
    operations: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    cpu_by: Counter[str] = field(default_factory=Counter)
    exercised: Counter[str] = field(default_factory=Counter)
    audited: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    failures: dict[str, FailureTotals] = field(default_factory=dict)

    @property
    def places(self) -> int:
        """How many places there are; those that campaigns have in common count once."""
        return len(self.planned)

    @property
    def missing(self) -> list[str]:
        """Coverage goals that no run has reached, in order."""
        return sorted(self.expected - set(self.reached))

    @property
    def untested(self) -> list[str]:
        """Laws that no run has tested, in order."""
        return sorted(self.laws - set(+self.exercised))

    @property
    def operations_per_second(self) -> float:
        """Operations for each second of processor time, everything included; 0 where nothing ran."""
        return self.operations / self.cpu if self.cpu else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """What took the processor's time, as parts of 1."""
        return {name: self.cpu_by[name] / self.cpu if self.cpu else 0.0 for name in _SHARES}

    def add(self, record: RunRecord) -> None:
        """Count a run."""
        self.played.add(_place(record.config, record.machine))
        self.runs += 1
        self.operations += record.operations
        self.seconds += record.seconds
        self.cpu += record.cpu
        self.cpu_by.update({name: getattr(record.shares, name) for name in _SHARES})
        self.exercised.update(record.exercised)
        self.audited.update(record.audited)
        self.reached.update(record.reached)
        self.known.update(record.known)
        if record.failure is not None:
            about = self.failures.setdefault(record.failure.law or "", FailureTotals(record))
            about.runs += 1

    def row(self) -> SoakedAdapter:
        """Return what a document says of it."""
        return SoakedAdapter(
            name=self.name,
            kind=self.kind,
            places=self.places,
            places_played=len(self.played),
            runs=self.runs,
            operations=self.operations,
            seconds=round(self.seconds, 3),
            cpu_seconds=round(self.cpu, 3),
            operations_per_cpu_second=round(self.operations_per_second, 1),
            shares={name: round(share, 4) for name, share in self.shares.items()},
            tests=dict(sorted(self.exercised.items())),
            walks=dict(sorted(self.audited.items())),
            untested_laws=tuple(self.untested),
            goals=dict(sorted(self.reached.items())),
            missing_goals=tuple(self.missing),
            failures=tuple(it.row() for it in self.failures.values()),
        )


def describe_end(record: RunRecord) -> str:
    """Say in a few words what a run did, so that two that did something else differ."""
    failure = record.failure
    if failure is None:
        return f"digest {record.digest}"
    return f"digest {record.digest}; {failure.law or 'an error'} at step {failure.step}: {failure.message}"


def _place(config: Config, machine: str) -> str:
    return json.dumps([config, machine])


class Totals:
    """Sums over all runs of a campaign, or of several, by adapter, and the memory of those that played."""

    def __init__(self, headers: Iterable[CampaignHeader] = ()) -> None:
        self.adapters: dict[str, AdapterTotals] = {}
        self.memory = MemoryCourse()
        for header in headers:
            self.expect(header)

    def expect(self, header: CampaignHeader) -> None:
        """Take note of where a campaign plays, and what it must reach there."""
        for place in header.places:
            known = self._of(place.adapter, place.kind)
            known.planned.add(_place(place.config, place.machine))
            known.expected |= expected_at(place)
            known.laws |= {
                law.id
                for law in laws_of(place.kind)
                if law.applies_to(place.config, place.capabilities, place.kind)
            }

    def add(self, record: RunRecord) -> None:
        """Count a run."""
        self._of(record.adapter, record.kind).add(record)
        self.memory.add(record.memory)

    def differ(self, first: RunRecord, second: RunRecord, runs: int) -> None:
        """Count runs of an adapter that did not do the same again, of which one is given (X3)."""
        adapter = self._of(first.adapter, first.kind)
        message = "the same run, played once more"
        failure = Failure("X3", message, describe_end(first), describe_end(second), first.operations)
        record = structs.replace(first, failure=failure, file=None, short=None)
        adapter.failures.setdefault("X3", FailureTotals(record)).runs += runs

    def _of(self, adapter: str, kind: str) -> AdapterTotals:
        return self.adapters.setdefault(adapter, AdapterTotals(adapter, kind))

    @property
    def runs(self) -> int:
        """Runs that ended."""
        return sum(it.runs for it in self.adapters.values())

    @property
    def operations(self) -> int:
        """Operations carried out in them."""
        return sum(it.operations for it in self.adapters.values())

    @property
    def cpu(self) -> float:
        """Seconds of processor time that they took."""
        return sum(it.cpu for it in self.adapters.values())

    @property
    def has_violations(self) -> bool:
        """Whether a law was broken."""
        return any(law for it in self.adapters.values() for law in it.failures)

    @property
    def has_problems(self) -> bool:
        """Whether an adapter could not be asked."""
        return any("" in it.failures for it in self.adapters.values())
