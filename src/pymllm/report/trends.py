"""Figures over time: which figures form one line, and the lines as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, pairwise

from pymllm.documents.campaigns import SoakDocument
from pymllm.documents.curves import CurveDocument
from pymllm.documents.faults import FaultsDocument
from pymllm.documents.replays import ReplayDocument, ReplayRun
from pymllm.documents.searches import VerifyDocument
from pymllm.errors import UsageError
from pymllm.instrument.peer_comparison import PeerComparison
from pymllm.report.documents import AnyDocument, GpuBenchmarksDocument
from pymllm.report.loading import Run, grouped
from pymllm.report.quantities import machine_name, show, show_count, show_time
from pymllm.report.records import Figure, Machine
from pymllm.text_file import escaped


@dataclass(frozen=True, slots=True)
class Point:
    """A figure with a value, and its run."""

    run: Run
    figure: Figure

    @property
    def value(self) -> float:
        """The value of the figure."""
        assert self.figure.value is not None
        return self.figure.value


@dataclass(frozen=True, slots=True)
class Trend:
    """A line over time: figures of one name and unit, from one machine and one version of the code."""

    name: str
    unit: str
    better: str | None
    machine: Machine | None  # None where it was not recorded; then there is one point
    code: str | None
    points: tuple[Point, ...]

    @property
    def change(self) -> float | None:
        """The newest relative change; ``None`` for a single value, or if the earlier value is 0."""
        return change(*self.points[-2:]) if len(self.points) > 1 else None

    @property
    def is_better(self) -> bool | None:
        """Tell whether the newest value is better than the one before, noise or not; ``None`` if equal."""
        if not self.change or self.better is None:
            return None
        return (self.change < 0) == (self.better == "smaller")


def change(before: Point, after: Point) -> float | None:
    """Return the relative change between two points; ``None`` if the first value is 0."""
    return (after.value - before.value) / abs(before.value) if before.value else None


def find_trends(runs: Sequence[Run]) -> list[Trend]:
    """Group the figures of all runs, in order of time, into trends; runs without a machine stay alone."""
    figures = ((run, (*run.figures, *chain(*map(figures_of, run.documents)))) for run in runs)
    points = (Point(run, it) for run, found in figures for it in found if it.value is not None)
    return sorted(map(_trend, grouped(points, _key).values()), key=lambda trend: (trend.name, trend.unit))


def _key(point: Point) -> tuple[str, ...]:
    figure, run = point.figure, point.run
    where = run.machine.fingerprint if run.machine else f"? {run.identity}"
    return figure.name, figure.unit, where, figure.code or ""


def _trend(points: Sequence[Point]) -> Trend:
    first, run = points[0].figure, points[0].run
    return Trend(first.name, first.unit, first.better, run.machine, first.code, tuple(points))


# -- figures of documents ------------------------------------------------------------------------------------


def figures_of(document: AnyDocument) -> Iterator[Figure]:
    """Yield the figures of a document that are followed over time."""
    match document:
        case VerifyDocument():
            yield from _verify_figures(document)
        case FaultsDocument():
            count = document.caught + document.missed
            yield Figure(f"faults: caught of {count:,}", document.caught / max(count, 1), "share", "bigger")
        case SoakDocument():
            for it in document.adapters:
                if it.operations:  # A campaign that ended before its turn measured nothing, not zero.
                    name, speed = (
                        f"soak {it.name}: operations judged per CPU second",
                        it.operations_per_cpu_second,
                    )
                    yield Figure(name, speed, "operations/s", "bigger", plot="soak: operations judged")
        case ReplayDocument():
            for replayed in document.runs:
                yield from _replay_figures(document, replayed)
        case CurveDocument():
            yield from _curve_figures(document)
        case GpuBenchmarksDocument():
            yield from _gpu_figures(document)
        case PeerComparison():
            yield from _peer_figures(document)


def _verify_figures(document: VerifyDocument) -> Iterator[Figure]:
    # Short searches are slower by the step: the first programs pay for what the others share.
    amount = f"profile {document.profile}"
    if document.examples is not None:
        amount = f"{document.examples:,} examples"
    # Nor are a step's seconds alike where processes share a machine's caches, or its processors.
    if document.jobs is not None:
        amount += ", 1 process" if document.jobs == 1 else f", {document.jobs} processes"
    for adapter in document.adapters:
        for machine in adapter.machines:
            name = f"verify {adapter.name}, {machine.name}, {amount}: steps judged"
            yield Figure(name, machine.steps_per_second, "steps/s", "bigger", plot="verify: steps judged")


def _replay_figures(document: ReplayDocument, run: ReplayRun) -> Iterator[Figure]:
    config, workload = run.config, document.workload
    drawn = f" seed {workload.seed}" if workload.kind == "named" else ""
    window = config.sliding_window_size
    of_window = "" if window is None else f", window {show_count(window)}"
    name = (
        f"replay {workload.name}{drawn}, {workload.requests:,} requests, {document.mode}: {config.column}, "
        f"page {config.page_size}, {config.capacity:,} slots{of_window}"
    )
    yield Figure(f"{name}: hit rate", run.token_hit_rate, "share", "bigger", plot=name)
    times = {"match": run.match, "insert": run.insert, "evict": run.evict, "lock": run.lock}
    for operation, time in times.items():
        yield Figure(f"{name}: {operation}, median of a request", time.median_us, "us", "smaller", plot=name)
    if run.peak_rss_bytes is not None:
        yield Figure(f"{name}: most resident memory", run.peak_rss_bytes, "bytes", "smaller", plot=name)


def _curve_figures(document: CurveDocument) -> Iterator[Figure]:
    workload = document.workload
    drawn = f" seed {workload.seed}" if workload.kind == "named" else ""
    sampled = "" if document.sample is None else f", {document.sample.rate * 100:g} % of blocks"
    plot = f"curve {workload.name}{drawn}, {workload.requests:,} requests, page {document.page_size}{sampled}"
    for row in document.rows:
        name, rate = f"{plot}, {row.capacity:,} slots: hit rate", row.token_hit_rate
        yield Figure(name, rate, "share", "bigger", row.low, row.high, plot=plot)


def _gpu_figures(document: GpuBenchmarksDocument) -> Iterator[Figure]:
    for it in document.results:
        case = ", ".join(f"{key} {value}" for key, value in it.case.items())
        plot, code = f"gpu {it.name} ({case}), {it.mode}", document.benchmarks
        for who, time in it.times.items():
            name, low, high = f"{plot}: {who}, median", time.low_us, time.high_us
            yield Figure(name, time.median_us, "us", "smaller", low, high, code=code, plot=plot)


def _peer_figures(document: PeerComparison) -> Iterator[Figure]:
    for row in document.scenarios:
        plot = f"peers {row.id} {row.title}"
        for it in row.standings:
            name = f"{plot}: {it.contender}, {row.statistic}"
            yield Figure(name, it.value, row.unit, "smaller", code=row.code, plot=plot)
        if row.ratio is not None:
            name, ratio = f"{plot}: ratio to the best peer", row.ratio
            yield Figure(name, ratio.value, "", "smaller", ratio.low, ratio.high, code=row.code, plot=plot)


# -- as text -------------------------------------------------------------------------------------------------


def make_text(runs: Sequence[Run], name: str) -> str:
    """Return the trends whose name contains a text, a paragraph each; or the names that exist."""
    trends = find_trends(runs)
    chosen = [trend for trend in trends if name.lower() in trend.name.lower()]
    if not chosen:
        names = sorted({trend.name for trend in trends})
        nearest = get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]
        there = "these runs have no figures at all"
        if nearest:
            there = f"there are {', '.join(map(repr, nearest))}"
        raise UsageError(f"no figure has {name!r} in its name; {there}")
    return "\n\n".join("\n".join(map(escaped, _lines(trend))) for trend in chosen)


def _lines(trend: Trend) -> Iterator[str]:
    code = "" if trend.code is None else f", code {trend.code}"
    better = "" if trend.better is None else f" ({trend.better} is better)"
    yield f"{trend.name}{better}"
    yield f"  {machine_name(trend.machine)}{code}"
    changes = [None, *(change(*pair) for pair in pairwise(trend.points))]
    for point, by in zip(trend.points, changes, strict=True):
        changed = "" if by is None else f"{by * 100:+.1f} %"
        commit = (point.run.commit or "")[:12]
        line = (
            f"  {show_time(point.run.time)}  {commit:12}  {show(point.value, trend.unit):>14}  {changed:>9}"
        )
        yield line.rstrip()
