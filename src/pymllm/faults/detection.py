"""The search for one planted fault: which searcher and law catch it, and after how many operations.

Each searcher plays programs on its adapters until one breaks a law, and can go on later. What is found
follows from the seed alone, and never from how fast a machine is.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec import structs

from pymllm.adapters.registry import find_adapter, load_adapter, make_adapter
from pymllm.documents.faults import BugRow, Detection, FaultRow
from pymllm.errors import InvariantViolation, PymllmError
from pymllm.faults.fault import ANY, Fault
from pymllm.faults.plant import StaleEditError, planted
from pymllm.faults.table import bug_of
from pymllm.history.files import Config, History
from pymllm.machines.acting import ActingMachine, FoundViolation, drive, make_machine
from pymllm.machines.examiner import Examiner
from pymllm.machines.lifecycle import EngineMachine
from pymllm.machines.registry import MachineEntry, load_machine, machines_for
from pymllm.search.search import SearchPlan, search
from pymllm.search.shrinker import plays_after, shrink
from pymllm.search.sweep import CORPUS_ACTS, sweep_runs
from pymllm.work.time_limit import TookTooLong, deadline

_ACTS = (40, 80, 160, 320)
"""Lengths of programs, in turn: short ones for immediate faults, long ones for slow ones."""


_MOST_CRASHES = 50
"""The number of consecutive programs that end in an error after which a searcher gives up."""


@dataclass(frozen=True, slots=True)
class Caught:
    """A program that breaks a law, with its adapter and machine."""

    found: FoundViolation  # the program as it was played, and the violation
    adapter: str  # adapter, config: on whom
    config: Config
    machine: type[ActingMachine]  # that played it
    is_inside: bool  # whether a walk from inside saw it, and not the outcome of an operation


class Searcher(ABC):
    """A way to search for a fault: plays programs on machines, each from a seed of its own."""

    def __init__(self, name: str, machines: list[type[ActingMachine]], seed: int) -> None:
        self.name = name  # one of `pymllm.documents.faults.SEARCHERS`
        self.crash: str | None = None  # the first error that was no violation
        self.crashes = 0  # how many there were
        self.crashes_in_a_row = 0  # how many of the last programs ended in one
        self._seed = seed
        self._machines = machines

    @property
    def operations(self) -> int:
        """The number of operations carried out so far."""
        return sum(machine.steps_run for machine in self._machines)

    def go_on(self, operations: int) -> Caught | None:
        """Play until a total number of operations is reached or a program breaks a law.

        A program that ends with any other error than a violation says nothing; the next one is played, and
        one operation is counted at least, so that there is an end to it. After ``_MOST_CRASHES`` such
        programs in a row the search gives up: the fault has broken the code, not its answers.
        """
        spent = self.operations
        while spent < operations and not self.gave_up:
            before, crashes = self.operations, self.crashes
            caught = self._play()
            if caught is not None:
                return caught
            self.crashes_in_a_row = self.crashes_in_a_row + 1 if self.crashes > crashes else 0
            spent += max(1, self.operations - before)
        return None

    @property
    def gave_up(self) -> bool:
        """Whether so many programs in a row ended in an error that the searcher gives up."""
        return self.crashes_in_a_row >= _MOST_CRASHES

    @abstractmethod
    def _play(self) -> Caught | None:
        """Play the next program, and return the violation found, if any."""

    def _places(self) -> Iterator[tuple[int, type[ActingMachine], int]]:
        """Yield the number of each turn, the machines in rotation, and a seed unique to the program.

        With one for all machines, each chooses nearly the same acts: what the first does not do, none does.
        """
        for number in itertools.count():
            for place, machine in enumerate(self._machines):
                yield number, machine, (self._seed << 32) + (number << 8) + place

    def _note_crash(self, error: Exception) -> None:
        """Record an error that is no violation, such as one that the fault causes in the code."""
        self.crash = self.crash or f"{type(error).__name__}: {error}"
        self.crashes += 1

    def _caught(self, machine: type[ActingMachine], *, is_inside: bool) -> Caught:
        assert machine.found is not None  # every violation passes through the machine
        return Caught(machine.found, machine.ADAPTER, machine.CONFIG, machine, is_inside)


class MachineSearcher(Searcher):
    """A searcher that drives machines in turn."""

    def __init__(self, name: str, machines: list[type[ActingMachine]], seed: int) -> None:
        super().__init__(name, machines, seed)
        self._is_inside = False
        self._turns = self._places()
        for machine in machines:
            machine.on_end = self._note

    def _note(self, examiner: Examiner) -> None:
        self._is_inside = examiner.is_found_inside

    def _play(self) -> Caught | None:
        number, machine, seed = next(self._turns)
        try:
            drive(machine, seed, _ACTS[number % len(_ACTS)])
        except InvariantViolation:
            return self._caught(machine, is_inside=self._is_inside)
        except Exception as error:
            self._note_crash(error)
        return None


class SweepSearcher(Searcher):
    """A searcher that sweeps one machine after the other."""

    def __init__(self, name: str, machines: list[type[ActingMachine]], seed: int) -> None:
        super().__init__(name, machines, seed)
        self._runs = self._sweep()

    def _play(self) -> Caught | None:
        return next(self._runs)

    def _sweep(self) -> Iterator[Caught | None]:
        """Play the programs with one failing call each, and yield the violation found by each."""
        for _, machine, seed in self._places():
            try:
                for _ in sweep_runs(machine, (seed,), CORPUS_ACTS):
                    yield None
            except InvariantViolation:
                yield self._caught(machine, is_inside=False)
            except Exception as error:
                self._note_crash(error)
                yield None


def make_searchers(fault: Fault, seed: int) -> list[Searcher]:
    """Return the searchers that can find a fault; those of life cycles need an engine."""
    places = [
        (name, dict(config), entry)
        for name in fault.adapters
        for config in fault.shows_in(load_adapter(find_adapter(name)).CONFIGURATIONS)
        for entry in _machines_of(name, config)
    ]
    machines = {
        "machine": [place for place in places if not place[2].needs],
        "life-cycle machine": [place for place in places if place[2].needs],
        "invariants": places,
        "sweep": places,
    }
    searchers: list[Searcher] = []
    for name in fault.searchers:
        if not machines[name]:
            continue
        audit = name in ("invariants", "sweep")
        made = [
            make_machine(load_machine(entry), adapter, config, seed=seed, audit=audit)
            for adapter, config, entry in machines[name]
        ]
        searchers.append((SweepSearcher if name == "sweep" else MachineSearcher)(name, made, seed))
    return searchers


def _machines_of(name: str, config: Config) -> tuple[MachineEntry, ...]:
    adapter = make_adapter(name, dict(config))
    adapter.close()
    return machines_for(adapter.kind, adapter.capabilities)


_FIRST_TURN = 2_000
_LATER_TURNS = 4
"""The factor by which each turn is longer than the one before, so that only late faults take long."""
_SHRUNK_ACTS = 12
_SHRUNK_EXAMPLES = 200


@dataclass(frozen=True, slots=True)
class HuntPlan:
    """The thoroughness of a hunt."""

    seeds: tuple[int, ...] = (0,)  # the fault is looked for from each
    operations: int = 100_000  # most operations of each searcher from one seed
    # as of `SearchPlan`, for the shortest that was found; of `find_program` the most programs that it plays
    shrinks: int = 0
    seconds: float = 60.0  # a fault that takes more processor time than this from one seed has hung something
    from_outside: bool = False  # whether what is made smaller must show in an outcome, and not only inside


@dataclass(frozen=True, slots=True)
class HuntTask:
    """A fault with the plan of the hunt for it."""

    fault: Fault
    plan: HuntPlan


@dataclass(frozen=True, slots=True)
class Miss:
    """The record of a seed from which the fault was not caught."""

    message: str  # why, how much was played, and the first error that was no violation
    operations: int  # played by all searchers


@dataclass(frozen=True, slots=True)
class FaultResult:
    """The result of the search for one fault."""

    fault: Fault  # as given
    detections: tuple[Detection, ...]  # one for each seed from which it was caught
    problems: tuple[str, ...]  # why it was not, or could not be looked for
    seconds: float  # for everything, shrinking included
    missed: int = 0  # operations played from the seeds from which it was not caught

    @property
    def is_caught(self) -> bool:
        """Whether the fault was caught from every seed, each time by a law in its list."""
        return not self.problems and not self.unlisted

    @property
    def unlisted(self) -> tuple[str, ...]:
        """The laws that caught the fault but are not in its list."""
        laws = (it.law for it in self.detections if not self.fault.may_be_caught_by(it.law))
        return tuple(dict.fromkeys(laws))

    @property
    def laws(self) -> tuple[str, ...]:
        """The laws that caught the fault."""
        return tuple(dict.fromkeys(it.law for it in self.detections))

    @property
    def searchers(self) -> tuple[str, ...]:
        """The searchers that caught the fault."""
        return tuple(dict.fromkeys(it.searcher for it in self.detections))

    @property
    def operations(self) -> float:
        """The median number of operations to detection; 0 if the fault was not caught."""
        return median([it.operations for it in self.detections] or [0])

    @property
    def seconds_to_detection(self) -> float:
        """The median seconds to detection; 0 if the fault was not caught."""
        return median([it.seconds for it in self.detections] or [0.0])

    @property
    def program(self) -> int | None:
        """The number of operations of the smallest program; ``None`` if none was shrunk."""
        return min((it.program for it in self.detections if it.program is not None), default=None)

    def row(self) -> FaultRow:
        """Return the fault's row in a document."""
        fault, bug, is_seen = self.fault, bug_of(self.fault), bool(self.detections)
        return FaultRow(
            fault.id,
            fault.title,
            fault.laws,
            self.is_caught,
            self.unlisted,
            float(self.operations) if is_seen else None,
            round(self.seconds_to_detection, 3) if is_seen else None,
            self.program,
            tuple(structs.replace(it, seconds=round(it.seconds, 3)) for it in self.detections),
            self.problems,
            None
            if bug is None
            else BugRow(
                bug.id, bug.engine, bug.version or None, bug.links, bug.mechanism, bug.seen, bug.evidence
            ),
            self.missed,
        )


