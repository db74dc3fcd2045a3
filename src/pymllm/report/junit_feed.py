"""Verdicts of all runs as JUnit XML: laws, faults and soaks, for whatever shows the tests of a build."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from pymllm.oracle.verdicts import Verdict
from pymllm.report.documents import FaultsDocument, LawRow, SoakDocument, SoakedAdapter
from pymllm.report.laws_section import Searched, newest_searches
from pymllm.report.loading import Run

__all__ = ["make_junit"]

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def make_junit(runs: Sequence[Run]) -> str:
    """Write the verdicts as JUnit XML.

    Parameters
    ----------
    runs : sequence of Run
        In order of time.

    Returns
    -------
    str
        A suite for each implementation that was searched, as its newest run found it, one for faults, and one
        for each implementation that was soaked, in each run. A violated law, a missed fault and a run that
        broke a law are failures, what is unknown is an error, and what is not claimed is skipped.
    """
    root = ElementTree.Element("testsuites", name="pymllm report")
    for it in newest_searches(runs):
        cases = [_law_case(it, law) for law in it.adapter.laws] or [_unexamined(it)]
        _add(root, it.adapter.name, sum(machine.seconds for machine in it.adapter.machines), cases)
    for run in runs:
        for document in run.documents:
            if isinstance(document, FaultsDocument):
                _add(root, "faults", document.seconds, list(_fault_cases(document)))
            elif isinstance(document, SoakDocument):
                for adapter in document.adapters:
                    _add(root, f"soak {adapter.name}", adapter.seconds, list(_soak_cases(adapter)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(root: ElementTree.Element, name: str, seconds: float, cases: Sequence[ElementTree.Element]) -> None:
    counts = {
        plural: str(sum(case.find(singular) is not None for case in cases))
        for plural, singular in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(name), tests=str(len(cases)))
    suite.attrib |= {"time": f"{seconds:.3f}", **counts}
    suite.extend(cases)


def _case(suite: str, name: str, outcome: str = "", message: str = "", text: str = "") -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=_clean(suite), name=_clean(name))
    if outcome:
        said = ElementTree.SubElement(case, outcome, message=_clean(message))
        said.text = _clean(text) or None
    return case


def _law_case(it: Searched, law: LawRow) -> ElementTree.Element:
    name = f"{law.id} {law.sentence}"
    if law.verdict == Verdict.VIOLATED.value:
        violation = next((row for row in it.adapter.violations if row.law == law.id), None)
        message, program = (violation.message, violation.program) if violation else ("violated", "")
        return _case(it.adapter.name, name, "failure", message, program)
    if law.verdict == Verdict.UNKNOWN.value:
        return _case(it.adapter.name, name, "error", _why_unknown(it))
    if law.verdict == Verdict.NOT_CLAIMED.value:
        return _case(it.adapter.name, name, "skipped", "not claimed")
    return _case(it.adapter.name, name)


def _unexamined(it: Searched) -> ElementTree.Element:
    return _case(it.adapter.name, "smoke test", "error", _why_unknown(it))


def _why_unknown(it: Searched) -> str:
    return it.adapter.problems[0].message if it.adapter.problems else "no program tested it"


def _fault_cases(document: FaultsDocument) -> Iterator[ElementTree.Element]:
    for fault in document.faults:
        name = f"{fault.id} {fault.title}"
        if fault.caught:
            yield _case("faults", name)
        else:
            why = "; ".join(fault.problems) or f"no law of {', '.join(fault.laws)} caught it"
            yield _case("faults", name, "failure", why)


def _soak_cases(adapter: SoakedAdapter) -> Iterator[ElementTree.Element]:
    suite = f"soak {adapter.name}"
    if not adapter.failures:
        yield _case(suite, f"{adapter.operations:,} operations")
    for row in adapter.failures:
        law = row.failure.law
        outcome = "failure" if law else "error"
        where = f"seed {row.seed} in {row.machine}, {row.runs} runs"
        yield _case(suite, law or "asked to the end", outcome, row.failure.message, where)


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
