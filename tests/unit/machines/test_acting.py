"""Tests of machines whose acts take small integers, of the players of acts, and of their list."""

from __future__ import annotations

import dataclasses
import pickle
import random
import subprocess
import sys
import unittest
from collections import Counter
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pymllm.adapters.own_caches import WindowedRadix
from pymllm.errors import AdapterError, InvariantViolation, ProgramError, UsageError
from pymllm.history.files import History, PlayedActs, dump_history, read_history
from pymllm.history.operations import KINDS, Alloc, Free, Span
from pymllm.history.outcomes import NoRoom
from pymllm.machines.acting import (
    ActingMachine,
    ActPlayer,
    FoundViolation,
    PlayedAct,
    act,
    acts_of,
    drive,
    make_machine,
    with_scenario,
)
from pymllm.machines.examiner import Examiner
from pymllm.machines.lifecycle import LifecycleMachine
from pymllm.machines.prefix import PrefixMachine
from pymllm.machines.registry import (
    CI,
    DEEP,
    DEV,
    MACHINES,
    MachineEntry,
    find_scenario,
    load_machine,
    machines_for,
    missing_machines,
    why_untested,
)
from pymllm.machines.rows import RowMachine
from pymllm.oracle.laws import find_law
from pymllm.search.cache_machine import cache_machine, check_adapter
from tests.unit.finding import ROWS, found_by
from tests.unit.tiny_adapters import KeepsEntries, TinyRows

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


def test_a_seed_is_a_program(machine: type[ActingMachine]) -> None:
    """X3: the same seed gives the same history, another one another."""
    one, again, other = (programs_of(machine, seed) for seed in (1, 1, 2))
    assert one == again
    assert one.steps != other.steps
    assert one.header.seed == 5


def test_acts_are_played_by_weight_and_need(machine: type[ActingMachine]) -> None:
    """An act whose need is not met is not played, and an act of more weight is played more often."""
    assert list(acts_of(machine)) == ["alloc", "free_first"]
    operations = [step.operation for step in programs_of(machine, 3).steps]
    allocations = sum(isinstance(operation, Alloc) for operation in operations)
    assert isinstance(operations[0], Alloc)
    assert 10 < allocations < 20


def test_a_need_that_is_not_met_leaves_the_act_out_at_once(machine: type[ActingMachine]) -> None:
    """The need of an act is checked before each act, so that nothing is given back twice."""
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


@pytest.mark.parametrize(("every", "walks"), [(1, 10), (4, 3), (100, 1)])
def test_walks_come_at_every_so_many_steps_and_at_the_end(
    machine: type[ActingMachine], every: int, walks: int
) -> None:
    """Where one comes after each step, there is none more at the end; without walks none is made there."""
    machine.AUDIT_EVERY = every
    assert drive(machine, 1, steps=10).examiner.audited["A2"] == walks
    machine.AUDIT = False
    assert not drive(machine, 1, steps=10).examiner.audited


def test_hypothesis_plays_the_same_acts_and_shrinks() -> None:
    """The program that is found last is the smallest."""
    machine = make_machine(Breaking, "token-slots", CONFIG)
    quick = settings(max_examples=50, stateful_step_count=20, database=None, derandomize=True)
    with pytest.raises(InvariantViolation, match="E3: three steps"):
        run_state_machine_as_test(machine, settings=quick)
    found = machine.found
    assert found is not None
    assert (found.violation.law, len(found.history)) == ("E3", 3)


class Choosy(ActingMachine):
    """A machine that notes the acts of each program; most acts need the state that `open` brings."""

    played: ClassVar[list[list[str]]]

    def begin(self) -> None:
        self.is_open = False

    @act()
    def open(self) -> None:
        self.is_open = True

    @act("is_open")
    def one(self) -> None:
        assert self.is_open

    @act("is_open", size=(3, 5))
    def two(self, size: int) -> None:
        assert self.is_open
        assert 3 <= size <= 5

    @act("is_open")
    def three(self) -> None:
        assert self.is_open

    def teardown(self) -> None:
        self.played.append([played.name for played in self.acts_played])
        super().teardown()


