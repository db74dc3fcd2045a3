"""How long operations take: histograms, and times per request of a replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from pymllm.report.blocks import Block, Section
from pymllm.report.loading import Run, grouped
from pymllm.report.plots import Choice, Plot, legend, log_axis
from pymllm.report.quantities import machine_name, show, show_count
from pymllm.report.records import Histogram
from pymllm.report.sections.hit_rate import Replayed, find_replays
from pymllm.report.tables import Cell, Column, Table, make_table, number

_OPERATIONS = ("match", "insert", "evict", "lock")
_QUANTILES = (0.5, 0.95, 0.99, 1.0)
_FOLDED = 40
_BARS_PER_DOUBLING = 8
_LOWEST = -160  # where what took no time at all stands

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
        blocks += [_plot(measured), _table(measured)]
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


def _plot(measured: Sequence[_Measured]) -> Plot:
    by_plot = grouped(measured, lambda it: it[0].plot or it[0].name)
    return Plot(
        "plot-latency",
        "Histogram of durations",
        "How many samples fell into each bucket of the chosen measurement, on a logarithmic axis of time.",
        [_choice(name, its) for name, its in sorted(by_plot.items())],
        "measurement",
    )


def _choice(name: str, measured: Sequence[_Measured]) -> Choice:
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
    counts: dict[int, int] = {}
    for end, count in zip(histogram.ends, histogram.counts, strict=True):
        if count:
            place = math.ceil(math.log2(end) * _BARS_PER_DOUBLING - 1e-9) if end > 0 else _LOWEST
            counts[place] = counts.get(place, 0) + count
    edges = [(2 ** ((at - 1) / _BARS_PER_DOUBLING), 2 ** (at / _BARS_PER_DOUBLING)) for at in sorted(counts)]
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


def _table(measured: Sequence[_Measured]) -> Table:
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
