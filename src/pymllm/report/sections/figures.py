"""The sections of figures over time, in comparison with peers, and on GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from pymllm.instrument.peer_comparison import OURS, PeerComparison, ScenarioRow
from pymllm.report.blocks import (
    BAD,
    GOOD,
    PALETTE,
    QUIET,
    UNKNOWN,
    Cell,
    Choice,
    Column,
    Panel,
    Part,
    Plot,
    Table,
    Tile,
    legend,
    log_axis,
    make_table,
    number,
    or_quiet,
    scatter,
    short_names,
)
from pymllm.report.documents import GpuBenchmarksDocument, GpuCase
from pymllm.report.loading import Run, documents_of, grouped
from pymllm.report.quantities import machine_name, scale_of, show, show_count, show_time
from pymllm.report.trends import Point, Trend, find_trends

# -- trends --------------------------------------------------------------------------------------------------


_FOLDED = 40


def make_trends_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of figures that have a better direction, with plots of those in several runs."""
    trends = [trend for trend in find_trends(runs) if trend.better is not None]
    drawn = [trend for trend in trends if len(trend.points) > 1]
    if drawn:
        yield _plot(drawn)
        yield make_table("Figures of several runs", drawn, _COLUMNS, folded=len(drawn) > _FOLDED)
    if alone := [trend for trend in trends if len(trend.points) == 1]:
        yield make_table("Figures of one run", alone, _COLUMNS[:-3], folded=len(alone) > 12)
    if trends:
        yield Tile(show_count(len({trend.name for trend in trends})), "figures")


def _plot(trends: Sequence[Trend]) -> Plot:
    by_group = list(grouped(trends, lambda it: it.points[0].figure.plot or it.name).items())
    by_group.sort(key=lambda item: -max(len(it.points) for it in item[1]))
    return Plot(
        "plot-trends",
        "Figures over time",
        "Values over time, a picture for each of the chosen figures, with a line for each machine and each "
        "version of the benchmark's code.",
        [_choice(group, its) for group, its in by_group],
        "figures",
    )


def _choice(group: str, trends: Sequence[Trend]) -> Choice:
    by_name = grouped(trends, lambda trend: trend.name)
    panels = [
        _panel(title, its, is_alone=len(by_name) == 1)
        for title, its in zip(short_names(list(by_name)), by_name.values(), strict=True)
    ]
    return Choice(group if len(by_name) > 1 else trends[0].name, panels)


def _panel(title: str, trends: Sequence[Trend], *, is_alone: bool) -> Panel:
    scale, shown = scale_of((point.value for trend in trends for point in trend.points), trends[0].unit)
    unit = f"{shown or 'number'}, {trends[0].better} is better"
    layout = {
        "xaxis": {"title": {"text": "time (UTC)"}, "type": "date", "range": _days_around(trends)},
        "yaxis": {"rangemode": "tozero"},
        "height": 400 if is_alone else 260,
        **legend(),
        "showlegend": len(trends) > 1,
    }
    return Panel([_line(trend, scale) for trend in trends], layout, unit if is_alone else f"{title}: {unit}")


def _days_around(trends: Sequence[Trend]) -> list[str]:
    """Return the axis slightly widened before the first and after the last point."""
    times = [datetime.fromisoformat(point.run.time) for trend in trends for point in trend.points]
    room = max((max(times) - min(times)) / 20, timedelta(seconds=1))
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
        yield f"commit {point.run.commit_words}"
    versions = point.run.versions
    yield from (f"{name} {versions[name]}" for name in ("python", "torch", "driver") if name in versions)


def _change(trend: Trend) -> Cell:
    if trend.change is None:
        return Cell("from zero", QUIET)
    better = trend.is_better
    word = "" if better is None else " better" if better else " worse"
    return Cell(f"{trend.change * 100:+.1f} %{word}", None if better is None else GOOD if better else BAD)


def _spark(trend: Trend) -> Cell:
    return Cell("", spark=tuple(it.value for it in trend.points), hint=f"{len(trend.points)} points")


_COLUMNS = (
    Column("figure", lambda it: it.name),
    Column("machine", lambda it: machine_name(it.machine)),
    Column("code", lambda it: or_quiet(it.code, missing="no hash")),
    Column("better", lambda it: it.better),
    number("newest", lambda it: show(it.points[-1].value, it.unit)),
    number("points", lambda it: show_count(len(it.points))),
    number("change", _change),
    Column("over time", _spark),
)


# -- peers ---------------------------------------------------------------------------------------------------


_GREY = ("limit", "target")  # nobody who took part
_TONES = {"ahead": GOOD, "level": None, "behind": BAD, "alone": QUIET}
_SYMBOLS = {OURS: "circle", "limit": "line-ns-open", "target": "diamond-open"}


