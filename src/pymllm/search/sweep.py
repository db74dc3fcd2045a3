"""Programs in which one call is made to fail: each pool call, callback and allocation (X2, X4, X6, E3).

A corpus of sound programs comes from the machines and from seeds alone. Each is played again once for each
call that it makes, up to the operation that makes it; there the call fails, and afterwards everything is
given back. The judge, and a walk from inside, see to it that nothing was lost.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pymllm.history import operations as ops
from pymllm.history.files import History
from pymllm.history.operations import Operation, Span
from pymllm.history.outcomes import Failed, Outcome, Slots
from pymllm.machines.acting import ActingMachine, drive
from pymllm.machines.examiner import Examiner
from pymllm.machines.lifecycle import EngineMachine

CORPUS_SEEDS = (0, 1)
CORPUS_ACTS = 30
"""The seeds of the corpus and the number of acts from each, for every configuration."""
_ACTS_OF_AN_ENGINE = 5
"""The number of ordinary acts that count like one act of an engine."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A call to be made to fail."""

    step: int  # operation that makes it
    # as of `pymllm.history.operations.Fault`; ``"alloc"`` for an allocation that finds nothing free
    call: str
    nth: int  # which of these calls, from 1


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The counts of a sweep."""

    # programs, failures, operations: of the corpus; calls that were let fail; operations in all
    programs: int
    failures: int
    operations: int
    exercised: Counter[str]  # exercised, audited: tests by law, from outside and from inside
    audited: Counter[str]


# -- machines in which calls fail ----------------------------------------------------------------------------
def _sound(machine: type[ActingMachine]) -> type[ActingMachine]:
    """Return the machine without acts that make calls fail, for a corpus of correct programs."""
    space = {"LEFT_OUT": frozenset({"faults"}), "AUDIT": False}
    return type(f"{machine.__name__}__sound", (machine,), space)


def _drive_for(
    machine: type[ActingMachine], other: type[ActingMachine], seed: int, acts: int
) -> ActingMachine:
    """Drive another machine, and count its steps and findings for this one."""
    other.steps_run = 0
    try:
        return drive(other, seed, acts)
    finally:
        machine.steps_run += other.steps_run
        machine.found = other.found


class _ShortOfMemory:
    """A base class of engine machines in which some allocations fail, however much memory is free."""

    FAILS_AT: ClassVar[int] = 0
    TIMES: ClassVar[int] = 0
    allocations: ClassVar[int] = 0

    def start(self, **changes: int) -> None:
        super().start(**changes)  # type: ignore[misc]  # the machine's
        self.allocating.refuses = self._refuses  # type: ignore[attr-defined]

    def _refuses(self) -> bool:
        """Count an allocation, and return whether it fails; a second failure needs two live requests."""
        cls = type(self)
        cls.allocations += 1
        lives = self.engine.lives()  # type: ignore[attr-defined]
        return len(lives) > 1 and cls.FAILS_AT <= cls.allocations < cls.FAILS_AT + cls.TIMES


# -- what can fail -------------------------------------------------------------------------------------------
def failures_of(history: History) -> Iterator[Failure]:
    """Yield every call of a correct program that can be made to fail, in order."""
    claimed = history.header.capabilities
    for step in history.steps:
        outcome = step.outcome
        assert outcome is not None  # or the program was not sound
        if {"faults", "callbacks"} <= {*claimed}:
            yield from _failing_calls(step.number, outcome)
        if "pool" in claimed and type(step.operation) in _HOARDS and isinstance(outcome.result, Slots):
            yield Failure(step.number, "alloc", 1)


def _failing_calls(step: int, outcome: Outcome) -> Iterator[Failure]:
    for call, count in Counter(effect.call for effect in outcome.effects).items():
        for name in ("callback", "reenter") if call == "callback" else (call,):
            yield from (Failure(step, name, nth) for nth in range(1, count + 1))


def _hoard_tracks(played: ActingMachine, free: dict[str, int]) -> None:
    for _ in range(free.get("available_track_slots", 0)):
        played.do(ops.AllocTrack())


def _hoard_blocks(played: ActingMachine, free: dict[str, int]) -> None:
    played.do(ops.AllocBlocks(free["pool_avail"] + free["evictable_blocks"]))


def _hoard_block_slots(played: ActingMachine, free: dict[str, int]) -> None:
    """Give all available slots to held blocks."""
    _hoard_blocks(played, free)
    taken = played.examiner.history.steps[-1]
    held = taken.outcome.result if taken.outcome is not None else None
    for at in range(len(held.slots) if isinstance(held, Slots) else 0):
        if isinstance(played.do(ops.AllocSlots((Span(taken.number, at, at + 1),))).result, Failed):
            return


_HOARDS: dict[type[Operation], Callable[[ActingMachine, dict[str, int]], object]] = {
    ops.Alloc: lambda played, free: played.do(ops.Alloc(free["available_size"])),
    ops.AllocRows: lambda played, free: played.do(ops.AllocRows(free["available_size"])),
    ops.AllocTrack: _hoard_tracks,
    ops.AllocBlocks: _hoard_blocks,
    ops.AllocSlots: _hoard_block_slots,
}
"""Functions that take all memory, so that the next allocation finds none."""

_BLOCKS = ("allocate_blocks", "no_blocks")
_INNER_CALLS: dict[type[Operation], tuple[str, ...]] = {
    ops.AddRequest: (*_BLOCKS, "restore_state"),
    ops.ScheduleChunk: _BLOCKS,
    ops.RunStep: (*_BLOCKS, "allocate_slots", "store_states", "forward"),
}
"""Calls that operations make inside a context; outcomes do not show their number."""
_BEYOND = 10**6
"""A number of calls that no operation reaches."""


def inner_calls_of(history: History) -> Iterator[tuple[int, list[str]]]:
    """Yield each operation on a context, by number, with each call that it may make inside."""
    claimed = history.header.capabilities
    for step in history.steps if "faults" in claimed else ():
        calls = [
            call
            for call in _INNER_CALLS.get(type(step.operation), ())
            if "mamba" in claimed or not call.endswith(("state", "states", "slots"))
        ]
        if calls:
            yield step.number, calls


# -- sweeping ------------------------------------------------------------------------------------------------
def sweep(machine: type[ActingMachine], seeds: Sequence[int], acts: int) -> SweepReport:
    """Make every call of a corpus fail in turn, a program for each seed, and judge the results.

    Where a law is broken, ``machine.found`` has the program. Cost: the square of the length of a program.
    """
    exercised, audited = Counter[str](), Counter[str]()
    failures = 0
    for examiner in sweep_runs(machine, seeds, acts):
        failures += 1
        exercised += examiner.judge.evidence.exercised
        audited += examiner.audited
    return SweepReport(len(seeds), failures, machine.steps_run, exercised, audited)


def sweep_runs(machine: type[ActingMachine], seeds: Sequence[int], acts: int) -> Iterator[Examiner]:
    """Make every call of a corpus fail in turn; yield the examiner of each program that ran to its end."""
    for seed in seeds:
        if issubclass(machine, EngineMachine):
            yield from _sweep_lives(machine, seed, acts // _ACTS_OF_AN_ENGINE)
            continue
        sound = _drive_for(machine, _sound(machine), seed, acts).examiner.history
        for failure in failures_of(sound):
            yield _play(machine, sound, failure)
        for step, calls in inner_calls_of(sound):
            yield from _sweep_inside(machine, sound, step, calls)


def _sweep_inside(
    machine: type[ActingMachine], sound: History, step: int, calls: Sequence[str]
) -> Iterator[Examiner]:
    """Make the first call of each kind fail, then the second, until no further call is made."""
    without = _struck(_play(machine, sound, Failure(step, calls[0], _BEYOND)))
    for call in calls:
        for nth in itertools.count(1):
            examiner = _play(machine, sound, Failure(step, call, nth))
            if _struck(examiner) == without:
                break
            yield examiner


def _struck(examiner: Examiner) -> Outcome | None:
    """Return the outcome of the operation in which a call was made to fail."""
    steps = examiner.history.steps
    armed = next(at for at, step in enumerate(steps) if isinstance(step.operation, ops.Fault))
    return steps[armed + 1].outcome


def _play(machine: type[ActingMachine], sound: History, failure: Failure) -> Examiner:
    """Play a program up to the operation with the failing call, and give all memory back."""
    played = machine()
    examiner = played.examiner
    looks, examiner.audits_steps = examiner.audits_steps, False
    try:
        for step in sound.steps[len(examiner.history) :]:  # some machines begin with operations
            if step.number == failure.step:
                examiner.audits_steps = looks
                _let_fail(played, step.operation, failure)
                break
            played.do(step.operation)
    finally:
        played.teardown()
    return examiner


def _let_fail(played: ActingMachine, operation: Operation, failure: Failure) -> None:
    if failure.call == "alloc":
        last = played.examiner.history.steps[-1:]
        free = last[0].outcome.sizes if last and last[0].outcome is not None else {}
        _HOARDS[type(operation)](played, free or played.examiner.adapter.sizes())  # type: ignore[attr-defined]
    else:
        played.do(ops.Fault(failure.call, failure.nth))
    played.do(operation)


def _sweep_lives(machine: type[EngineMachine], seed: int, acts: int) -> Iterator[Examiner]:
    """Make every allocation of an engine fail, once and twice; all memory must be given back."""
    short: Any = type(f"{machine.__name__}__short", (_ShortOfMemory, machine), {})
    _drive_for(machine, short, seed, acts)
    for fails_at in range(1, short.allocations + 1):
        for times in (1, 2):
            short.FAILS_AT, short.TIMES, short.allocations = fails_at, times, 0
            yield _drive_for(machine, short, seed, acts).examiner
