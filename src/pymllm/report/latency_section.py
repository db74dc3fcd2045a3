"""How long operations take: histograms, and times per request of a replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pymllm.report.blocks import Block, Cell, Choice, Column, Plot, Section, Table
from pymllm.report.hit_rate_section import Replayed, find_replays
from pymllm.report.loading import Run
from pymllm.report.machines_section import machine_name
from pymllm.report.quantities import log_ticks, show, show_count, show_time
from pymllm.report.records import Histogram, Machine

__all__ = ["make_latency_section", "quantile"]

_ID = "latency"
_OPERATIONS = ("match", "insert", "evict", "lock")
_QUANTILES = (0.5, 0.95, 0.99, 1.0)
_FOLDED = 40
_BARS_PER_DOUBLING = 8
_LOWEST = -160  # where what took no time at all stands


@dataclass(frozen=True, slots=True)
class _Measured:
    histogram: Histogram
    machine: Machine | None
    run: Run


def quantile(histogram: Histogram, share: float) -> float | None:
    """Return the end of the bucket that so many samples do not exceed; ``None`` without samples."""
    total = sum(histogram.counts)
    for end, passed in zip(histogram.ends, accumulate(histogram.counts), strict=True):
        if total and passed >= share * total - 1e-9:
            return end
    return None


def make_latency_section(runs: Sequence[Run]) -> Section | None:
    """Lay out durations; ``None`` where nobody measured any."""
    measured = _newest(runs)
    replays = find_replays(runs)
    blocks: list[Block] = []
    if measured:
        blocks += [_plot(measured), _table(measured)]
    if replays:
        blocks += [_replay_plot(replays), _replay_table(replays)]
    if not blocks:
        return None
    return Section(
        _ID,
        "Latency",
        "How long things take, as histograms: a bar is a tenth of its duration wide. Quantiles are the ends "
        "of buckets, so they are never below the sample they stand for. Of a replay, the time that one "
        "request spends in the cache over its whole life.",
        blocks,
    )


def _newest(runs: Sequence[Run]) -> list[_Measured]:
    """Return the newest histogram of each name on each machine by each code."""
    found: dict[tuple[str, str, str], _Measured] = {}
    for run in runs:
        for it in run.histograms:
            where = run.machine.fingerprint if run.machine else run.identity
            found[it.name, where, it.code or ""] = _Measured(it, run.machine, run)
    return [found[key] for key in sorted(found)]


def _plot(measured: Sequence[_Measured]) -> Plot:
    by_plot: dict[str, list[_Measured]] = {}
    for it in measured:
        by_plot.setdefault(it.histogram.plot or it.histogram.name, []).append(it)
    return Plot(
        "plot-latency",
        "Histogram of durations",
        "How many samples fell into each bucket of the chosen measurement, on a logarithmic axis of time.",
        tuple(_choice(name, its) for name, its in sorted(by_plot.items())),
        "measurement",
    )


def _choice(name: str, measured: Sequence[_Measured]) -> Choice:
    traces = tuple(_bars(it, is_alone=len(measured) == 1) for it in measured)
    unit = measured[0].histogram.unit
    ends = [end for it in measured for end in it.histogram.ends]
    layout = {
        "barmode": "overlay",
        "bargap": 0,
        "xaxis": {"type": "log", "title": {"text": "duration"}, **log_ticks(ends, unit)},
        "yaxis": {"title": {"text": "samples"}},
        "height": 380,
        "showlegend": len(traces) > 1,
        "legend": {"orientation": "h", "y": -0.25, "yanchor": "top"},
    }
    return Choice(name, traces, layout)


def _bars(it: _Measured, *, is_alone: bool) -> dict[str, object]:
    """Draw a histogram in bars that are as wide on a logarithmic axis, whatever its own buckets are."""
    counts: dict[int, int] = {}
    for end, count in zip(it.histogram.ends, it.histogram.counts, strict=True):
        if count:
            place = math.ceil(math.log2(end) * _BARS_PER_DOUBLING - 1e-9) if end > 0 else _LOWEST
            counts[place] = counts.get(place, 0) + count
    edges = [(2 ** ((at - 1) / _BARS_PER_DOUBLING), 2 ** (at / _BARS_PER_DOUBLING)) for at in sorted(counts)]
    unit = it.histogram.unit
    return {
        "type": "bar",
        "name": f"{it.histogram.name}, {machine_name(it.machine)}",
        "x": [(low + high) / 2 for low, high in edges],
        "width": [high - low for low, high in edges],
        "y": [counts[at] for at in sorted(counts)],
        "text": [f"{show(low, unit)} to {show(high, unit)}" for low, high in edges],
        "textposition": "none",
        "opacity": 1.0 if is_alone else 0.75,
        "hovertemplate": "%{text}: %{y:,} samples<extra>%{fullData.name}</extra>",
    }


def _table(measured: Sequence[_Measured]) -> Table:
    columns = (
        Column("measurement"),
        Column("machine"),
        Column("samples", True),
        *(Column("longest" if share == 1 else f"p{share * 100:g}", True) for share in _QUANTILES),
    )
    rows = tuple(
        (
            Cell(it.histogram.name, hint=f"{show_time(it.run.time)} UTC, {it.run.source}"),
            Cell(machine_name(it.machine)),
            Cell(show_count(sum(it.histogram.counts))),
            *(Cell(show(quantile(it.histogram, share), it.histogram.unit)) for share in _QUANTILES),
        )
        for it in measured
    )
    return Table("Durations", columns, rows, folded=len(rows) > _FOLDED)


def _replay_plot(replays: Sequence[Replayed]) -> Plot:
    choices = []
    for it in replays:
        traces = tuple(
            {
                "type": "bar",
                "name": name,
                "x": list(_OPERATIONS),
                "y": [getattr(getattr(it.engine, operation), field) for operation in _OPERATIONS],
                "hovertemplate": "%{x}: %{y:.4g} µs<extra>%{fullData.name}</extra>",
            }
            for name, field in (("median of a request", "median_us"), ("p99 of a request", "p99_us"))
        )
        heights = [height for trace in traces for height in trace["y"]]
        layout = {
            "barmode": "group",
            "yaxis": {"type": "log", "title": {"text": "time per request"}, **log_ticks(heights, "us")},
            "height": 360,
            "showlegend": True,
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        }
        choices.append(Choice(_replay_name(it), traces, layout, "What took no time at all has no bar."))
    return Plot(
        "plot-replay-latency",
        "Time in the cache per request",
        "Microseconds that a request of the chosen replay spends in matching, inserting, evicting and "
        "locking.",
        tuple(choices),
        "replay",
    )


def _replay_name(it: Replayed) -> str:
    return f"{it.workload}: {it.cache}, {it.engine.config.capacity:,} slots"


def _replay_table(replays: Sequence[Replayed]) -> Table:
    columns = (
        Column("replay"),
        Column("machine"),
        *(Column(f"{name}, {which}", True) for name in _OPERATIONS for which in ("median", "p99")),
    )
    rows = tuple(
        (
            Cell(_replay_name(it), hint=f"{show_time(it.run.time)} UTC, {it.run.source}"),
            Cell(machine_name(it.run.machine)),
            *(
                Cell(show(getattr(getattr(it.engine, name), field), "us"))
                for name in _OPERATIONS
                for field in ("median_us", "p99_us")
            ),
        )
        for it in replays
    )
    return Table("Time in the cache per request", columns, rows)