def hunt(task: HuntTask) -> FaultResult:
    """Plant a fault, search for it from each seed, and remove it again.

    The functions that it edits are wrong in this process meanwhile: do not run two at once in one.
    """
    start = time.monotonic()
    fault, plan = task.fault, task.plan
    seen: list[tuple[Detection, Caught]] = []
    problems: list[str] = []
    missed = 0
    try:
        with planted(fault.edits):
            for seed in plan.seeds:
                found = _hunt_from(fault, seed, plan)
                if isinstance(found, Miss):
                    problems.append(found.message)
                    missed += found.operations
                else:
                    seen.append(found)
            if seen and plan.shrinks:
                _shrink_shortest(fault, seen, plan.shrinks)
    except StaleEditError as error:
        problems.append(f"cannot be planted: {error}")
    except PymllmError as error:
        problems.append(f"cannot be examined: {error}")
    detections = tuple(detection for detection, _ in seen)
    return FaultResult(fault, detections, tuple(problems), time.monotonic() - start, missed)


def _hunt_from(fault: Fault, seed: int, plan: HuntPlan) -> tuple[Detection, Caught] | Miss:
    """Search for a fault from one seed, and return the detection, or the reason why there is none."""
    start = time.monotonic()
    searchers = make_searchers(fault, seed)
    try:
        with deadline(plan.seconds):
            caught = _take_turns(searchers, plan.operations)
    except TookTooLong as error:
        return _miss(f"seed {seed}: {error}", searchers)
    if caught is None:
        return _miss(f"seed {seed}: not caught", searchers)
    searcher, what = caught
    seconds = time.monotonic() - start
    violation = what.found.violation
    detection = Detection(
        seed,
        violation.law,
        violation.message,
        _name_of(searcher, what),
        what.adapter,
        what.config,
        searcher.operations,
        seconds,
        None,
    )
    return detection, what


