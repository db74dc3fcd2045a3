"""What searches found, made small."""

from __future__ import annotations

import dataclasses
from collections import Counter

from pymllm.adapters.cabinet.planting import planted
from pymllm.adapters.cabinet.table import find_faults, own_cabinet
from pymllm.conformance.acting import make_machine
from pymllm.conformance.finding import Finding
from pymllm.conformance.machines import CI, MACHINES, load_machine
from pymllm.conformance.results import SearchedConfiguration
from pymllm.conformance.row_machine import RowMachine
from pymllm.conformance.runner import RefineTask, plan_refining, refine
from pymllm.conformance.search import SearchPlan, SearchResult, search
from pymllm.conformance.search_tasks import VerifyPlan
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config, Header, History, Step
from pymllm.history.operations import Clear

PLAN = VerifyPlan((), (), CI, 3, None, 2)
CONFIG = {"max_reqs": 3, "max_context_len": 4}
(MACHINE,) = MACHINES["rows"]


def finding(law: str, steps: int) -> Finding:
    history = History(Header("x", "rows"), [Step(1 + at, Clear()) for at in range(steps)])
    return Finding(InvariantViolation(law, "looked"), history, True, True)


def done(adapter: str, n: int, *found: Finding, failed_slice: int | None = None) -> SearchedConfiguration:
    again = None if failed_slice is None else SearchPlan(3, 40, 60, 0.0, 0, failed_slice, 1)
    result = SearchResult(1, 1, 1.0, Counter(), Counter(), Counter(), found, None, again)
    return SearchedConfiguration(adapter, {"n": n}, frozenset(), MACHINE, result)


def test_the_smallest_of_each_law_and_adapter_is_made_smaller() -> None:
    """Hypothesis shrinks the smallest of all, from the run that found it; of the others steps are dropped."""
    p2, p1, other = finding("P2", 4), finding("P1", 6), finding("P2", 9)
    tasks = plan_refining(
        [
            done("a", 1, finding("P2", 7), failed_slice=1),
            done("a", 2, p2, p1, failed_slice=5),
            done("b", 1, other, failed_slice=0),
            done("c", 1),
        ],
        PLAN,
    )
    assert [(task.adapter, task.config["n"], task.finding) for task in tasks] == [
        ("a", 2, p2),
        ("a", 2, p1),
        ("b", 1, other),
    ]
    assert [task.plan and (task.plan.first_slice, task.plan.slices) for task in tasks] == [
        (5, 1),
        None,
        (0, 1),
    ]
    assert tasks[0].plan == SearchPlan(3, 40, 60, 0.0, CI.shrinks, 5, 1)
    assert {task.plays for task in tasks} == {CI.shrinks}


def test_what_a_burst_found_loses_steps_only() -> None:
    """Hypothesis had no part in it."""
    (task,) = plan_refining([done("a", 1, finding("P2", 400))], PLAN)
    assert task.plan is None


def test_a_finding_becomes_small(tiny: str) -> None:
    """P2: with its search it is the smallest that there is, without it loses what it does not need."""
    adapter = f"{tiny}:KeepsEntries"
    raw = SearchPlan(seed=1, steps=20, examples=30, seconds=0.0, shrinks=0)
    result = search(make_machine(RowMachine, adapter, dict(CONFIG)), raw)
    (found, *_) = result.found
    assert result.again == dataclasses.replace(raw, first_slice=0, slices=1)
    again = dataclasses.replace(result.again, shrinks=300)
    task = RefineTask(adapter, dict(CONFIG), MACHINE, found, 300, None)
    (dropped,) = refine(task)
    refined = refine(dataclasses.replace(task, plan=again))
    assert len(found.history) > len(dropped.history) == len(refined[0].history) == 4
    assert {it.law for it in (found, dropped, refined[0])} == {"P2"}
    assert (refined[0].is_rerun, refined[0].is_judged) == (True, True)


def test_what_an_engine_did_wrong_becomes_small_without_its_search() -> None:
    """E2: its operations alone break no law, so acts are left out."""
    (fault,) = find_faults(["B10"], own_cabinet())
    entry = next(it for it in MACHINES["prefix"] if it.has_engine)
    config: Config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
    machine = make_machine(load_machine(entry), "radix", config, seed=0)
    with planted(fault.edits):
        raw = SearchPlan(seed=0, steps=40, examples=50, seconds=0.0, shrinks=0)
        (found,) = search(machine, raw).found
        assert found.history.header.scenario is not None
        (refined,) = refine(RefineTask("radix", config, entry, found, 100, None))
    assert (found.law, refined.law) == ("E2", "E2")
    assert len(refined.history) < len(found.history) / 2
    assert refined.history.header.scenario is not None


def test_what_is_found_again_otherwise_is_kept_beside(tiny: str) -> None:
    """X3: a search that finds nothing this time changes nothing."""
    task = RefineTask(f"{tiny}:TinyRows", dict(CONFIG), MACHINE, finding("E3", 3), 10, None)
    assert [it.law for it in refine(task)] == ["E3"]
    again = SearchPlan(seed=1, steps=5, examples=5, seconds=0.0, shrinks=10)
    (same,) = refine(dataclasses.replace(task, plan=again))
    assert (same.law, len(same.history), same.is_rerun) == ("E3", 3, False)
