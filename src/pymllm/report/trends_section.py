"""Figures over time, by benchmark and machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from pymllm.report.blocks import BAD, GOOD, QUIET, Cell, Choice, Column, Plot, Section, Table, Tile
from pymllm.report.loading import Run
from pymllm.report.machines_section import machine_name
from pymllm.report.quantities import scale_of, show, show_count, show_time
from pymllm.report.trends import Point, Trend, find_trends

__all__ = ["make_trends_section"]

_ID = "trends"
_FOLDED = 40


def make_trends_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the trends of figures that are better one way or the other; ``None`` where there is none."""
    trends = [trend for trend in find_trends(runs) if trend.better is not None]
    if not trends:
        return None
    machines = {trend.machine.fingerprint for trend in trends if trend.machine is not None}
    names = {trend.name for trend in trends}
    return Section(
        _ID,
        "Trends by benchmark and machine",
        "A line is one figure on one machine, measured by one version of the benchmark's code: figures of "
        "other machines and of edited benchmarks are drawn as lines of their own and compared with nothing. "
        "The change is that from the point before to the newest one, and says nothing of noise. A whisker "
        "is the spread that the benchmark wrote down (of pytest-benchmark, its quartiles).",
        [_plot(trends), _table(trends)],
        (Tile(show_count(len(names)), f"figures on {_machines(len(machines))}", None, f"#{_ID}"),),
    )


def _machines(count: int) -> str:
    return f"{count} machine" if count == 1 else f"{count} machines"


def _plot(trends: Sequence[Trend]) -> Plot:
    by_name = [(name, list(group)) for name, group in groupby(trends, lambda trend: trend.name)]
    # What has a history comes first, and of that medians: the longest of many samples tells of the machine.
    by_name.sort(key=lambda item: (-max(len(it.points) for it in item[1]), not item[0].endswith("median")))
    choices = tuple(_choice(name, its) for name, its in by_name)
    return Plot(
        "plot-trends",
        "A figure over time",
        "The values of the chosen figure over time, a line for each machine and each version of the "
        "benchmark's code.",
        choices,
        "figure",
    )


def _choice(name: str, trends: Sequence[Trend]) -> Choice:
    unit, better = trends[0].unit, trends[0].better
    scale, shown = scale_of((point.value for trend in trends for point in trend.points), unit)
    layout = {
        "xaxis": {"title": {"text": "time (UTC)"}, "type": "date", "range": _days_around(trends)},
        "yaxis": {"title": {"text": f"{shown or 'number'}, {better} is better"}, "rangemode": "tozero"},
        "height": 420,
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.25, "yanchor": "top"},
    }
    return Choice(name, tuple(_trace(trend, scale) for trend in trends), layout)


def _days_around(trends: Sequence[Trend]) -> list[str]:
    """Leave some room beside the first and the last point; half a day beside a single one."""
    times = [datetime.fromisoformat(point.run.time) for trend in trends for point in trend.points]
    room = max((max(times) - min(times)) / 20, timedelta(hours=1))
    if len(set(times)) == 1:
        room = timedelta(hours=12)
    return [(min(times) - room).isoformat(), (max(times) + room).isoformat()]


def _trace(trend: Trend, scale: float) -> dict[str, object]:
    points = trend.points
    trace: dict[str, object] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _label(trend),
        "x": [point.run.time for point in points],
        "y": [point.value * scale for point in points],
        "text": [_hover(point) for point in points],
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
    }
    if any(point.figure.low is not None and point.figure.high is not None for point in points):
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [_above(point) * scale for point in points],
            "arrayminus": [_below(point) * scale for point in points],
            "thickness": 1,
        }
    return trace


def _above(point: Point) -> float:
    return 0.0 if point.figure.high is None else max(0.0, point.figure.high - point.value)


def _below(point: Point) -> float:
    return 0.0 if point.figure.low is None else max(0.0, point.value - point.figure.low)


def _label(trend: Trend) -> str:
    code = "" if trend.code is None else f", code {trend.code}"
    return f"{machine_name(trend.machine)}{code}"


def _hover(point: Point) -> str:
    return "<br>".join(_facts_of(point))


def _facts_of(point: Point) -> Iterator[str]:
    yield show(point.value, point.figure.unit)
    yield f"{show_time(point.run.time)} UTC"
    if point.run.commit is not None:
        yield f"commit {point.run.commit[:12]}{', modified' if point.run.modified else ''}"
    versions = point.run.versions
    yield from (f"{name} {versions[name]}" for name in ("python", "torch", "driver") if name in versions)


def _table(trends: Sequence[Trend]) -> Table:
    columns = (
        Column("figure"),
        Column("machine"),
        Column("code"),
        Column("better"),
        Column("points", True),
        Column("newest", True),
        Column("change", True),
        Column("over time"),
    )
    return Table("Figures", columns, tuple(map(_row, trends)), folded=len(trends) > _FOLDED)


def _row(trend: Trend) -> tuple[Cell, ...]:
    values = tuple(point.value for point in trend.points)
    is_line = len(values) > 1
    return (
        Cell(trend.name),
        Cell(machine_name(trend.machine)),
        Cell(trend.code or "no hash", None if trend.code else QUIET),
        Cell(str(trend.better)),
        Cell(show_count(len(values))),
        Cell(show(values[-1], trend.unit)),
        _change_cell(trend),
        Cell("", spark=values, hint=f"{len(values)} points") if is_line else Cell("one point", QUIET),
    )


def _change_cell(trend: Trend) -> Cell:
    if trend.change is None:
        return Cell("nothing before" if len(trend.points) < 2 else "from zero", QUIET)
    better = trend.is_better
    word = "" if better is None else " better" if better else " worse"
    return Cell(f"{trend.change * 100:+.1f} %{word}", None if better is None else GOOD if better else BAD)