def _miss(why: str, searchers: Sequence[Searcher]) -> Miss:
    """Return words for why the fault was not caught, beginning with errors of the programs."""
    errors = [
        f"; {it.name} met {it.crash}"
        + (f", and {it.crashes - 1:,} more errors" if it.crashes > 1 else "")
        + (f": gave up after {_MOST_CRASHES} in a row" if it.gave_up else "")
        for it in searchers
        if it.crash is not None
    ]
    played = ", ".join(f"{it.name} {it.operations:,}" for it in searchers) or "no searcher can look for it"
    return Miss(f"{why}{''.join(errors)}; operations: {played}", sum(it.operations for it in searchers))


def find_program(fault: Fault, plan: HuntPlan) -> tuple[str, History, str] | None:
    """Plant a fault and search for it from the first seed; return adapter, program and law, or ``None``.

    The same program comes back on every machine: what is tried to make it small is counted, not timed.
    """
    with planted(fault.edits):
        found = _hunt_from(fault, plan.seeds[0], plan)
        if isinstance(found, Miss):
            return None
        caught = found[1]
        laws = None if fault.laws == ANY else fault.laws
        small = shrink(
            caught.found, seconds=None, plays=plan.shrinks, laws=laws, from_outside=plan.from_outside
        )
        return caught.adapter, small.history, small.violation.law


def _take_turns(searchers: Sequence[Searcher], operations: int) -> tuple[Searcher, Caught] | None:
    turn = _FIRST_TURN
    while True:
        for searcher in searchers:
            caught = searcher.go_on(min(turn, operations))
            if caught is not None:
                return searcher, caught
        if turn >= operations:
            return None
        turn *= _LATER_TURNS


def _name_of(searcher: Searcher, caught: Caught) -> str:
    """Return the name of the searcher, or of the machine if the outcome alone shows the violation."""
    if searcher.name != "invariants" or caught.is_inside:
        return searcher.name
    return "life-cycle machine" if issubclass(caught.machine, EngineMachine) else "machine"


def _shrink_shortest(fault: Fault, seen: list[tuple[Detection, Caught]], shrinks: int) -> None:
    """Shrink the shortest program that caught the fault, and store its length in its detection."""
    place = min(range(len(seen)), key=lambda number: len(seen[number][1].found.history))
    detection, caught = seen[place]
    smallest = _shrink(fault, caught, detection.seed, shrinks)
    seen[place] = structs.replace(detection, program=smallest), caught


def _shrink(fault: Fault, caught: Caught, seed: int, shrinks: int) -> int:
    """Shrink a program, and have Hypothesis search for a smaller one; return the smaller length."""
    laws = None if fault.laws == ANY else fault.laws
    small = shrink(caught.found, seconds=None, plays=plays_after(shrinks), laws=laws)
    lengths = [len(small.history)]
    again = make_machine(
        caught.machine.__bases__[0], caught.adapter, caught.config, seed=seed, audit=caught.is_inside
    )
    result = search(again, SearchPlan(seed, _SHRUNK_ACTS, _SHRUNK_EXAMPLES, 0.0, shrinks))
    lengths += [len(finding.history) for finding in result.found if fault.may_be_caught_by(finding.law)]
    return min(lengths)
