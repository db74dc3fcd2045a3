"""The verdicts of a verification as JUnit XML: one suite per adapter, one case per law."""

from __future__ import annotations

from xml.etree import ElementTree

from pymllm.conformance.program_text import write_program
from pymllm.conformance.results import AdapterResult, LawResult, SituationResult, VerifyReport
from pymllm.oracle.verdicts import Verdict
from pymllm.report.feeds import add_suite, make_case, make_xml

__all__ = ["make_junit"]


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
        cases = [_case(adapter, result) for result in adapter.laws] or [_unexamined(adapter)]
        add_suite(root, adapter.name, sum(machine.seconds for machine in adapter.machines), cases)
    if report.is_strict and report.situations:
        add_suite(root, "situations", 0.0, [_situation(row) for row in report.situations])
    return make_xml(root)


def _case(adapter: AdapterResult, result: LawResult) -> ElementTree.Element:
    name = f"{result.law.id} {result.law.sentence}"
    if result.verdict is Verdict.VIOLATED:
        finding = next(found for found in adapter.findings if found.law == result.law.id)
        text = f"{finding.violation}\n\n{write_program(finding.history)}"
        return make_case(adapter.name, name, "failure", str(finding.violation), text)
    if result.verdict is Verdict.UNKNOWN:
        return make_case(adapter.name, name, "error", _why_unknown(adapter))
    if result.verdict is Verdict.NOT_CLAIMED:
        return make_case(adapter.name, name, "skipped", "not claimed")
    return make_case(adapter.name, name)


def _situation(row: SituationResult) -> ElementTree.Element:
    if not row.unmet:
        return make_case(row.machine, row.name)
    return make_case(row.machine, row.name, "failure", f"never reached with {', '.join(row.unmet)}")


def _unexamined(adapter: AdapterResult) -> ElementTree.Element:
    return make_case(adapter.name, "smoke test", "error", _why_unknown(adapter))


def _why_unknown(adapter: AdapterResult) -> str:
    return adapter.problems[0].message if adapter.problems else "no program tested it"
