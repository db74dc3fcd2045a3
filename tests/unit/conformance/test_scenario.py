"""What machines were told to do."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from pymllm.conformance.acting import (
    FoundViolation,
    PlayedAct,
    Scenario,
    drive,
    find_scenario,
    make_machine,
    with_scenario,
)
from pymllm.conformance.row_machine import RowMachine
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import PlayedActs, dump_history, read_history

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


def test_a_file_has_the_acts(tiny: str) -> None:
    """Who reads it can play them; without acts there is nothing to play."""
    found = failing(tiny)
    written = list(dump_history(with_scenario(found.history, found.scenario)))
    again = read_history(written, "a file")
    assert find_scenario(again.header) == found.scenario
    assert again.steps == found.history.steps
    assert find_scenario(with_scenario(again, None).header) is None


@pytest.mark.parametrize(
    ("played", "message"),
    [
        (
            PlayedActs("SlotMachine", False, ()),
            "of SlotMachine; the machines of rows are RowMachine",
        ),
        (PlayedActs("RowMachine", False, (PlayedAct("fly"),)), "name='fly'.* is no act of RowMachine"),
        (PlayedActs("RowMachine", False, (PlayedAct("clear", (("far", 1),)),)), "is no act of RowMachine"),
    ],
)
def test_acts_that_nobody_can_play_are_refused(tiny: str, played: PlayedActs, message: str) -> None:
    """A file of another version, or one that somebody wrote."""
    header = dataclasses.replace(failing(tiny).history.header, scenario=played)
    with pytest.raises(ProgramError, match=message):
        find_scenario(header)
