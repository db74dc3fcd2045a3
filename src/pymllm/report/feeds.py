"""Feeds of verdicts and figures for other people's dashboards and services."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from xml.etree import ElementTree

from pymllm.instrument.openmetrics import Family, Sample, make_text
from pymllm.oracle.verdicts import Verdict
from pymllm.report.loading import Run
from pymllm.report.outcomes import Suite
from pymllm.report.quantities import SECONDS, show
from pymllm.report.sections import tell_all
from pymllm.report.sections.searches import newest_searches
from pymllm.report.sections.vectors import newest_vectors
from pymllm.report.trends import Trend, find_trends

# -- shields.io ----------------------------------------------------------------------------------------------


def make_badge(runs: Sequence[Run], label: str = "laws") -> str:
    """Return a badge for shields.io that sums up the laws in each implementation's newest search."""
    searches = newest_searches(runs)
    counts = Counter(law.verdict for it in searches for law in it.adapter.laws)
    order = (Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.HOLDS)
    words = ", ".join(_words(it, counts[it]) for it in order if counts[it])
    if counts[Verdict.VIOLATED]:
        color = "red"
    elif counts[Verdict.UNKNOWN] or any(it.adapter.verdict is Verdict.UNKNOWN for it in searches):
        color = "yellow"
    else:
        color = "brightgreen" if words else "lightgrey"
    badge = {"schemaVersion": 1, "label": label, "message": words or "not searched", "color": color}
    return json.dumps(badge)


def make_vectors_badge(runs: Sequence[Run]) -> str:
    """Return a badge that sums up the vectors on all implementations; known deviations are no failures."""
    documents = newest_vectors(runs)
    passed, wrong = sum(it.passed for it in documents), sum(it.unknown for it in documents)
    known = sum(it.failed for it in documents) - wrong
    counts = ((wrong, "fail"), (known, "known"), (passed, "pass"))
    words = ", ".join(f"{count} {word}" for count, word in counts if count)
    is_unknown = any(it.verdict is Verdict.UNKNOWN for it in documents)
    color = "red" if wrong else "yellow" if is_unknown else "brightgreen" if words else "lightgrey"
    message = words or ("all skipped" if documents else "not played")
    return json.dumps({"schemaVersion": 1, "label": "vectors", "message": message, "color": color})


def _words(verdict: Verdict, count: int) -> str:
    if verdict is Verdict.HOLDS:
        return f"{count} hold" if count != 1 else "1 holds"
    return f"{count} {verdict.value}"


# -- figures: names of their own -----------------------------------------------------------------------------


def name_each(trends: Sequence[Trend]) -> Iterator[tuple[str, Trend]]:
    """Name each trend, adding machine and code where several trends have the same name."""
    names = Counter(trend.name for trend in trends)
    for trend in trends:
        yield (
            (trend.name if names[trend.name] == 1 else f"{trend.name} [{', '.join(place_of(trend))}]"),
            trend,
        )


def place_of(trend: Trend) -> Iterator[str]:
    """Return the machine of a trend, with the measuring code if there are several."""
    yield trend.machine.fingerprint if trend.machine is not None else trend.points[-1].run.source
    if trend.code is not None:
        yield f"code {trend.code}"


# -- github-action-benchmark ---------------------------------------------------------------------------------


def make_action_feed(runs: Sequence[Run], better: str) -> str:
    """Return the newest figures in the form of ``customSmallerIsBetter`` or ``customBiggerIsBetter``.

    The action takes one array for each. Medians of pytest-benchmark are left out, since its tool ``pytest``
    reads those itself. Where several machines, or several versions of a benchmark's code, have a figure of
    one name, each has them in its name, so that the action never compares them.
    """
    trends = [it for it in find_trends(runs) if it.better == better and not _is_read_by_pytest(it)]
    entries = [
        {
            "name": name,
            "unit": "%" if trend.unit == "share" else trend.unit or "count",
            "value": trend.points[-1].value * (100 if trend.unit == "share" else 1),
            **_range(trend),
            "extra": "\n".join(_extra(trend)),
        }
        for name, trend in name_each(trends)
    ]
    return json.dumps(entries, indent=2, allow_nan=False)


def _is_read_by_pytest(trend: Trend) -> bool:
    return trend.points[-1].run.kind == "benchmark" and trend.name.endswith(": median")


def _range(trend: Trend) -> dict[str, str]:
    figure = trend.points[-1].figure
    if figure.low is None or figure.high is None:
        return {}
    return {"range": f"{show(figure.low, trend.unit)} to {show(figure.high, trend.unit)}"}


def _extra(trend: Trend) -> Iterator[str]:
    run = trend.points[-1].run
    yield f"machine: {', '.join(place_of(trend))}"
    yield f"time: {run.time}"
    if run.commit is not None:
        yield f"commit: {run.commit}{', modified' if run.modified else ''}"


# -- Bencher -------------------------------------------------------------------------------------------------


def make_bencher_feed(runs: Sequence[Run]) -> str:
    """Return the newest figures in Bencher Metric Format, with the ends of their spread if known.

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
    if unit in SECONDS:
        return "latency", SECONDS[unit] * 1e9
    if unit == "share":
        return "percent", 100.0
    return re.sub(r"[^a-z0-9]+", "-", unit.lower().replace("/s", " per second")).strip("-") or "count", 1.0


# -- OpenMetrics ---------------------------------------------------------------------------------------------


def make_openmetrics(runs: Sequence[Run]) -> str:
    """Return verdicts and the newest figures as OpenMetrics text, for a textfile collector.

    Units are Prometheus' own: seconds, bytes and ratios. Lines have no time, which a collector refuses;
    ``pymllm_run_time_seconds`` says when the newest run of each kind ended.
    """
    told = (family for outcome in tell_all(runs) for family in outcome.families)
    return make_text([*told, *_figures(runs), _times(runs)])


def _figures(runs: Sequence[Run]) -> Iterator[Family]:
    for trend in find_trends(runs):
        unit, scale = "", 1.0
        if trend.unit in SECONDS:
            unit, scale = "seconds", SECONDS[trend.unit]
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


# -- JUnit XML -----------------------------------------------------------------------------------------------

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OUTCOMES = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def make_junit(runs: Sequence[Run]) -> str:
    """Return outcomes as JUnit XML, with a suite for each implementation and for planted faults."""
    return write_junit("pymllm report", [suite for it in tell_all(runs) for suite in it.suites])


def write_junit(name: str, suites: Iterable[Suite], seconds: float | None = None) -> str:
    """Return suites as indented XML, with the counts of failed, erroneous and skipped cases in each.

    A case without a text has its message in the element, too: GitLab shows no attribute.
    """
    root = ElementTree.Element("testsuites", name=name)
    root.attrib |= {} if seconds is None else {"time": f"{seconds:.3f}"}
    for it in suites:
        counts = {
            plural: str(sum(case.outcome == outcome for case in it.cases))
            for plural, outcome in _OUTCOMES.items()
        }
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(it.name), tests=str(len(it.cases)))
        suite.attrib |= {"time": f"{it.seconds:.3f}", **counts}
        for case in it.cases:
            named = {"classname": _clean(case.subject), "name": _clean(case.name)}
            element = ElementTree.SubElement(suite, "testcase", named)
            if case.outcome is not None:
                said = ElementTree.SubElement(element, case.outcome, message=_clean(case.message))
                said.text = _clean(case.text or case.message) or None
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
