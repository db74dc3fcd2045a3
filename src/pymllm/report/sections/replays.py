"""Hit rates over capacity, and how long operations take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from pymllm.documents.replays import ReplayDocument, ReplayRun
from pymllm.report.blocks import (
    BAD,
    PALETTE,
    UNKNOWN,
    Cell,
    Choice,
    Column,
    Panel,
    Part,
    Plot,
    Table,
    Text,
    Tile,
    legend,
    log_axis,
    make_table,
    number,
    or_quiet,
    scatter,
    short_names,
)
from pymllm.report.documents import BUCKETS_PER_DOUBLING, bucket_of
from pymllm.report.loading import Run, documents_of, grouped
from pymllm.report.quantities import machine_name, show, show_count, show_share
from pymllm.report.records import Histogram

# -- hit rate ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayed:
    """A cache over a workload, and the run that it was part of."""

    document: ReplayDocument
    engine: ReplayRun
    run: Run

    @property
    def workload(self) -> str:
        """What was replayed, the same for each cache over it."""
        it = self.document.workload
        drawn = f", seed {it.seed}" if it.kind == "named" else ""
        return f"{it.name}, {it.requests:,} requests{drawn}, {self.document.mode}"

    @property
    def cache(self) -> str:
        """Through what, but for its capacity."""
        it = self.engine.config
        window = "" if it.sliding_window_size is None else f", window {show_count(it.sliding_window_size)}"
        return f"{it.column}, page {it.page_size}{window}"

    @property
    def capacity(self) -> int:
        """Its slots."""
        return self.engine.config.capacity

    @property
    def best(self) -> float | None:
        """What the best choice would hit, which knows the future; ``None`` where nobody computed it."""
        size = self.engine.config.page_size, self.capacity
        rates = (it.belady_hit_rate for it in self.document.ceilings if (it.page_size, it.capacity) == size)
        return next(rates, None)


def find_replays(runs: Sequence[Run]) -> list[Replayed]:
    """Return the newest replay of each workload through each cache of each capacity, smallest first."""
    found: dict[tuple[str, str, int], Replayed] = {}
    for document, run in documents_of(runs, ReplayDocument):
        for engine in document.runs:
            it = Replayed(document, engine, run)
            found[it.workload, it.cache, it.capacity] = it
    return [found[key] for key in sorted(found)]


def make_hit_rate_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Lay out hit rates; those of a workload that was replayed with several capacities are drawn."""
    for document, run in documents_of(runs, ReplayDocument):
        if (broken := document.violation) is not None:
            yield Text(f"{broken.cache} broke {broken.law} in {run.source}: {broken.message}", BAD)
        if document.interrupted:
            yield Text(f"The replay in {run.source} was interrupted: its numbers are of a part.", UNKNOWN)
    replays = find_replays(runs)
    by_workload = grouped(replays, lambda it: it.workload)
    curves = {name: its for name, its in by_workload.items() if len({it.capacity for it in its}) > 1}
    if curves:
        yield Plot(
            "plot-hit-rate",
            "Hit rate over capacity",
            "Share of the prompts' tokens that each cache served, over its capacity in slots, with the "
            "ceiling of an unlimited cache as a dashed line.",
            [_choice(name, its) for name, its in curves.items()],
            "workload",
        )
    if replays:
        yield _table(replays)
        yield Tile(show_count(len(replays)), "replays")


def _choice(name: str, replays: Sequence[Replayed]) -> Choice:
    traces: list[dict[str, Any]] = []
    for place, (cache, its) in enumerate(grouped(replays, lambda it: it.cache).items()):
        color = PALETTE[place % len(PALETTE)]
        measured = [(it.capacity, it.engine.token_hit_rate) for it in its]
        ceiling = [(it.capacity, it.engine.ceiling_hit_rate) for it in its]
        marks = {"symbol": "line-ew-open", "size": 12, "color": color}
        traces += [
            _line(cache, measured, {"color": color}) | {"legendgroup": cache, "marker": {"color": color}},
            _line(f"{cache}: ceiling", ceiling, {"color": color, "dash": "dash"})
            | {"legendgroup": cache, "marker": marks},
        ]
    known = {(it.engine.config.page_size, it.capacity): it.best for it in replays}
    best_rates = sorted((*size, best) for size, best in known.items() if best is not None)
    for page, sizes in grouped(best_rates, lambda it: it[0]).items():
        best = [(capacity, rate) for _, capacity, rate in sizes]
        traces.append(_line(f"best choice (Belady), page {page}", best, {"dash": "dot"}))
    layout = {
        "xaxis": log_axis("capacity, KV slots (tokens)", [it.capacity for it in replays]),
        "yaxis": {"title": {"text": "hit rate, % of prompt tokens"}, "range": [0, 101]},
        "height": 440,
        **legend(),
    }
    return Choice(name, [Panel(traces, layout)])


