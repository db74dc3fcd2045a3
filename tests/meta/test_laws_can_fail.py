"""Every law of the registry is seen to fail, and names exactly the ways in which it is really checked."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
from spoiling import SPOILED_COUNTERS, SPOILS, Spoil, count_run, judge_spoiled, record

from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import OWN, find_adapter, load_adapter, make_adapter
from pymllm.errors import InvariantViolation
from pymllm.faults.adapters import FAULTY, Faulty
from pymllm.faults.table import PLANTED
from pymllm.history.outcomes import NoRoom
from pymllm.machines.examiner import Examiner
from pymllm.machines.smoke import make_sample
from pymllm.oracle.laws import LAWS, Law, Way
from pymllm.oracle.runs import find_contradiction

SOURCE = Path(__file__).parents[2] / "src" / "pymllm"


def faulty_laws() -> set[tuple[str, str]]:
    """Kind and law of every wrong implementation."""
    classes = [load_adapter(entry) for entry in FAULTY]
    return {(found.KIND, found.BREAKS) for found in classes if issubclass(found, Faulty)}


# -- the oracle ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: f"{spoil.law}-{spoil.adapter}")
def test_a_spoiled_outcome_is_refused_by_its_law(spoil: Spoil) -> None:
    """Each law in the table: the judge takes the history as it is, and refuses the wrong last outcome."""
    history = record(spoil)
    found = judge_spoiled(history, spoil)
    assert found is not None
    step, violation = found
    assert (step.number, violation.law) == (history.steps[-1].number, spoil.law)


@pytest.mark.parametrize("name", SPOILED_COUNTERS)
@pytest.mark.parametrize("cache", ["radix", "blocks", "serial"])
def test_a_spoiled_counter_of_a_run_is_refused(cache: str, name: str) -> None:
    """E6: a report is sound as it is, and contradicts itself with any of its counters spoiled."""
    report = count_run(cache)
    requests = report["requests"] + report.get("skipped", 0)
    assert find_contradiction(report, requests) is None
    if name not in report:
        pytest.skip("an engine, or a serial replay, does not have it")
    spoiled = report | {name: report[name] + SPOILED_COUNTERS[name]}
    assert find_contradiction(spoiled, requests) is not None


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_a_second_run_that_differs_is_refused(entry: AdapterEntry) -> None:
    """X3: for every kind, one outcome that is not what it was is enough."""
    config = dict(load_adapter(entry).CONFIGURATIONS[0])
    examiner = Examiner(make_adapter(entry.name, config))
    sample = make_sample(examiner.adapter.kind, config, examiner.adapter.capabilities)
    number, first = next(iter(sample.items()))
    examiner.do(first.operation, number)
    examiner.check_replay(lambda: make_adapter(entry.name, config))
    (step,) = examiner.history.steps
    assert step.outcome is not None
    examiner.history.steps[0] = dataclasses.replace(
        step, outcome=dataclasses.replace(step.outcome, result=NoRoom())
    )
    with pytest.raises(InvariantViolation) as caught:
        examiner.check_replay(lambda: make_adapter(entry.name, config))
    assert caught.value.law == "X3"


SEEN_BY_HELPERS = {("slots", "X5")}
"""What only an adapter in Python can look at: `test_kept_numbers` has the wrong implementations."""


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
def test_each_law_is_seen_to_fail_for_every_kind_that_it_is_about(law: Law) -> None:
    """By a wrong implementation, a spoiled outcome, a second run, or a plant in the engine."""
    seen = faulty_laws() | {(spoil.kind, spoil.law) for spoil in SPOILS} | SEEN_BY_HELPERS
    missing = {kind for kind in law.kinds if (kind, law.id) not in seen and law.id != "X3"}
    for fault in PLANTED:
        if fault.laws[0] == law.id and fault.searchers == ("life-cycle machine",):
            missing -= {load_adapter(find_adapter(name)).KIND for name in fault.adapters}
    assert missing == set()


# -- the ways ------------------------------------------------------------------------------------------------


def test_what_the_oracle_checks_is_seen_refused_by_a_judge() -> None:
    """`Way.ORACLE` is told of exactly the laws that operations and outcomes alone have shown broken."""
    judged = {law for _, law in faulty_laws()} | {spoil.law for spoil in SPOILS}
    judged |= {law.id for law in LAWS if law.is_of_runs}  # whose counters are spoiled above
    assert judged == {law.id for law in LAWS if Way.ORACLE in law.ways}


def test_what_a_walk_checks_is_raised_by_one() -> None:
    """`Way.STRUCTURE` is told of exactly the laws that walks and the engine's audits name."""
    modules = [*(SOURCE / "invariants").glob("*.py"), *(SOURCE / "workloads").glob("engine*.py")]
    named = {law for module in modules for law in laws_named_in(module)}
    assert named == {law.id for law in LAWS if Way.STRUCTURE in law.ways}


def test_what_a_plant_breaks_is_planted() -> None:
    """`Way.PLANT` is told of exactly the laws that a planted bug or a wrong implementation breaks."""
    planted = {law for fault in PLANTED for law in fault.laws} | {law for _, law in faulty_laws()}
    assert planted == {law.id for law in LAWS if Way.PLANT in law.ways}


def laws_named_in(module: Path) -> set[str]:
    """Ids that stand alone as a string in the code: what an error is made with."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return strings & {law.id for law in LAWS}
