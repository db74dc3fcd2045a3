"""Machines whose acts take small integers: played by Hypothesis, from a seed, or from what was noted."""

from __future__ import annotations

import dataclasses
import pickle
import random
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pymllm.conformance.acting import (
    ActingMachine,
    ActPlayer,
    FoundViolation,
    PlayedAct,
    act,
    acts_of,
    drive,
    find_scenario,
    make_machine,
    with_scenario,
)
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.row_machine import RowMachine
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import History, PlayedActs, dump_history, read_history
from pymllm.history.operations import Alloc, Free, Span
from pymllm.history.outcomes import NoRoom

CONFIG: dict[str, int | str | bool | None] = {
    "page_size": 1,
    "pages": 4,
    "need_sort": True,
    "check_ownership": True,
    "store": "host",
}


class Allocating(ActingMachine):
    """Allocates, and sometimes gives back what it got."""

    def begin(self) -> None:
        self.given: list[int] = []
        self.ended = False

    def end(self) -> None:
        self.ended = True

    @act(tokens=(1, 3), weight=5)
    def alloc(self, tokens: int) -> None:
        if not isinstance(self.do(Alloc(tokens)).result, NoRoom):
            self.given += [self.examiner.next_step - 1]

    @act("given")
    def free_first(self) -> None:
        self.do(Free((Span(self.given.pop(), 0, 1),)))


class Breaking(Allocating):
    """Says so when it has met the third step."""

    @act()
    def look(self) -> None:
        if self.examiner.next_step > 3:
            self._watched(self._break)

    def _break(self) -> None:
        raise InvariantViolation("E3", "three steps")


@pytest.fixture
def machine() -> type[ActingMachine]:
    return make_machine(Allocating, "token-slots", CONFIG, seed=5)


def programs_of(machine: type[ActingMachine], seed: int) -> History:
    return drive(machine, seed, steps=20).examiner.history


def test_a_machine_is_named_after_all_that_it_is_about() -> None:
    """Hypothesis files examples by name: no two configurations may share one."""
    names = {
        make_machine(Allocating, adapter, {**CONFIG, "pages": pages}).__name__
        for adapter in ("token-slots", "mine:Slots")
        for pages in (4, 8)
    }
    assert len(names) == 4
    assert all(name.isidentifier() for name in names)


def test_a_seed_is_a_program(machine: type[ActingMachine]) -> None:
    """X3: the same seed gives the same history, another one another."""
    one, again, other = (programs_of(machine, seed) for seed in (1, 1, 2))
    assert one == again
    assert one.steps != other.steps
    assert one.header.seed == 5


def test_acts_are_played_by_weight_and_need(machine: type[ActingMachine]) -> None:
    """What makes no sense yet is not chosen, what weighs more is chosen more."""
    assert list(acts_of(machine)) == ["alloc", "free_first"]
    operations = [step.operation for step in programs_of(machine, 3).steps]
    allocations = sum(isinstance(operation, Alloc) for operation in operations)
    assert isinstance(operations[0], Alloc)
    assert 10 < allocations < 20


def test_a_need_that_is_not_met_leaves_the_act_out_at_once(machine: type[ActingMachine]) -> None:
    """What makes sense is asked before each act: nothing is given back twice."""
    player = ActPlayer(machine(), random.Random(2))
    played = [player.play() or len(player._machine.given) for _ in range(60)]  # type: ignore[func-returns-value,attr-defined]
    assert played[0] == 1
    assert {later - sooner for sooner, later in pairwise(played)} == {-1, 0, 1}


def test_a_run_ends_is_judged_and_counted(machine: type[ActingMachine]) -> None:
    """Programs and steps are counted on the class, and whoever asked gets each examiner."""
    ended: list[Examiner] = []
    machine.on_end = ended.append
    played = drive(machine, 1, steps=10)
    assert isinstance(played, Allocating)
    assert played.ended
    assert (machine.runs, machine.steps_run, ended) == (1, 10, [played.examiner])
    assert played.examiner.judge.evidence.exercised["X3"] == 1