def _line(name: str, points: Sequence[tuple[int, float]], line: dict[str, str]) -> dict[str, Any]:
    hover = "%{x:,} slots: %{y:.1f} %<extra>%{fullData.name}</extra>"
    capacities, rates = [capacity for capacity, _ in points], [rate * 100 for _, rate in points]
    return scatter(name, capacities, rates, line=line, hovertemplate=hover)


def _table(replays: Sequence[Replayed]) -> Table:
    columns = [
        Column("workload", lambda it: Cell(it.workload, hint=it.run.hint)),
        Column("cache", lambda it: it.cache),
        number("capacity, slots", lambda it: show_count(it.capacity)),
        number("hit rate", lambda it: show_share(it.engine.token_hit_rate)),
        number("ceiling", lambda it: show_share(it.engine.ceiling_hit_rate)),
        number("best choice", lambda it: or_quiet(it.best, show_share, "not computed")),
        number("evicted, tokens", lambda it: show_count(it.engine.evicted_tokens)),
        number("most stored, tokens", lambda it: show_count(it.engine.peak_tokens_stored)),
        number("retractions", lambda it: or_quiet(it.engine.retractions, show_count, "no engine")),
        number("resident memory, most", lambda it: show(it.engine.peak_rss_bytes, "bytes")),
    ]
    return make_table("Replays", replays, columns)


# -- latency -------------------------------------------------------------------------------------------------


_OPERATIONS = ("match", "insert", "evict", "lock")
_QUANTILES = (0.5, 0.95, 0.99, 1.0)
_FOLDED = 40

_Measured = tuple[Histogram, Run]


