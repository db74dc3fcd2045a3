"""Figures over time as plain text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise

from pymllm.errors import UsageError
from pymllm.report.loading import Run
from pymllm.report.machines_section import machine_name
from pymllm.report.quantities import show, show_time
from pymllm.report.trends import Point, Trend, find_trends

__all__ = ["make_text"]


def make_text(runs: Sequence[Run], name: str) -> str:
    """Lay out the figures that have a name, or part of one, a paragraph for each line of a plot.

    Parameters
    ----------
    runs : sequence of Run
        In order of time.
    name : str
        Upper and lower case are the same.

    Raises
    ------
    UsageError
        No figure has it; names the nearest ones.
    """
    trends = find_trends(runs)
    chosen = [trend for trend in trends if name.lower() in trend.name.lower()]
    if not chosen:
        names = sorted({trend.name for trend in trends})
        nearest = get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]
        there = (
            f"there are {', '.join(map(repr, nearest))}" if nearest else "these runs have no figures at all"
        )
        raise UsageError(f"no figure has {name!r} in its name; {there}")
    return "\n\n".join("\n".join(_lines(trend)) for trend in chosen)


def _lines(trend: Trend) -> Iterator[str]:
    code = "" if trend.code is None else f", code {trend.code}"
    better = "" if trend.better is None else f" ({trend.better} is better)"
    yield f"{trend.name}{better}"
    yield f"  {machine_name(trend.machine)}{code}"
    before: tuple[Point | None, ...] = (None, *trend.points)
    for last, point in pairwise(before):
        assert point is not None  # only the first has none before it
        change = ""
        if last is not None and last.value:
            change = f"{(point.value - last.value) / abs(last.value) * 100:+.1f} %"
        commit = "" if point.run.commit is None else point.run.commit[:12]
        line = f"  {show_time(point.run.time)}  {commit:12}  {show(point.value, trend.unit):>14}  {change:>9}"
        yield line.rstrip()
