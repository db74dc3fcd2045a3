"""Figures over time, by benchmark and machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from pymllm.report.blocks import Section, Tile
from pymllm.report.loading import Run, grouped
from pymllm.report.plots import Choice, Plot, legend, scatter
from pymllm.report.quantities import machine_name, scale_of, show, show_count, show_time
from pymllm.report.tables import BAD, GOOD, QUIET, Cell, Column, Table, make_table, number
from pymllm.report.trends import Point, Trend, find_trends

_FOLDED = 40


def make_trends_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the trends of figures that are better one way or the other; ``None`` where there is none."""
    trends = [trend for trend in find_trends(runs) if trend.better is not None]
    if not trends:
        return None
    machines = len({trend.machine.fingerprint for trend in trends if trend.machine is not None})
    figures = show_count(len({trend.name for trend in trends}))
    on = "figures on 1 machine" if machines == 1 else f"figures on {machines} machines"
    return Section(
        "trends",
        "Trends by benchmark and machine",
        "A line is one figure on one machine, measured by one version of the benchmark's code: figures of "
        "other machines and of edited benchmarks are drawn as lines of their own and compared with nothing. "
        "The change is that from the point before to the newest one, and says nothing of noise. A whisker "
        "is the spread that the benchmark wrote down (of pytest-benchmark, its quartiles).",
        [_plot(trends), _table(trends)],
        [Tile(figures, on)],
    )


def _plot(trends: Sequence[Trend]) -> Plot:
    by_name = list(grouped(trends, lambda trend: trend.name).items())
    # What has a history comes first, and of that medians: the longest of many samples tells of the machine.
    by_name.sort(key=lambda item: (-max(len(it.points) for it in item[1]), not item[0].endswith("median")))
    return Plot(
        "plot-trends",
        "A figure over time",
        "The values of the chosen figure over time, a line for each machine and each version of the "
        "benchmark's code.",
        [_choice(name, its) for name, its in by_name],
        "figure",
    )


def _choice(name: str, trends: Sequence[Trend]) -> Choice:
    unit, better = trends[0].unit, trends[0].better
    scale, shown = scale_of((point.value for trend in trends for point in trend.points), unit)
    layout = {
        "xaxis": {"title": {"text": "time (UTC)"}, "type": "date", "range": _days_around(trends)},
        "yaxis": {"title": {"text": f"{shown or 'number'}, {better} is better"}, "rangemode": "tozero"},
        "height": 420,
        **legend(),
    }
    return Choice(name, [_line(trend, scale) for trend in trends], layout)


def _days_around(trends: Sequence[Trend]) -> list[str]:
    """Leave some room beside the first and the last point; half a day beside a single one."""
    times = [datetime.fromisoformat(point.run.time) for trend in trends for point in trend.points]
    room = max((max(times) - min(times)) / 20, timedelta(hours=1))
    if len(set(times)) == 1:
        room = timedelta(hours=12)
    return [(min(times) - room).isoformat(), (max(times) + room).isoformat()]


def _line(trend: Trend, scale: float) -> dict[str, Any]:
    points = trend.points
    code = "" if trend.code is None else f", code {trend.code}"
    line = scatter(
        f"{machine_name(trend.machine)}{code}",
        [point.run.time for point in points],
        [point.value * scale for point in points],
        text=["<br>".join(_facts_of(point)) for point in points],
        hovertemplate="%{text}<extra>%{fullData.name}</extra>",
    )
    if any(point.figure.low is not None and point.figure.high is not None for point in points):
        line["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [_beyond(point.value, point.figure.high) * scale for point in points],
            "arrayminus": [_beyond(point.figure.low, point.value) * scale for point in points],
            "thickness": 1,
        }
    return line


def _beyond(low: float | None, high: float | None) -> float:
    return 0.0 if low is None or high is None else max(0.0, high - low)


def _facts_of(point: Point) -> Iterator[str]:
    yield show(point.value, point.figure.unit)
    yield f"{show_time(point.run.time)} UTC"
    if point.run.commit is not None:
        yield f"commit {point.run.commit[:12]}{', modified' if point.run.modified else ''}"
    versions = point.run.versions
    yield from (f"{name} {versions[name]}" for name in ("python", "torch", "driver") if name in versions)


def _table(trends: Sequence[Trend]) -> Table:
    columns = [
        Column("figure", lambda it: it.name),
        Column("machine", lambda it: machine_name(it.machine)),
        Column("code", lambda it: Cell(it.code or "no hash", None if it.code else QUIET)),
        Column("better", lambda it: str(it.better)),
        number("points", lambda it: show_count(len(it.points))),
        number("newest", lambda it: show(it.points[-1].value, it.unit)),
        number("change", _change),
        Column("over time", _spark),
    ]
    return make_table("Figures", trends, columns, folded=len(trends) > _FOLDED)


def _change(trend: Trend) -> Cell:
    if trend.change is None:
        return Cell("nothing before" if len(trend.points) < 2 else "from zero", QUIET)
    better = trend.is_better
    word = "" if better is None else " better" if better else " worse"
    return Cell(f"{trend.change * 100:+.1f} %{word}", None if better is None else GOOD if better else BAD)


def _spark(trend: Trend) -> Cell:
    values = tuple(point.value for point in trend.points)
    if len(values) < 2:
        return Cell("one point", QUIET)
    return Cell("", spark=values, hint=f"{len(values)} points")
