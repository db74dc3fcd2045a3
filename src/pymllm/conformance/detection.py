"""One fault put in place and looked for: caught or not, by whom, by which law, after how much."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from msgspec import structs

from pymllm.adapters.cabinet.bugs import bug_of
from pymllm.adapters.cabinet.fault import ANY, Fault
from pymllm.adapters.cabinet.planting import StaleEditError, planted
from pymllm.conformance.acting import make_machine
from pymllm.conformance.documents import BugRow, Detection, FaultRow
from pymllm.conformance.lifecycle_machine import LifecycleMachine
from pymllm.conformance.search import SearchPlan, search
from pymllm.conformance.searchers import Caught, Searcher, make_searchers
from pymllm.conformance.shrinker import shrink
from pymllm.conformance.time_limit import TookTooLong, deadline
from pymllm.errors import PymllmError

_FIRST_TURN = 2_000
_LATER_TURNS = 4
"""Each turn is so many times as long as the one before: only the stubborn get much."""
_SHRUNK_ACTS = 12
_SHRUNK_EXAMPLES = 200


@dataclass(frozen=True, slots=True)
class HuntPlan:
    """How thoroughly to look."""

    seeds: tuple[int, ...] = (0,)  # the fault is looked for from each
    operations: int = 100_000  # most operations of each searcher from one seed
    # most programs to play while the shortest that was found is made smaller; 0 leaves it as it is
    shrinks: int = 0
    seconds: float = 60.0  # a fault that takes more processor time than this from one seed has hung something


@dataclass(frozen=True, slots=True)
class HuntTask:
    """One fault and how to look for it."""

    fault: Fault
    plan: HuntPlan


@dataclass(frozen=True, slots=True)
class FaultResult:
    """What became of one fault."""

    fault: Fault  # as given
    detections: tuple[Detection, ...]  # one for each seed from which it was caught
    problems: tuple[str, ...]  # why it was not, or could not be looked for
    seconds: float  # for everything, shrinking included

    @property
    def is_caught(self) -> bool:
        """Whether it was caught from every seed, each time by a law of its list."""
        return not self.problems and not self.unlisted

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Laws that caught it and are not in its list."""
        laws = (it.law for it in self.detections if not self.fault.may_be_caught_by(it.law))
        return tuple(dict.fromkeys(laws))

    @property
    def laws(self) -> tuple[str, ...]:
        """Laws that caught it."""
        return tuple(dict.fromkeys(it.law for it in self.detections))

    @property
    def searchers(self) -> tuple[str, ...]:
        """Who caught it."""
        return tuple(dict.fromkeys(it.searcher for it in self.detections))

    @property
    def operations(self) -> float:
        """Median operations to detection; 0 where there was none."""
        return median([it.operations for it in self.detections] or [0])

    @property
    def seconds_to_detection(self) -> float:
        """Median seconds to detection; 0 where there was none."""
        return median([it.seconds for it in self.detections] or [0.0])

    @property
    def program(self) -> int | None:
        """Operations of the smallest program of all; ``None`` where none was made smaller."""
        return min((it.program for it in self.detections if it.program is not None), default=None)

    def row(self) -> FaultRow:
        """Return what a document says of it."""
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
        )


def hunt(task: HuntTask) -> FaultResult:
    """Put a fault in place, look for it from each seed, and take it out again.

    The functions that it edits are wrong in this process meanwhile: do not run two at once in one.
    """
    start = time.monotonic()
    fault, plan = task.fault, task.plan
    seen: list[tuple[Detection, Caught]] = []
    problems: list[str] = []
    try:
        with planted(fault.edits):
            for seed in plan.seeds:
                found = _hunt_from(fault, seed, plan)
                if isinstance(found, str):
                    problems.append(found)
                else:
                    seen.append(found)
            if seen and plan.shrinks:
                _shrink_shortest(fault, seen, plan.shrinks)
    except StaleEditError as error:
        problems.append(f"cannot be planted: {error}")
    except PymllmError as error:
        problems.append(f"cannot be examined: {error}")
    detections = tuple(detection for detection, _ in seen)
    return FaultResult(fault, detections, tuple(problems), time.monotonic() - start)


def _hunt_from(fault: Fault, seed: int, plan: HuntPlan) -> tuple[Detection, Caught] | str:
    """Look for a fault from one seed; what was seen, or why nothing was."""
    start = time.monotonic()
    searchers = make_searchers(fault, seed)
    try:
        with deadline(plan.seconds):
            caught = _take_turns(searchers, plan.operations)
    except TookTooLong as error:
        return f"seed {seed}: {error}"
    if caught is None:
        crash = next((f"; {it.name} met {it.crash}" for it in searchers if it.crash), "")
        played = ", ".join(f"{it.name} {it.operations:,}" for it in searchers) or "nobody can look for it"
        return f"seed {seed}: not caught; operations: {played}{crash}"
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
    """Name who saw it: the machine, where one that was looked into was seen to be wrong from outside."""
    if searcher.name != "invariants" or caught.is_inside:
        return searcher.name
    return "life-cycle machine" if issubclass(caught.machine, LifecycleMachine) else "machine"


def _shrink_shortest(fault: Fault, seen: list[tuple[Detection, Caught]], shrinks: int) -> None:
    """Put the length of the smallest program to the detection that has the shortest one to begin with."""
    place = min(range(len(seen)), key=lambda number: len(seen[number][1].found.history))
    detection, caught = seen[place]
    smallest = _shrink(fault, caught, detection.seed, shrinks)
    seen[place] = structs.replace(detection, program=smallest), caught


def _shrink(fault: Fault, caught: Caught, seed: int, shrinks: int) -> int:
    """Shrink what was found, and let Hypothesis look for something small by itself; the smallest's length."""
    laws = None if fault.laws == ANY else fault.laws
    lengths = [len(shrink(caught.found, seconds=None, plays=shrinks, laws=laws).history)]
    again = make_machine(
        caught.machine.__bases__[0], caught.adapter, caught.config, seed=seed, audit=caught.is_inside
    )
    result = search(again, SearchPlan(seed, _SHRUNK_ACTS, _SHRUNK_EXAMPLES, 0.0, shrinks))
    lengths += [len(finding.history) for finding in result.found if fault.may_be_caught_by(finding.law)]
    return min(lengths)
