"""Machines whose acts take small integers: played by Hypothesis, or from a seed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pymllm.conformance.acting import ActingMachine, ActPlayer, act, acts_of, drive, make_machine
from pymllm.conformance.examiner import Examiner
from pymllm.errors import InvariantViolation
from pymllm.history.files import History
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


def test_hypothesis_finds_nothing_where_nothing_is(machine: type[ActingMachine]) -> None:
    """The base is a machine like any other."""
    quick = settings(max_examples=10, stateful_step_count=10, database=None, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=quick)
    assert machine.runs >= 10
    assert machine.found is None


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
