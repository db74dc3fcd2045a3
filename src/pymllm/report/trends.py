"""Figures over time: what is on one line, and what is only shown beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pymllm.instrument.peer_comparison import PeerComparison
from pymllm.report.documents import AnyDocument
from pymllm.report.loading import Run
from pymllm.report.measured_documents import EngineRun, GpuBenchmarksDocument, ReplayDocument
from pymllm.report.quantities import show_count
from pymllm.report.records import Figure, Machine
from pymllm.report.search_documents import FaultsDocument, SoakDocument, VerifyDocument

__all__ = ["Point", "Trend", "figures_of", "find_trends", "replay_name"]


@dataclass(frozen=True, slots=True)
class Point:
    """A figure of one run."""

    run: Run
    figure: Figure

    @property
    def value(self) -> float:
        """The number; points without one are on no line."""
        assert self.figure.value is not None
        return self.figure.value


@dataclass(frozen=True, slots=True)
class Trend:
    """One line: a figure of one name and unit, on one machine, measured by one code.

    Parameters
    ----------
    name, unit, better, plot
        As of `pymllm.report.records.Figure`.
    machine : Machine or None
        ``None`` where it was not recorded; then there is one point.
    code : str or None
        Hash of what measured.
    points : tuple of Point
        In order of time.
    """

    name: str
    unit: str
    better: str | None
    plot: str
    machine: Machine | None
    code: str | None
    points: tuple[Point, ...]

    @property
    def change(self) -> float | None:
        """The newest value over the one before, less 1; ``None`` where there is none, or it was zero."""
        if len(self.points) < 2 or self.points[-2].value == 0:
            return None
        before = self.points[-2].value
        return (self.points[-1].value - before) / abs(before)

    @property
    def is_better(self) -> bool | None:
        """Whether the newest value is better than the one before, noise or not; ``None`` if equal."""
        if not self.change or self.better is None:
            return None
        return (self.change < 0) == (self.better == "smaller")


def find_trends(runs: Sequence[Run]) -> list[Trend]:
    """Put the figures of all runs on lines.

    Parameters
    ----------
    runs : sequence of Run
        In order of time.

    Returns
    -------
    list of Trend
        By name; those of one name beside each other. A run without a machine makes a line of its own for each
        figure.
    """
    found: dict[tuple[str, ...], Trend] = {}
    for run in runs:
        for figure in _all_figures(run):
            if figure.value is None:
                continue
            # What has no machine is compared with nothing, not even with another that has none.
            where = run.machine.fingerprint if run.machine else f"? {run.identity}"
            key = figure.name, figure.unit, where, figure.code or ""
            known = found.get(key)
            point = Point(run, figure)
            found[key] = (
                Trend(
                    figure.name,
                    figure.unit,
                    figure.better,
                    figure.plot or figure.name,
                    run.machine,
                    figure.code,
                    (point,),
                )
                if known is None
                else replace(known, points=(*known.points, point))
            )
    return sorted(found.values(), key=lambda trend: (trend.name, trend.unit))


def _all_figures(run: Run) -> Iterator[Figure]:
    yield from run.figures
    for document in run.documents:
        yield from figures_of(document)


def figures_of(document: AnyDocument) -> Iterator[Figure]:
    """Return the numbers of a document that are worth following over time."""
    if isinstance(document, VerifyDocument):
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
    elif isinstance(document, FaultsDocument):
        count = document.caught + document.missed
        yield Figure(f"faults: caught of {count:,}", document.caught / max(count, 1), "share", "bigger")
    elif isinstance(document, SoakDocument):
        for soaked in document.adapters:
            if not soaked.operations:
                continue  # A campaign that ended before its turn measured nothing, not a speed of zero.
            name = f"soak {soaked.name}: operations judged per CPU second"
            yield Figure(
                name,
                soaked.operations_per_cpu_second,
                "operations/s",
                "bigger",
                plot="soak: operations judged",
            )
    elif isinstance(document, ReplayDocument):
        for run in document.runs:
            yield from _replay_figures(replay_name(document, run), run)
    elif isinstance(document, GpuBenchmarksDocument):
        yield from _gpu_figures(document)
    elif isinstance(document, PeerComparison):
        yield from _peer_figures(document)


def replay_name(document: ReplayDocument, run: EngineRun) -> str:
    """Say what was replayed through what, the same for each run of the same."""
    config, workload = run.config, document.workload
    window = (
        "" if config.sliding_window_size is None else f", window {show_count(config.sliding_window_size)}"
    )
    drawn = f" seed {workload.seed}" if workload.kind == "named" else ""
    return (
        f"replay {workload.name}{drawn}, {workload.requests:,} requests, {document.mode}: {config.cache}, "
        f"page {config.page_size}, {config.capacity:,} slots{window}"
    )


def _replay_figures(name: str, run: EngineRun) -> Iterator[Figure]:
    yield Figure(f"{name}: hit rate", run.token_hit_rate, "share", "bigger", plot=name)
    for operation, time in _times_of(run):
        yield Figure(f"{name}: {operation}, median of a request", time, "us", "smaller", plot=name)
    if run.peak_rss_bytes is not None:
        yield Figure(f"{name}: most resident memory", run.peak_rss_bytes, "bytes", "smaller", plot=name)


def _times_of(run: EngineRun) -> Iterable[tuple[str, float]]:
    return ((name, getattr(run, name).median_us) for name in ("match", "insert", "evict", "lock"))


def _gpu_figures(document: GpuBenchmarksDocument) -> Iterator[Figure]:
    for it in document.results:
        case = ", ".join(f"{key} {value}" for key, value in it.case.items())
        name = f"gpu {it.name} ({case}), {it.mode}"
        for who, time in it.times.items():
            yield Figure(
                f"{name}: {who}, median",
                time.median_us,
                "us",
                "smaller",
                low=time.low_us,
                high=time.high_us,
                code=document.benchmarks,
                plot=name,
            )


def _peer_figures(document: PeerComparison) -> Iterator[Figure]:
    for row in document.scenarios:
        ours = f"peers {row.id} {row.title}"
        for standing in row.standings:
            name = f"{ours}: {standing.contender}, {row.statistic}"
            yield Figure(name, standing.value, row.unit, "smaller", code=row.code, plot=ours)
        if row.ratio is not None:
            yield Figure(
                f"{ours}: ratio to the best peer",
                row.ratio.value,
                "",
                "smaller",
                low=row.ratio.low,
                high=row.ratio.high,
                code=row.code,
                plot=ours,
            )
