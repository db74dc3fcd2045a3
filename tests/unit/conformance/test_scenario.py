"""What machines were told to do."""

from __future__ import annotations

import pickle

import pytest

from pymllm.conformance.acting import FoundViolation, drive, make_machine
from pymllm.conformance.row_machine import RowMachine
from pymllm.conformance.scenario import PlayedAct, Scenario
from pymllm.errors import InvariantViolation

CONFIG = {"max_reqs": 3, "max_context_len": 4}


def failing(tiny: str) -> FoundViolation:
    machine = make_machine(RowMachine, f"{tiny}:KeepsEntries", CONFIG, seed=3, audit=False)
    for seed in range(50):
        try:
            drive(machine, seed, 40)
        except InvariantViolation:
            break
    assert machine.found is not None
    return machine.found


def test_a_violation_comes_with_the_acts_that_led_to_it(tiny: str) -> None:
    """They are the machine's own, with arguments in its ranges."""
    scenario = failing(tiny).scenario
    assert scenario is not None
    assert (scenario.machine, scenario.audit) == (RowMachine, False)
    assert scenario.acts
    for act in scenario.acts:
        ranges = getattr(RowMachine, act.name).act_ranges
        assert {name for name, _ in act.arguments} == set(ranges)
        assert all(ranges[name][0] <= value <= ranges[name][1] for name, value in act.arguments)


def test_another_process_understands_it(tiny: str) -> None:
    """A class that was made while running has no name that it could be found by."""
    scenario = failing(tiny).scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_an_act_that_another_act_makes_is_not_noted(tiny: str) -> None:
    """Playing the outer one makes it again."""
    machine = make_machine(RowMachine, f"{tiny}:TinyRows", CONFIG)()
    name = next(name for name in dir(RowMachine) if hasattr(getattr(RowMachine, name), "act_ranges"))
    machine.is_acting = True
    arguments = {key: low for key, (low, _) in getattr(RowMachine, name).act_ranges.items()}
    getattr(machine, name)(**arguments)
    assert machine.acts_played == []
    machine.is_acting = False
    getattr(machine, name)(**arguments)
    assert machine.acts_played == [PlayedAct(name, tuple(arguments.items()))]
    machine.teardown()


def test_scenarios_are_plain_values() -> None:
    """Equal acts are equal scenarios."""
    acts = (PlayedAct("flush"),)
    assert Scenario(RowMachine, True, acts) == Scenario(RowMachine, True, acts)
    with pytest.raises(AttributeError):
        acts[0].name = "other"  # type: ignore[misc]
