"""How much caches hit over their capacity, and how long operations take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pymllm.conformance.documents import ReplayDocument, ReplayRun
from pymllm.report.blocks import Block, Section, Text, Tile
from pymllm.report.documents import BUCKETS_PER_DOUBLING, bucket_of
from pymllm.report.loading import Run, documents_of, grouped
from pymllm.report.plots import PALETTE, Choice, Plot, legend, log_axis, scatter
from pymllm.report.quantities import machine_name, show, show_count, show_share
from pymllm.report.records import Histogram
from pymllm.report.tables import BAD, Cell, Column, Table, make_table, number, or_quiet

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
        return f"{it.cache}, page {it.page_size}{window}"

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


def make_hit_rate_section(runs: Sequence[Run]) -> Section | None:
    """Lay out hit rates; ``None`` where nothing was replayed."""
    replays = find_replays(runs)
    blocks: list[Block] = [
        Text(f"{broken.cache} broke {broken.law} in {run.source}: {broken.message}", BAD)
        for document, run in documents_of(runs, ReplayDocument)
        if (broken := document.violation) is not None
    ]
    if replays:
        blocks += [_plot(replays), _table(replays)]
    if not blocks:
        return None
    return Section(
        "hit-rate",
        "Hit rate over capacity",
        "How many of the prompts' tokens were served from the cache, for each capacity that was replayed. A "
        "ceiling is what an unlimited cache with the same pages would serve: no cache of any capacity hits "
        "more. The best choice evicts what is needed last, which takes a look into the future; where it was "
        "computed, it is the most that a cache of this capacity could hit.",
        blocks,
        [Tile(show_count(len(replays)), "caches replayed")],
    )


def _plot(replays: Sequence[Replayed]) -> Plot:
    by_workload = grouped(replays, lambda it: it.workload)
    return Plot(
        "plot-hit-rate",
        "Hit rate over capacity",
        "Share of the prompts' tokens that each cache served, over its capacity in slots, with the ceiling "
        "of an unlimited cache as a dashed line.",
        [_choice(name, its) for name, its in by_workload.items()],
        "workload",
    )


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
    return Choice(name, traces, layout)


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
        number("best choice (Belady)", lambda it: or_quiet(it.best, show_share, "not computed")),
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


def make_latency_section(runs: Sequence[Run]) -> Section | None:
    """Lay out durations; ``None`` where nobody measured any."""
    newest: dict[tuple[str, str, str], _Measured] = {}
    for run in runs:
        where = run.machine.fingerprint if run.machine else run.identity
        newest |= {(it.name, where, it.code or ""): (it, run) for it in run.histograms}
    measured = [newest[key] for key in sorted(newest)]
    replays = find_replays(runs)
    blocks: list[Block] = []
    if measured:
        blocks += [_duration_plot(measured), _duration_table(measured)]
    if replays:
        blocks += [_replay_plot(replays), _replay_table(replays)]
    if not blocks:
        return None
    return Section(
        "latency",
        "Latency",
        "How long things take, as histograms: a bar is a tenth of its duration wide. Quantiles are the ends "
        "of buckets, so they are never below the sample they stand for. Of a replay, the time that one "
        "request spends in the cache over its whole life.",
        blocks,
    )


def quantile(histogram: Histogram, share: float) -> float | None:
    """Return the end of the bucket that so many samples do not exceed; ``None`` without samples."""
    total = sum(histogram.counts)
    for end, passed in zip(histogram.ends, accumulate(histogram.counts), strict=True):
        if total and passed >= share * total - 1e-9:
            return end
    return None


def _duration_plot(measured: Sequence[_Measured]) -> Plot:
    by_plot = grouped(measured, lambda it: it[0].plot or it[0].name)
    return Plot(
        "plot-latency",
        "Histogram of durations",
        "How many samples fell into each bucket of the chosen measurement, on a logarithmic axis of time.",
        [_duration_choice(name, its) for name, its in sorted(by_plot.items())],
        "measurement",
    )


def _duration_choice(name: str, measured: Sequence[_Measured]) -> Choice:
    traces = [_bars(*it, is_alone=len(measured) == 1) for it in measured]
    ends = [end for histogram, _ in measured for end in histogram.ends]
    layout = {
        "barmode": "overlay",
        "bargap": 0,
        "xaxis": log_axis("duration", ends, measured[0][0].unit),
        "yaxis": {"title": {"text": "samples"}},
        "height": 380,
        **legend(),
        "showlegend": len(traces) > 1,
    }
    return Choice(name, traces, layout)


def _bars(histogram: Histogram, run: Run, *, is_alone: bool) -> dict[str, Any]:
    """Draw a histogram in bars that are as wide on a logarithmic axis, whatever its own buckets are."""
    counts: Counter[int] = Counter()
    for end, count in zip(histogram.ends, histogram.counts, strict=True):
        if count:
            counts[bucket_of(end)] += count
    steps = [(at - 1, at) for at in sorted(counts)]
    edges = [tuple(2 ** (it / BUCKETS_PER_DOUBLING) for it in step) for step in steps]
    return {
        "type": "bar",
        "name": f"{histogram.name}, {machine_name(run.machine)}",
        "x": [(low + high) / 2 for low, high in edges],
        "width": [high - low for low, high in edges],
        "y": [counts[at] for at in sorted(counts)],
        "text": [f"{show(low, histogram.unit)} to {show(high, histogram.unit)}" for low, high in edges],
        "textposition": "none",
        "opacity": 1.0 if is_alone else 0.75,
        "hovertemplate": "%{text}: %{y:,} samples<extra>%{fullData.name}</extra>",
    }


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


def _replay_plot(replays: Sequence[Replayed]) -> Plot:
    return Plot(
        "plot-replay-latency",
        "Time in the cache per request",
        "Microseconds that a request of the chosen replay spends in matching, inserting, evicting and "
        "locking.",
        [_replay_choice(it) for it in replays],
        "replay",
    )


def _replay_choice(it: Replayed) -> Choice:
    traces = [
        {
            "type": "bar",
            "name": f"{which} of a request",
            "x": list(_OPERATIONS),
            "y": [_microseconds(it, operation, f"{which}_us") for operation in _OPERATIONS],
            "hovertemplate": "%{x}: %{y:.4g} µs<extra>%{fullData.name}</extra>",
        }
        for which in ("median", "p99")
    ]
    heights = [_microseconds(it, name, which) for name in _OPERATIONS for which in ("median_us", "p99_us")]
    layout = {
        "barmode": "group",
        "yaxis": log_axis("time per request", heights, "us"),
        "height": 360,
        **legend(above=True),
    }
    return Choice(_name(it), traces, layout, "What took no time at all has no bar.")


def _replay_table(replays: Sequence[Replayed]) -> Table:
    columns = [
        Column("replay", lambda it: Cell(_name(it), hint=it.run.hint)),
        Column("machine", lambda it: machine_name(it.run.machine)),
        *(_replay_column(name, which) for name in _OPERATIONS for which in ("median", "p99")),
    ]
    return make_table("Time in the cache per request", replays, columns)


def _replay_column(operation: str, which: str) -> Column:
    return number(f"{operation}, {which}", lambda it: show(_microseconds(it, operation, f"{which}_us"), "us"))