def test_one_number_of_a_program_says_which_acts_are_on() -> None:
    """Some programs have all acts, some few; where none that is on makes sense, another is played."""
    machine: Any = make_machine(Choosy, "token-slots", CONFIG)
    machine.played = []
    quick = settings(max_examples=60, stateful_step_count=30, database=None, derandomize=True)
    run_state_machine_as_test(machine, settings=quick)
    assert max(map(len, machine.played)) == 30
    assert {acts[0] for acts in machine.played} == {"open"}
    kinds = Counter(frozenset(acts[1:]) for acts in machine.played)
    assert len(kinds) > 6
    assert 15 < kinds[frozenset({"open", "one", "two", "three"})] < 50


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


def failing(tiny: str) -> FoundViolation:
    return found_by(make_machine(RowMachine, f"{tiny}:KeepsEntries", ROWS, seed=3, audit=False))


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
    """The acts are in the file of a program and can be played from there; otherwise there are none."""
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
            "of SlotMachine; the state machines of rows are RowMachine",
        ),
        (PlayedActs("RowMachine", False, (PlayedAct("fly"),)), "name='fly'.* is not an act of RowMachine"),
        (
            PlayedActs("RowMachine", False, (PlayedAct("clear", (("far", 1),)),)),
            "is not an act of RowMachine",
        ),
    ],
)
def test_acts_that_nobody_can_play_are_refused(tiny: str, played: PlayedActs, message: str) -> None:
    """A file of another version, or one that somebody wrote."""
    header = dataclasses.replace(failing(tiny).history.header, scenario=played)
    with pytest.raises(ProgramError, match=message):
        find_scenario(header)


def test_every_kind_has_a_machine() -> None:
    """Every kind of adapter has a machine that examines it."""
    assert set(MACHINES) == set(KINDS)
    assert all(MACHINES.values())


@pytest.mark.parametrize(
    "entry", [entry for entries in MACHINES.values() for entry in entries], ids=lambda entry: entry.name
)
def test_every_machine_is_there(entry: MachineEntry) -> None:
    """The registry names classes that exist, with a share of the time each."""
    machine = load_machine(entry)
    assert issubclass(machine, ActingMachine)
    assert machine.__name__ == entry.name
    assert entry.weight > 0
    assert entry.pace >= entry.driven_pace > 0


def test_the_engine_drives_only_what_can_be_driven() -> None:
    """A cache without a pool has no life cycle."""
    names = [entry.name for entry in machines_for("prefix", {"pool"})]
    assert names == ["PrefixMachine"]
    names = [entry.name for entry in machines_for("prefix", {"pool", "engine"})]
    assert names == ["PrefixMachine", "LifecycleMachine"]


def test_only_machines_that_can_test_a_law_are_chosen() -> None:
    """E3 needs the engine; R6 is tested by both."""
    claims = {"pool", "engine"}
    assert [it.name for it in machines_for("prefix", claims, [find_law("E3")])] == ["LifecycleMachine"]
    assert len(machines_for("prefix", claims, [find_law("R6")])) == 2
    assert len(machines_for("prefix", claims, [find_law("E3"), find_law("R6")])) == 2