def test_only_some_programs_are_run_again(machine: type[ActingMachine]) -> None:
    """X3: a second run costs as much as the first."""
    machine.REPLAY_EVERY = 2
    counts = [drive(machine, 1, 5).examiner.judge.evidence.exercised["X3"] for _ in range(4)]
    assert counts == [1, 0, 1, 0]


def test_hypothesis_plays_the_same_acts_and_shrinks() -> None:
    """What is found last is the smallest program."""
    machine = make_machine(Breaking, "token-slots", CONFIG)
    quick = settings(max_examples=50, stateful_step_count=20, database=None, derandomize=True)
    with pytest.raises(InvariantViolation, match="E3: three steps"):
        run_state_machine_as_test(machine, settings=quick)
    found = machine.found
    assert found is not None
    assert (found.violation.law, len(found.history)) == ("E3", 3)


class BrokenRun(Breaking):
    """Is in no state to end properly once a law is broken."""

    def end(self) -> None:
        raise AssertionError("a broken run is not ended")


class FaultyEnd(Allocating):
    """Finds a fault only at the end."""

    def end(self) -> None:
        self._watched(lambda: self.examiner.judge.evidence.refuse("E3", "slots", "all", "some"))


@pytest.mark.parametrize(("base", "law"), [(FaultyEnd, "E3"), (BrokenRun, "E3")])
def test_a_driven_violation_is_kept(base: type[ActingMachine], law: str) -> None:
    """With the history up to it."""
    machine = make_machine(base, "token-slots", CONFIG)
    with pytest.raises(InvariantViolation):
        drive(machine, 1, steps=40)
    assert machine.found is not None
    assert machine.found.violation.law == law
    assert machine.runs == 1


def test_a_walk_from_inside_can_be_made_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where none is made after each step; what it finds is the machine's."""
    machine = make_machine(Allocating, "token-slots", CONFIG, audit=False)()
    machine.do(Alloc(1))
    assert not machine.examiner.audited
    machine.look_inside()
    assert machine.examiner.audited

    def refuse() -> tuple[str, ...]:
        raise InvariantViolation("A2", "seen from inside")

    monkeypatch.setattr(machine.examiner.adapter, "audit", refuse)
    with pytest.raises(InvariantViolation):
        machine.look_inside()
    assert type(machine).found is not None
    assert machine.examiner.is_found_inside


ROWS = {"max_reqs": 3, "max_context_len": 4}


def failing(tiny: str) -> FoundViolation:
    machine = make_machine(RowMachine, f"{tiny}:KeepsEntries", ROWS, seed=3, audit=False)
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
    for played in scenario.acts:
        ranges = getattr(RowMachine, played.name).act_ranges
        assert {name for name, _ in played.arguments} == set(ranges)
        assert all(ranges[name][0] <= value <= ranges[name][1] for name, value in played.arguments)


def test_another_process_understands_it(tiny: str) -> None:
    """A class that was made while running has no name that it could be found by."""
    scenario = failing(tiny).scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_an_act_that_another_act_makes_is_not_noted(tiny: str) -> None:
    """Playing the outer one makes it again."""
    machine = make_machine(RowMachine, f"{tiny}:TinyRows", ROWS)()
    name = next(name for name in dir(RowMachine) if hasattr(getattr(RowMachine, name), "act_ranges"))
    machine.is_acting = True
    arguments = {key: low for key, (low, _) in getattr(RowMachine, name).act_ranges.items()}
    getattr(machine, name)(**arguments)
    assert machine.acts_played == []
    machine.is_acting = False
    getattr(machine, name)(**arguments)
    assert machine.acts_played == [PlayedAct(name, tuple(arguments.items()))]
    machine.teardown()


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
