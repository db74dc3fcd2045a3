"""Smaller scenarios."""

from __future__ import annotations

import dataclasses

import pytest

from pymllm.adapters.cabinet.planting import planted
from pymllm.adapters.cabinet.table import own_cabinet
from pymllm.conformance.acting import FoundViolation, drive, make_machine
from pymllm.conformance.lifecycle_machine import LifecycleMachine
from pymllm.conformance.row_machine import RowMachine
from pymllm.conformance.scenario_reduction import ScenarioReduction, play_scenario
from pymllm.conformance.shrink_trials import OutOfBudgetError, ShrinkBudget
from pymllm.conformance.time_limit import time_limit
from pymllm.errors import InvariantViolation

ROWS = {"max_reqs": 3, "max_context_len": 4}
RADIX = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
(ENGINES_FAULT,) = [fault for fault in own_cabinet() if fault.id == "B10"]


def found_by_rows(adapter: str) -> FoundViolation:
    machine = make_machine(RowMachine, adapter, ROWS, seed=3, audit=False)
    for seed in range(100):
        try:
            drive(machine, seed, 40)
        except InvariantViolation:
            break
    assert machine.found is not None
    return machine.found


def test_acts_go_that_are_not_needed(tiny: str) -> None:
    """P2: the program gets shorter with them, arguments and pools small."""
    found = found_by_rows(f"{tiny}:KeepsEntries")
    reduction = ScenarioReduction(found, {"P2"}, ShrinkBudget(plays=2_000))
    assert reduction.begin()
    reduction.run_once()
    small = reduction.found
    assert small.violation.law == "P2"
    assert small.scenario is not None
    assert found.scenario is not None
    assert len(small.scenario.acts) < len(found.scenario.acts)
    assert len(small.history) <= 6
    assert small.history.header.config["max_reqs"] == 1


def test_what_an_engine_does_wrong_is_found_in_a_small_pool() -> None:
    """E2: its calls alone break no law, one request of two tokens does."""
    machine = make_machine(LifecycleMachine, "radix", RADIX, seed=0, audit=False)
    with planted(ENGINES_FAULT.edits):
        for seed in range(100):
            try:
                drive(machine, seed, 40)
            except InvariantViolation:
                break
        assert machine.found is not None
        budget = ShrinkBudget(plays=200)
        reduction = ScenarioReduction(machine.found, ENGINES_FAULT.laws, budget)
        assert reduction.begin()
        with budget.part(1.0):
            reduction.run()
    assert len(reduction.found.history) <= 12
    assert int(reduction.found.history.header.config["slots"] or 0) < 24


def test_another_law_is_no_success(tiny: str) -> None:
    """Nor is a scenario whose adapter has no fault any more."""
    found = found_by_rows(f"{tiny}:KeepsEntries")
    assert not ScenarioReduction(found, {"P1"}, ShrinkBudget()).begin()
    header = dataclasses.replace(found.history.header, adapter="rows")
    sound = dataclasses.replace(found, history=dataclasses.replace(found.history, header=header))
    assert not ScenarioReduction(sound, {"P2"}, ShrinkBudget()).begin()


def test_a_scenario_can_be_played_once(tiny: str) -> None:
    """It breaks the law again, and none where the adapter has no fault."""
    found = found_by_rows(f"{tiny}:KeepsEntries")
    assert found.scenario is not None
    again = play_scenario(found.scenario, found.history.header)
    assert again is not None
    assert (again.violation.law, len(again.history)) == ("P2", len(found.history))
    sound = dataclasses.replace(found.history.header, adapter="rows")
    assert play_scenario(found.scenario, sound) is None


def test_a_hang_is_counted(tiny: str) -> None:
    """And the scenario is no smaller one."""
    found = found_by_rows(f"{tiny}:KeepsEntries")
    header = dataclasses.replace(found.history.header, adapter=f"{tiny}:KeepsEntriesAndHangs")
    hanging = dataclasses.replace(found, history=dataclasses.replace(found.history, header=header))
    budget = ShrinkBudget()
    with time_limit(0.2):
        assert not ScenarioReduction(hanging, {"P2"}, budget).begin()
    assert budget.hangs == 1


def test_a_mistake_of_a_machine_is_told(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that it stopped is no smaller one, and its reader knows."""
    found = found_by_rows(f"{tiny}:KeepsEntries")
    budget = ShrinkBudget()
    monkeypatch.delattr(RowMachine, "admit")
    assert not ScenarioReduction(found, {"P2"}, budget).begin()
    assert not budget.misfits
    assert budget.mistakes.total() == 1
    assert budget.tell_mistakes()[0].startswith("1 candidate could not be run: KeyError: 'admit'")


def test_it_ends_in_the_middle_of_a_scenario(tiny: str) -> None:
    """Time is looked at before each operation."""
    found = found_by_rows(f"{tiny}:KeepsEntries")
    budget = ShrinkBudget(seconds=1_000.0)
    reduction = ScenarioReduction(found, {"P2"}, budget)
    seen = []

    def late() -> None:
        seen.append(1)
        if len(seen) > 2:
            raise OutOfBudgetError

    budget.check_time = late  # type: ignore[method-assign]
    with pytest.raises(OutOfBudgetError):
        reduction.begin()
    assert len(seen) == 3
