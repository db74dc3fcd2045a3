"""The results of a search beside its text or document: lines on standard error, and JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from pymllm.cli.output import complain, escaped
from pymllm.documents.searches import VerifyDocument
from pymllm.report.findings import known_texts
from pymllm.report.sections.verification import cut_short, passed_over


def complain_of(document: VerifyDocument) -> None:
    """Name in one line each, beside a JSON document, the points for its reader to look at."""
    for adapter in document.adapters:
        for it in adapter.violations:
            complain(f"{adapter.name} violates {it.law}: {it.message}")
        for problem in adapter.problems:
            complain(f"{adapter.name} could not be examined to the end: {problem.message}")
    if short := cut_short(document):
        complain(short)
    for text in (*known_texts(document.deviations), *passed_over(document)):
        if text.tone:
            complain(escaped(text.text.partition(" ")[2].strip()))
    for row in document.goals if document.strict else ():
        if row.unmet:
            complain(f"{row.machine} never reached: {row.name} ({', '.join(row.unmet)})")


# -- as JUnit XML ------------------------------------------------------------------------------------------


def make_junit(document: VerifyDocument) -> str:
    """Write the verdicts as JUnit XML: a suite for each adapter, and the goals of a strict search as one."""
    from pymllm.report.feeds import add_search, add_suite, make_case, make_xml

    root = ElementTree.Element("testsuites", name="pymllm verify", time=f"{document.seconds:.3f}")
    for adapter in document.adapters:
        add_search(root, adapter)
    if document.strict and document.goals:
        cases = [
            make_case(
                it.machine,
                it.name,
                "failure" if it.unmet else None,
                f"never reached with {', '.join(it.unmet)}",
            )
            for it in document.goals
        ]
        add_suite(root, "coverage goals", 0.0, cases)
    if document.deviations:
        gone = "failure" if document.strict else "skipped"
        cases = [
            make_case(it.law, it.name, gone if it.status == "gone" else None, "no program met it")
            for it in document.deviations
        ]
        add_suite(root, "known deviations", 0.0, cases)
    return make_xml(root)
