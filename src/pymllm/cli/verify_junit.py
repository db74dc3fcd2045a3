"""The verdicts of a verification as JUnit XML: one suite per adapter, one case per law."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pymllm.conformance.program_text import write_program
from pymllm.conformance.results import AdapterResult, LawResult, VerifyReport
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
        A violated law is a failure, an unknown one an error, one that is not claimed is skipped.
    """
    root = ElementTree.Element("testsuites", name="pymllm verify", time=f"{report.seconds:.3f}")
    for adapter in report.adapters:
        root.append(_suite(adapter))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(adapter: AdapterResult) -> ElementTree.Element:
    cases = [_case(adapter, result) for result in adapter.laws] or [_unexamined(adapter)]
    return _with_counts(adapter, cases)


def _with_counts(adapter: AdapterResult, cases: list[ElementTree.Element]) -> ElementTree.Element:
    counts = {
        plural: str(sum(case.find(singular) is not None for case in cases))
        for plural, singular in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    seconds = sum(machine.seconds for machine in adapter.machines)
    suite = ElementTree.Element("testsuite", name=_clean(adapter.name), tests=str(len(cases)))
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


def _unexamined(adapter: AdapterResult) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=_clean(adapter.name), name="smoke test")
    ElementTree.SubElement(case, "error", message=_clean(_why_unknown(adapter)))
    return case


def _why_unknown(adapter: AdapterResult) -> str:
    return adapter.problems[0].message if adapter.problems else "no program tested it"


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
