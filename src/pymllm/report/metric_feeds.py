"""Figures for services that keep them over time: Bencher's metric format, and OpenMetrics text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from pymllm.conformance.documents import FaultsDocument, SoakDocument
from pymllm.instrument.openmetrics import Family, Sample, make_text
from pymllm.oracle.verdicts import Verdict
from pymllm.report.loading import Run, newest_document
from pymllm.report.sections.searches import newest_searches
from pymllm.report.trends import Trend, find_trends
from pymllm.text_file import cut

_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def name_each(trends: Sequence[Trend]) -> Iterator[tuple[str, Trend]]:
    """Give each trend its name, with machine and code behind it where several have the same."""
    names = Counter(trend.name for trend in trends)
    for trend in trends:
        yield (
            (trend.name if names[trend.name] == 1 else f"{trend.name} [{', '.join(place_of(trend))}]"),
            trend,
        )


def place_of(trend: Trend) -> Iterator[str]:
    """Name the machine of a trend, and the code that measured it where there are several."""
    yield trend.machine.fingerprint if trend.machine is not None else trend.points[-1].run.source
    if trend.code is not None:
        yield f"code {trend.code}"


# -- Bencher -------------------------------------------------------------------------------------------------


def make_bencher_feed(runs: Sequence[Run]) -> str:
    """Write the newest figures in Bencher Metric Format, with the ends of their spread where it is known.

    A measure is named after the unit. Times have Bencher's own measure ``latency``, in nanoseconds, and a
    share is in per cent.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, trend in name_each(find_trends(runs)):
        figure = trend.points[-1].figure
        measure, scale = _measure(trend.unit)
        numbers = {"value": figure.value, "lower_value": figure.low, "upper_value": figure.high}
        scaled = {key: number * scale for key, number in numbers.items() if number is not None}
        found.setdefault(name, {})[measure] = scaled
    return json.dumps(found, indent=2, allow_nan=False)


def _measure(unit: str) -> tuple[str, float]:
    if unit in _TIMES:
        return "latency", _TIMES[unit] * 1e9
    if unit == "share":
        return "percent", 100.0
    return re.sub(r"[^a-z0-9]+", "-", unit.lower().replace("/s", " per second")).strip("-") or "count", 1.0


# -- OpenMetrics ---------------------------------------------------------------------------------------------


def make_openmetrics(runs: Sequence[Run]) -> str:
    """Write verdicts and the newest figures as OpenMetrics text, such as a textfile collector reads.

    Units are Prometheus' own: seconds, bytes and ratios. Lines have no time, which a collector refuses;
    ``pymllm_run_time_seconds`` says when the newest run of each kind ended.
    """
    return make_text([*_verdicts(runs), *_campaigns(runs), *_figures(runs), _times(runs)])


def _verdicts(runs: Sequence[Run]) -> Iterator[Family]:
    searches = newest_searches(runs)
    counts = tuple(
        Sample(sum(law.verdict is verdict for law in it.adapter.laws), {"adapter": it.name, "verdict": word})
        for it in searches
        for verdict, word in ((verdict, verdict.value.replace(" ", "_")) for verdict in Verdict)
    )
    yield Family("pymllm_laws", "gauge", "", "Laws of each implementation by verdict.", counts)
    broken = tuple(
        Sample(1, {"adapter": it.name, "law": law.id})
        for it in searches
        for law in it.adapter.laws
        if law.verdict is Verdict.VIOLATED
    )
    yield Family("pymllm_law_violated", "gauge", "", "Laws that are violated.", broken)
    # An implementation that could not be loaded has no law, and would otherwise be a row of zeros.
    problems = {
        (it.name, cut(problem.message, 200)): it for it in searches for problem in it.adapter.problems
    }
    told = tuple(Sample(1, {"adapter": name, "reason": reason}) for name, reason in problems)
    yield Family("pymllm_problem", "gauge", "", "Why implementations could not be examined to the end.", told)


def _campaigns(runs: Sequence[Run]) -> Iterator[Family]:
    if faults := newest_document(runs, FaultsDocument):
        counts = Sample(faults.caught, {"outcome": "caught"}), Sample(faults.missed, {"outcome": "missed"})
        yield Family("pymllm_faults", "gauge", "", "Planted faults by outcome.", counts)
    if soak := newest_document(runs, SoakDocument):
        of = [(it, {"adapter": it.name}) for it in soak.adapters]
        played = tuple(Sample(it.operations, labels) for it, labels in of)
        failed = tuple(Sample(len(it.failures), labels) for it, labels in of)
        yield Family("pymllm_soak_operations", "gauge", "", "Operations that a soak judged.", played)
        yield Family("pymllm_soak_failures", "gauge", "", "Ways in which a soak failed.", failed)


def _figures(runs: Sequence[Run]) -> Iterator[Family]:
    for trend in find_trends(runs):
        unit, scale = "", 1.0
        if trend.unit in _TIMES:
            unit, scale = "seconds", _TIMES[trend.unit]
        elif trend.unit in ("bytes", "share"):
            unit = {"bytes": "bytes", "share": "ratio"}[trend.unit]
        labels = {"name": trend.name, "machine": next(place_of(trend)), "code": trend.code or ""}
        labels |= {} if unit else {"unit": trend.unit or "count"}
        name = f"pymllm_figure_{unit}" if unit else "pymllm_figure"
        value = trend.points[-1].value * scale
        yield Family(name, "gauge", unit, "Newest value of each figure.", (Sample(value, labels),))


def _times(runs: Sequence[Run]) -> Family:
    ended = {run.kind: datetime.fromisoformat(run.time).timestamp() for run in runs}
    samples = tuple(Sample(time, {"kind": kind}) for kind, time in ended.items())
    return Family("pymllm_run_time_seconds", "gauge", "seconds", "When the newest run ended.", samples)