def make_latency_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Lay out durations: histograms of benchmarks, and the time that requests of a replay spent in caches."""
    newest: dict[tuple[str, str, str], _Measured] = {}
    for run in runs:
        where = run.machine.fingerprint if run.machine else run.identity
        newest |= {(it.name, where, it.code or ""): (it, run) for it in run.histograms}
    measured = [newest[key] for key in sorted(newest)]
    by_plot = grouped(
        [it for it in measured if sum(map(bool, it[0].counts)) > 1], lambda it: it[0].plot or it[0].name
    )
    if by_plot:
        yield Plot(
            "plot-latency",
            "Histogram of durations",
            "How many samples of the chosen measurement fell into each bucket, over a logarithmic axis of "
            "time.",
            [_duration_choice(name, its) for name, its in sorted(by_plot.items())],
            "measurement",
        )
    if measured:
        yield _duration_table(measured)
    replays = find_replays(runs)
    beside = {name: its for name, its in grouped(replays, lambda it: it.workload).items() if len(its) > 1}
    if beside:
        yield Plot(
            "plot-replay-latency",
            "Time in the cache per request",
            "For each cache operation a picture: the median and the 99th percentile over requests, a line "
            "for each cache of the chosen workload, over a logarithmic axis of time.",
            [_replay_choice(name, its) for name, its in beside.items()],
            "workload",
        )
    if replays:
        yield _replay_table(replays)


def quantile(histogram: Histogram, share: float) -> float | None:
    """Return the end of the bucket that so many samples do not exceed; ``None`` without samples."""
    total = sum(histogram.counts)
    for end, passed in zip(histogram.ends, accumulate(histogram.counts), strict=True):
        if total and passed >= share * total - 1e-9:
            return end
    return None


def _duration_choice(name: str, measured: Sequence[_Measured]) -> Choice:
    by_name = grouped(measured, lambda it: it[0].name)
    panels = []
    for title, its in zip(short_names(list(by_name)), by_name.values(), strict=True):
        ends = [end for histogram, _ in its for end in histogram.ends]
        layout = {
            "xaxis": log_axis("duration", ends, its[0][0].unit),
            "yaxis": {"title": {"text": "samples"}, "rangemode": "tozero"},
            "height": 360 if len(by_name) == 1 else 260,
            **legend(),
            "showlegend": len(its) > 1,
        }
        panels.append(Panel([_steps(*it) for it in its], layout, title if len(by_name) > 1 else ""))
    return Choice(name, panels)


def _steps(histogram: Histogram, run: Run) -> dict[str, Any]:
    """Draw a histogram as an outline over buckets of one width, whatever its own buckets are."""
    counts: Counter[int] = Counter()
    for end, count in zip(histogram.ends, histogram.counts, strict=True):
        if count:
            counts[bucket_of(end)] += count
    places = sorted({*counts, *(at + 1 for at in counts)})  # behind a bucket comes the next, or nothing
    edges = [2 ** ((at - 1) / BUCKETS_PER_DOUBLING) for at in places]
    told = [f"{show(low, histogram.unit)} to {show(high, histogram.unit)}" for low, high in pairwise(edges)]
    return scatter(
        machine_name(run.machine),
        edges,
        [counts[at] for at in places],
        mode="lines",
        line={"shape": "hv", "width": 1.5},
        fill="tozeroy",
        text=[*told, ""],
        hovertemplate="%{text}: %{y:,} samples<extra>%{fullData.name}</extra>",
    )


def _duration_table(measured: Sequence[_Measured]) -> Table:
    columns = [
        Column("measurement", lambda it: Cell(it[0].name, hint=it[1].hint)),
        Column("machine", lambda it: machine_name(it[1].machine)),
        number("samples", lambda it: show_count(sum(it[0].counts))),
        *map(_quantile_column, _QUANTILES),
    ]
    return make_table("Durations", measured, columns, folded=len(measured) > _FOLDED)


def _quantile_column(share: float) -> Column:
    name = "longest" if share == 1 else f"p{share * 100:g}"
    return number(name, lambda it: show(quantile(it[0], share), it[0].unit))


# -- of replays ----------------------------------------------------------------------------------------------


def _name(it: Replayed) -> str:
    return f"{it.workload}: {it.cache}, {it.capacity:,} slots"


def _microseconds(it: Replayed, operation: str, field: str) -> float:
    return float(getattr(getattr(it.engine, operation), field))


def _replay_choice(workload: str, replays: Sequence[Replayed]) -> Choice:
    """Draw a line from the median to the 99th percentile for each cache, the ends of which are marked."""
    names = [f"{it.cache}, {it.capacity:,} slots" for it in replays]
    panels = []
    for operation in _OPERATIONS:
        times = [[_microseconds(it, operation, which) for which in ("median_us", "p99_us")] for it in replays]
        traces = [
            scatter(
                name,
                pair,
                [name, name],
                text=["median", "p99"],
                marker={"symbol": ["circle", "diamond"], "size": 9},
                hovertemplate="%{y}<br>%{text}: %{x:.4g} µs<extra></extra>",
            )
            for name, pair in zip(names, times, strict=True)
        ]
        layout = {
            "xaxis": log_axis("time per request", [time for pair in times for time in pair], "us"),
            "yaxis": {"automargin": True, "autorange": "reversed"},
            "height": 130 + 28 * len(names),
            "showlegend": False,
        }
        panels.append(Panel(traces, layout, operation))
    note = "● median of the requests, ◆ their 99th percentile; what took no time at all has no mark."
    return Choice(workload, panels, note)


def _replay_table(replays: Sequence[Replayed]) -> Table:
    columns = [
        Column("replay", lambda it: Cell(_name(it), hint=it.run.hint)),
        Column("machine", lambda it: machine_name(it.run.machine)),
        *(_replay_column(name, which) for name in _OPERATIONS for which in ("median", "p99")),
    ]
    return make_table("Time in the cache per request", replays, columns)


def _replay_column(operation: str, which: str) -> Column:
    return number(f"{operation}, {which}", lambda it: show(_microseconds(it, operation, f"{which}_us"), "us"))