def make_peers_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of comparisons with peers, the newest first."""
    found = [(it, run) for it, run in documents_of(reversed(runs), PeerComparison) if it.scenarios]
    if not found:
        return
    yield Plot(
        "plot-peers",
        "Times as multiples of ours",
        "For each scenario, how many times as long as ours each peer, the limit and the target take, on a "
        "logarithmic scale.",
        [_peer_choice(document, run) for document, run in found],
        "run",
    )
    for document, run in found:
        yield _scenarios(document, run)
        yield _contenders(document)
    verdicts = [row.verdict for row in found[0][0].scenarios]
    compared = len(verdicts) - verdicts.count("alone")
    if compared:
        yield Tile(f"{verdicts.count('ahead')} of {compared}", "scenarios ahead of every peer")


def _ours(row: ScenarioRow) -> float | None:
    return next((it.value for it in row.standings if it.contender == OURS), None)


def _peer_choice(document: PeerComparison, run: Run) -> Choice:
    marks: dict[str, list[tuple[str, float, str]]] = {}
    for row in document.scenarios:
        ours = _ours(row)
        if not ours:
            continue
        others = [(standing.contender, standing.value) for standing in row.standings]
        for who, value in (*others, ("limit", row.limit), ("target", row.target)):
            if value > 0:
                mark = f"{row.id} {row.title}", value / ours, show(value, row.unit)
                marks.setdefault(who, []).append(mark)
    contenders = [who for who in marks if who not in _GREY]
    colors = dict.fromkeys(marks, PALETTE[-1])
    colors |= {who: PALETTE[place % (len(PALETTE) - 1)] for place, who in enumerate(contenders)}
    traces = [
        scatter(
            who,
            [ratio for _, ratio, _ in places],
            [name for name, _, _ in places],
            mode="markers",
            text=[text for _, _, text in places],
            marker={"size": 11, "symbol": _SYMBOLS.get(who, "square"), "color": colors[who]},
            hovertemplate="%{y}<br>%{text}, %{x:.3g} times ours<extra>%{fullData.name}</extra>",
        )
        for who, places in marks.items()
    ]
    one = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    layout = {
        "xaxis": log_axis("times ours", [ratio for places in marks.values() for _, ratio, _ in places]),
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "height": 170 + 34 * len(document.scenarios),
        **legend(above=True),
        "shapes": [{**one, "line": {"dash": "dot", "width": 1}}],
    }
    return Choice(run.hint, [Panel(traces, layout)], "What lies to the left of 1 is quicker than ours.")


def _scenarios(document: PeerComparison, run: Run) -> Table:
    columns = [
        Column("scenario", lambda it: Cell(f"{it.id} {it.title}", hint=f"{it.statistic}; code {it.code}")),
        number("ours", lambda it: show(_ours(it), it.unit)),
        number("best peer", _best_peer),
        number("ratio", _ratio),
        Column("verdict", lambda it: Cell(it.verdict, _TONES.get(it.verdict))),
        Column("limit", lambda it: f"{show(it.limit, it.unit)} ({it.limit_of})"),
        number("target", _target),
    ]
    caption = f"{show_time(run.time)} UTC: {document.slice}, {document.clock} time"
    return make_table(caption, document.scenarios, columns)


def _best_peer(row: ScenarioRow) -> Cell:
    best = next((it for it in row.standings if it.contender == row.best_peer), None)
    return (
        Cell("no peer", QUIET) if best is None else Cell(f"{show(best.value, row.unit)} ({best.contender})")
    )


def _ratio(row: ScenarioRow) -> Cell:
    it = row.ratio
    if it is None:
        return Cell("no peer", QUIET)
    text = f"{show_count(it.value)} ({show_count(it.low)} to {show_count(it.high)})"
    return Cell(text, hint=f"{it.confidence:.0%} over {it.rounds} rounds")


def _target(row: ScenarioRow) -> Cell:
    word = "reached" if row.reached else "not reached"
    return Cell(f"{show(row.target, row.unit)}, {word}", GOOD if row.reached else UNKNOWN)


def _contenders(document: PeerComparison) -> Table:
    columns = [
        Column("contender", lambda it: it.name),
        Column("package", lambda it: f"{it.package} {it.version or ''}".strip()),
        Column("why not", lambda it: Cell(it.reason or "took part", UNKNOWN if it.reason else GOOD)),
    ]
    return make_table("Who could take part", document.contenders, columns, folded=True)


# -- gpu -----------------------------------------------------------------------------------------------------


def make_gpu_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of results on GPUs, by run and the newest first."""
    found = [(it, run) for it, run in documents_of(reversed(runs), GpuBenchmarksDocument) if it.results]
    for document, run in found:
        yield _gpu_table(document, run)
    goals = [goal for document, _ in found[:1] for case in document.results for goal in case.goals]
    if goals:
        met = sum(goal.is_met for goal in goals)
        yield Tile(f"{met} of {len(goals)}", "goals met on the GPU", GOOD if met == len(goals) else UNKNOWN)


def _gpu_table(document: GpuBenchmarksDocument, run: Run) -> Table:
    machine = document.machine
    driver = machine.driver or "unknown"
    columns = [
        Column("case", lambda it: it.name),
        Column("sizes and types", lambda it: ", ".join(f"{key} {value}" for key, value in it.case.items())),
        Column("mode", lambda it: it.mode),
        Column(
            "times, median",
            lambda it: ", ".join(f"{who} {show(time.median_us, 'us')}" for who, time in it.times.items()),
        ),
        number("speed of ours", lambda it: f"{show_count(round(it.gigabytes_per_second, 1))} GB/s"),
        Column("goals", _goals),
    ]
    caption = f"{show_time(run.time)} UTC: {machine.device}, driver {driver}, torch {machine.torch}"
    return make_table(caption, document.results, columns)


def _goals(it: GpuCase) -> Cell:
    if not it.goals:
        return Cell("none", QUIET)
    words = "; ".join(
        f"{'✓ met' if goal.is_met else '✗ missed'}: {goal.what} {show_count(goal.value)}, "
        f"{'at least' if goal.is_least else 'at most'} {show_count(goal.bound)}"
        for goal in it.goals
    )
    return Cell(words, GOOD if all(goal.is_met for goal in it.goals) else UNKNOWN)
