"""The verdicts of a verification as JUnit XML: one suite per adapter, one case per law."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pymllm.conformance.program_text import write_program
from pymllm.conformance.results import AdapterResult, LawResult, SituationResult, VerifyReport
from pymllm.oracle.verdicts import Verdict

__all__ = ["make_junit"]

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def make_junit(report: VerifyReport) -> str:
    """Write a report as JUnit XML.

    Parameters
    ----------
    report : VerifyReport
        Of the verification.

    Returns
    -------
    str
        A violated law is a failure, an unknown one an error, one that is not claimed is skipped. Where the
        report is strict, a situation that was never reached is a failure in a suite of its own.
    """
    root = ElementTree.Element("testsuites", name="pymllm verify", time=f"{report.seconds:.3f}")
    for adapter in report.adapters:
        root.append(_suite(adapter))
    if report.is_strict and report.situations:
        root.append(_with_counts("situations", 0.0, [_situation(row) for row in report.situations]))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(adapter: AdapterResult) -> ElementTree.Element:
    cases = [_case(adapter, result) for result in adapter.laws] or [_unexamined(adapter)]
    return _with_counts(adapter.name, sum(machine.seconds for machine in adapter.machines), cases)


def _with_counts(name: str, seconds: float, cases: list[ElementTree.Element]) -> ElementTree.Element:
    counts = {
        plural: str(sum(case.find(singular) is not None for case in cases))
        for plural, singular in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    suite = ElementTree.Element("testsuite", name=_clean(name), tests=str(len(cases)))
    suite.attrib |= {"time": f"{seconds:.3f}", **counts}
    suite.extend(cases)
    return suite


def _case(adapter: AdapterResult, result: LawResult) -> ElementTree.Element:
    law = result.law
    case = ElementTree.Element("testcase", classname=_clean(adapter.name), name=f"{law.id} {law.sentence}")
    if result.verdict is Verdict.VIOLATED:
        finding = next(found for found in adapter.findings if found.law == law.id)
        failure = ElementTree.SubElement(case, "failure", message=_clean(str(finding.violation)))
        failure.text = _clean(f"{finding.violation}\n\n{write_program(finding.history)}")
    elif result.verdict is Verdict.UNKNOWN:
        ElementTree.SubElement(case, "error", message=_clean(_why_unknown(adapter)))
    elif result.verdict is Verdict.NOT_CLAIMED:
        ElementTree.SubElement(case, "skipped", message="not claimed")
    return case


def _situation(row: SituationResult) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=row.machine, name=row.name)
    if row.unmet:
        ElementTree.SubElement(case, "failure", message=_clean(f"never reached with {', '.join(row.unmet)}"))
    return case


def _unexamined(adapter: AdapterResult) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=_clean(adapter.name), name="smoke test")
    ElementTree.SubElement(case, "error", message=_clean(_why_unknown(adapter)))
    return case


def _why_unknown(adapter: AdapterResult) -> str:
    return adapter.problems[0].message if adapter.problems else "no program tested it"


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