def test_without_torch_no_engine_is_driven_and_what_only_it_tests_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others search what they can; a law that they test, too, has lost nothing."""
    claims = {"pool", "engine"}
    laws = [find_law("E3"), find_law("R6")]
    assert why_untested("prefix", claims, laws) == ()
    assert missing_machines("prefix", claims) == ()
    monkeypatch.setattr("pymllm.machines.registry.why_no_torch", lambda: "needs what is not there")
    assert [it.name for it in machines_for("prefix", claims)] == ["PrefixMachine"]
    assert machines_for("prefix", claims, laws[:1]) == ()
    assert why_untested("prefix", claims, laws) == ("LifecycleMachine needs what is not there",)
    assert why_untested("prefix", claims, laws[1:]) == ()
    assert why_untested("prefix", {"pool"}, laws[1:]) == ()
    assert [it.name for it in missing_machines("prefix", claims)] == ["LifecycleMachine"]
    assert missing_machines("prefix", {"pool"}) == ()


def test_each_profile_looks_further_than_the_one_before() -> None:
    """Whoever asks for more gets more of everything, and a new place each night."""
    for less, more in ((DEV, CI), (CI, DEEP)):
        assert less.steps < more.steps
        assert less.examples < more.examples
        assert less.seconds < more.seconds
        assert less.shrinks < more.shrinks
    assert (DEV.seed, CI.seed, DEEP.seed) == (0, 0, None)


def test_the_numbers_can_be_read_before_anything_else() -> None:
    """A test session reads them first; nothing heavy comes along."""
    code = "import sys, pymllm.machines.registry; print('hypothesis' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_machine_has_a_name_of_its_own_for_each_adapter_and_configuration() -> None:
    """Hypothesis files failing examples under it."""
    small, large = TinyRows.CONFIGURATIONS
    names = {
        cache_machine(TinyRows).__name__,
        cache_machine(TinyRows, dict(large)).__name__,
        cache_machine("rows", dict(small)).__name__,
    }
    assert len(names) == 3
    assert all(name.isidentifier() for name in names)


def test_a_machine_is_of_the_adapters_kind_and_a_test_case() -> None:
    """By class or by name; driven where an engine can drive."""
    machine = cache_machine(TinyRows)
    assert issubclass(machine, RowMachine)
    assert issubclass(machine.TestCase, unittest.TestCase)
    assert dict(machine.CONFIG) == dict(TinyRows.CONFIGURATIONS[0])
    config = next(dict(it) for it in WindowedRadix.CONFIGURATIONS if it["pool"] == "swa")
    assert issubclass(cache_machine("radix-window", config), PrefixMachine)
    assert issubclass(cache_machine(WindowedRadix, config, driven=True), LifecycleMachine)
    with pytest.raises(UsageError, match="no engine can drive rows"):
        cache_machine("rows", driven=True)
    with pytest.raises(AdapterError):
        cache_machine("nowhere:Cache")


def test_what_fails_is_shrunk_and_not_explained() -> None:
    """Whatever else the profile has stays, and its length counts."""
    chosen = cache_machine(TinyRows).TestCase.settings
    assert set(settings.default.phases) - set(chosen.phases) == {Phase.explain}
    assert Phase.shrink in chosen.phases
    assert chosen.stateful_step_count == settings.default.stateful_step_count
    assert chosen.max_examples == settings.default.max_examples


def test_a_wrong_adapter_is_found_by_its_machine() -> None:
    """P2: also a class that no module has at its top."""

    class Local(KeepsEntries):
        pass

    with pytest.raises(InvariantViolation, match="P2"):
        run_state_machine_as_test(cache_machine(Local))
    run_state_machine_as_test(cache_machine(TinyRows))


def test_one_call_examines_everything(tiny: str) -> None:
    """P2: what is wrong is told with the smallest program; what holds is silent."""
    check_adapter(f"{tiny}:TinyRows", examples=30)
    with pytest.raises(AssertionError) as caught:
        check_adapter(f"{tiny}:KeepsEntries", examples=10)
    said = str(caught.value)
    assert "tiny_adapters:KeepsEntries breaks P2" in said
    assert "run_program(" in said


def test_what_was_not_tested_or_examined_is_no_success(tiny: str) -> None:
    """A law that no program tested is unknown, and so is everything of an adapter that breaks down."""
    with pytest.raises(AssertionError, match=r"no program tested .*; give more examples"):
        check_adapter(f"{tiny}:Bare", examples=1)
    with pytest.raises(AssertionError, match="could not be examined to the end"):
        check_adapter(f"{tiny}:LacksSetting")


def test_an_adapter_that_hangs_ends_the_examination(tiny: str) -> None:
    """Not the time of whoever waits for the tests: no call has more seconds than it was given."""
    with pytest.raises(AssertionError, match=r"hung in .*: no answer within 0\.2 s"):
        check_adapter(f"{tiny}:KeepsEntriesAndHangs", examples=5, timeout=0.2)
