"""Feeds for dashboards and services of other people: verdicts, and figures over time."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from xml.etree import ElementTree

from pymllm.documents.campaigns import SoakDocument, SoakedAdapter
from pymllm.documents.faults import FaultsDocument
from pymllm.documents.probes import ProbeDocument
from pymllm.documents.searches import AdapterRow, LawRow, ViolationRow
from pymllm.errors import InvariantViolation
from pymllm.instrument.openmetrics import Family, Sample, make_text
from pymllm.oracle.verdicts import Verdict
from pymllm.report.loading import Run, newest_document
from pymllm.report.quantities import SECONDS, show
from pymllm.report.sections.probes import name_of, newest_probes
from pymllm.report.sections.searches import newest_searches
from pymllm.report.sections.vectors import newest_vectors
from pymllm.report.trends import Trend, find_trends
from pymllm.text_file import cut

# -- shields.io ----------------------------------------------------------------------------------------------


def make_badge(runs: Sequence[Run], label: str = "laws") -> str:
    """Sum the laws of all implementations up for shields.io's endpoint badge, by their newest searches."""
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
    """Sum up how the vectors went on all implementations, likewise; known deviations are no failures."""
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


# -- github-action-benchmark ---------------------------------------------------------------------------------


def make_action_feed(runs: Sequence[Run], better: str) -> str:
    """Write the newest figures as the array that ``customSmallerIsBetter`` or ``customBiggerIsBetter`` reads.

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
    if unit in SECONDS:
        return "latency", SECONDS[unit] * 1e9
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
    """Write verdicts as JUnit XML: a suite for each implementation searched or soaked, server, and faults."""
    root = ElementTree.Element("testsuites", name="pymllm report")
    for it in newest_searches(runs):
        add_search(root, it.adapter)
    for probe in newest_probes(runs):
        add_suite(root, f"probe {name_of(probe)}", probe.seconds, list(_probe_cases(probe)))
    for document in (document for run in runs for document in run.documents):
        if isinstance(document, FaultsDocument):
            add_suite(root, "faults", document.seconds, list(_fault_cases(document)))
        elif isinstance(document, SoakDocument):
            for adapter in document.adapters:
                add_suite(root, f"soak {adapter.name}", adapter.seconds, list(_soak_cases(adapter)))
    return make_xml(root)


def add_search(root: ElementTree.Element, adapter: AdapterRow) -> None:
    """Put a suite about an implementation into a document: a case for each law."""
    why = adapter.problems[0].message if adapter.problems else "no program tested it"
    broken = {it.law: it for it in reversed(adapter.violations)}
    cases = [_law_case(adapter, law, broken.get(law.id), why) for law in adapter.laws]
    cases = cases or [make_case(adapter.name, "smoke test", "error", why)]
    add_suite(root, adapter.name, sum(machine.seconds for machine in adapter.machines), cases)


def _law_case(adapter: AdapterRow, law: LawRow, it: ViolationRow | None, why: str) -> ElementTree.Element:
    said: tuple[str, ...] = ()
    if law.verdict is Verdict.VIOLATED and it is None:
        said = ("failure", "violated")
    elif law.verdict is Verdict.VIOLATED and it is not None:
        message = str(InvariantViolation(it.law, it.message, expected=it.expected, observed=it.observed))
        said = ("failure", message, f"{message}\n\n{it.program}")
    elif law.verdict is Verdict.UNKNOWN:
        said = ("error", why)
    elif law.verdict is Verdict.NOT_CLAIMED:
        said = ("skipped", "not claimed")
    return make_case(adapter.name, f"{law.id} {law.sentence}", *said)


def _fault_cases(document: FaultsDocument) -> Iterator[ElementTree.Element]:
    for fault in document.faults:
        name = f"{fault.id} {fault.title}"
        why = "; ".join(fault.problems) or f"no law of {', '.join(fault.laws)} caught it"
        yield make_case("faults", name) if fault.caught else make_case("faults", name, "failure", why)


def _probe_cases(document: ProbeDocument) -> Iterator[ElementTree.Element]:
    suite, found = f"probe {name_of(document)}", document.violation
    for law in document.laws:
        said: tuple[str, ...] = ()
        if found is not None and law.id == found.law:
            message = f"{found.message}; expected {found.expected}, observed {found.observed}"
            said = ("failure", message, "\n".join([message, "", *document.program]))
        elif law.verdict is Verdict.UNKNOWN:
            said = ("error", document.failure or law.reason or "")
        elif law.verdict is Verdict.NOT_CLAIMED:
            said = ("skipped", law.reason or "")
        yield make_case(suite, f"{law.id} {law.sentence}", *said)


def _soak_cases(adapter: SoakedAdapter) -> Iterator[ElementTree.Element]:
    suite = f"soak {adapter.name}"
    if not adapter.failures:
        yield make_case(suite, f"{adapter.operations:,} operations")
    for row in adapter.failures:
        law = row.failure.law
        outcome = "failure" if law else "error"
        where = f"seed {row.seed} in {row.machine}, {row.runs} runs"
        yield make_case(suite, law or "asked to the end", outcome, row.failure.message, where)


def make_case(
    suite: str, name: str, outcome: str | None = None, message: str = "", text: str = ""
) -> ElementTree.Element:
    """Make a case; its outcome is ``"failure"``, ``"error"``, ``"skipped"``, or ``None`` where it passed.

    Without a text the message stands in the element, too: GitLab shows no attribute.
    """
    case = ElementTree.Element("testcase", classname=_clean(suite), name=_clean(name))
    if outcome is not None:
        said = ElementTree.SubElement(case, outcome, message=_clean(message))
        said.text = _clean(text or message) or None
    return case


def add_suite(
    root: ElementTree.Element, name: str, seconds: float, cases: Sequence[ElementTree.Element]
) -> None:
    """Put cases into a suite of a document, with how many of them failed, had an error or were skipped."""
    counts = {
        plural: str(sum(case.find(singular) is not None for case in cases))
        for plural, singular in _OUTCOMES.items()
    }
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(name), tests=str(len(cases)))
    suite.attrib |= {"time": f"{seconds:.3f}", **counts}
    suite.extend(cases)


def make_xml(root: ElementTree.Element) -> str:
    """Write a document with its declaration, indented."""
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
