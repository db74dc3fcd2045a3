"""Figures for github-action-benchmark: all but those which its tool ``pytest`` reads by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from pymllm.report.loading import Run
from pymllm.report.quantities import show
from pymllm.report.trends import Trend, find_trends

__all__ = ["make_action_feed"]


def make_action_feed(runs: Sequence[Run], better: str) -> str:
    """Write the newest figures as the array that ``customSmallerIsBetter`` or ``customBiggerIsBetter`` reads.

    Parameters
    ----------
    runs : sequence of Run
        In order of time.
    better : str
        ``"smaller"`` or ``"bigger"``: the action takes one array for each.

    Returns
    -------
    str
        JSON. Medians of pytest-benchmark are left out, since the action's tool ``pytest`` reads those itself.
        Where several machines, or several versions of a benchmark's code, have a figure of one name, each has
        them in its name, so that the action never compares them.
    """
    trends = [
        trend for trend in find_trends(runs) if trend.better == better and not _is_read_by_pytest(trend)
    ]
    names = Counter(trend.name for trend in trends)
    entries = [
        {
            "name": trend.name if names[trend.name] == 1 else f"{trend.name} [{', '.join(_place(trend))}]",
            "unit": "%" if trend.unit == "share" else trend.unit or "count",
            "value": trend.points[-1].value * (100 if trend.unit == "share" else 1),
            **_range(trend),
            "extra": "\n".join(_extra(trend)),
        }
        for trend in trends
    ]
    return json.dumps(entries, indent=2, allow_nan=False)


def _is_read_by_pytest(trend: Trend) -> bool:
    return trend.points[-1].run.kind == "benchmark" and trend.name.endswith(": median")


def _place(trend: Trend) -> Iterator[str]:
    yield trend.machine.fingerprint if trend.machine is not None else trend.points[-1].run.source
    if trend.code is not None:
        yield f"code {trend.code}"


def _range(trend: Trend) -> dict[str, str]:
    figure = trend.points[-1].figure
    if figure.low is None or figure.high is None:
        return {}
    return {"range": f"{show(figure.low, trend.unit)} to {show(figure.high, trend.unit)}"}


def _extra(trend: Trend) -> Iterator[str]:
    run = trend.points[-1].run
    yield f"machine: {', '.join(_place(trend))}"
    yield f"time: {run.time}"
    if run.commit is not None:
        yield f"commit: {run.commit}{', modified' if run.modified else ''}"
