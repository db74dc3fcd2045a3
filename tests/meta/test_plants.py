"""Each bug that is planted in our classes is noticed by a committed test, too."""

from __future__ import annotations

import re

import pytest
from noticing import Outcome, marked_files, run_with_faults

from pymllm.errors import InvariantViolation
from pymllm.faults.fault import Fault
from pymllm.faults.table import BUGS, PLANTED, UNPLANTED

MARK = re.compile(r"@pytest\.mark\.notices\(([^)]*)\)")
LAW = re.compile(r"\b(?:[XAPKHRSMECI]\d+|section \d)\b")

each_fault = pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.id)


@pytest.fixture(scope="module")
def chosen(request: pytest.FixtureRequest) -> list[Fault]:
    """The faults whose tests are about to run."""
    specs = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {params["fault"].id for params in specs if isinstance(params.get("fault"), Fault)}
    return [fault for fault in PLANTED if fault.id in wanted]


@pytest.fixture(scope="module")
def sound(chosen: list[Fault], pytestconfig: pytest.Config) -> dict[str, Outcome]:
    """Run the noticing tests on the code as it is, and return the outcomes by the fault's id."""
    return run_with_faults({fault.id: () for fault in chosen}, pytestconfig.option.hypothesis_seed)


@pytest.fixture(scope="module")
def faulty(chosen: list[Fault], pytestconfig: pytest.Config) -> dict[str, Outcome]:
    """Run the noticing tests of each fault while the fault is there; return the outcomes by its id."""
    return run_with_faults({fault.id: fault.edits for fault in chosen}, pytestconfig.option.hypothesis_seed)


@each_fault
def test_the_noticing_test_passes_without_the_fault(fault: Fault, sound: dict[str, Outcome]) -> None:
    """It is a test of the law, and not one that always fails."""
    outcome = sound[fault.id]
    assert outcome.passed, f"no test has the mark notices({fault.id!r}), or it fails anyway: {outcome}"


@each_fault
def test_the_planted_fault_is_noticed(fault: Fault, faulty: dict[str, Outcome]) -> None:
    """A test fails while the fault is there, and it fails because a law is broken."""
    outcome = faulty[fault.id]
    assert not outcome.passed, f"{outcome.tests} pass although {fault.title!r} is planted"
    assert outcome.is_noticed, f"it broke otherwise: {outcome.error!r}"


@each_fault
def test_the_notice_is_about_a_law_that_the_fault_breaks(fault: Fault, faulty: dict[str, Outcome]) -> None:
    """The law of the violation, or of the noticing test, was named beforehand."""
    outcome = faulty[fault.id]
    if isinstance(outcome.error, InvariantViolation):
        assert outcome.error.law in fault.laws
    else:
        assert set(LAW.findall(outcome.docstring)) & set(fault.laws), outcome.docstring


def test_every_bug_is_planted_or_has_a_reason() -> None:
    """Each once or the other; a plant bears the bug's title."""
    planted = {fault.entry: fault.title for fault in PLANTED}
    assert planted.keys() & UNPLANTED.keys() == set()
    assert planted | {id: BUGS[id].title for id in UNPLANTED} == {bug.id: bug.title for bug in BUGS.values()}


def test_no_mark_names_a_fault_that_is_not_planted() -> None:
    """Such a test would notice nothing."""
    marks = "\n".join(path.read_text(encoding="utf-8") for path in marked_files())
    named = {name for ids in MARK.findall(marks) for name in re.findall(r'"(B[\w-]+)"', ids)}
    assert named == {fault.id for fault in PLANTED}
