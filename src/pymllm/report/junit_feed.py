"""Verdicts of all runs as JUnit XML: laws, faults and soaks, for whatever shows the tests of a build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from pymllm.oracle.verdicts import Verdict
from pymllm.report.junit_xml import add_suite, make_case, make_text
from pymllm.report.laws_section import Searched, newest_searches
from pymllm.report.loading import Run
from pymllm.report.search_documents import FaultsDocument, LawRow, SoakDocument, SoakedAdapter

__all__ = ["make_junit"]


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
        add_suite(root, it.adapter.name, sum(machine.seconds for machine in it.adapter.machines), cases)
    for run in runs:
        for document in run.documents:
            if isinstance(document, FaultsDocument):
                add_suite(root, "faults", document.seconds, list(_fault_cases(document)))
            elif isinstance(document, SoakDocument):
                for adapter in document.adapters:
                    add_suite(root, f"soak {adapter.name}", adapter.seconds, list(_soak_cases(adapter)))
    return make_text(root)


def _law_case(it: Searched, law: LawRow) -> ElementTree.Element:
    name = f"{law.id} {law.sentence}"
    if law.verdict == Verdict.VIOLATED.value:
        violation = next((row for row in it.adapter.violations if row.law == law.id), None)
        message, program = (violation.message, violation.program) if violation else ("violated", "")
        return make_case(it.adapter.name, name, "failure", message, program)
    if law.verdict == Verdict.UNKNOWN.value:
        return make_case(it.adapter.name, name, "error", _why_unknown(it))
    if law.verdict == Verdict.NOT_CLAIMED.value:
        return make_case(it.adapter.name, name, "skipped", "not claimed")
    return make_case(it.adapter.name, name)


def _unexamined(it: Searched) -> ElementTree.Element:
    return make_case(it.adapter.name, "smoke test", "error", _why_unknown(it))


def _why_unknown(it: Searched) -> str:
    return it.adapter.problems[0].message if it.adapter.problems else "no program tested it"


def _fault_cases(document: FaultsDocument) -> Iterator[ElementTree.Element]:
    for fault in document.faults:
        name = f"{fault.id} {fault.title}"
        if fault.caught:
            yield make_case("faults", name)
        else:
            why = "; ".join(fault.problems) or f"no law of {', '.join(fault.laws)} caught it"
            yield make_case("faults", name, "failure", why)


def _soak_cases(adapter: SoakedAdapter) -> Iterator[ElementTree.Element]:
    suite = f"soak {adapter.name}"
    if not adapter.failures:
        yield make_case(suite, f"{adapter.operations:,} operations")
    for row in adapter.failures:
        law = row.failure.law
        outcome = "failure" if law else "error"
        where = f"seed {row.seed} in {row.machine}, {row.runs} runs"
        yield make_case(suite, law or "asked to the end", outcome, row.failure.message, where)
