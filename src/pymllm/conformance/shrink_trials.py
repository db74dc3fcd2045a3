"""Run candidates for a shorter program within a budget, each on a new adapter, and see what they break."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.adapter_calls import build_adapter, close_adapter, closing, describe_error
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.program import end_program
from pymllm.conformance.reduction import Program, references, without
from pymllm.conformance.time_limit import HungError
from pymllm.errors import InvariantViolation, ProgramError, PymllmError
from pymllm.history.files import Header
from pymllm.history.operations import Free, FreeSWA, Insert, MoveSWA, Operation, Span
from pymllm.oracle.judge import Judge
from pymllm.oracle.models.prefix_model import path_of_key
from pymllm.oracle.models.slot_ledger import Owner
from pymllm.oracle.prefix_judge import PrefixJudge

_HANGS = 3
"""An adapter that hangs so often is left alone: each time costs as long as one waits for an answer."""

_OWN_ROOMS = ("pymllm.conformance.", "pymllm.oracle.")


class OutOfBudgetError(Exception):
    """No more programs may be played."""


class ShrinkBudget:
    """Counts what was spent; no more than ``plays`` programs and ``seconds`` may be."""

    def __init__(
        self,
        plays: int | None = None,
        seconds: float | None = None,
        on_play: Callable[[], None] | None = None,
    ) -> None:
        self.plays = 0
        self.hangs = 0
        # Candidates that could not be run, by the class of the error that stopped them: an engine in a pool
        # that is too small, a call that no adapter can carry out. Mistakes are this package's own, by what
        # and where: a law may be broken by a smaller program that nobody could look at.
        self.misfits: Counter[str] = Counter()
        self.mistakes: Counter[str] = Counter()
        self._plays_max = plays
        self._since = time.monotonic()
        self._seconds = seconds
        self._on_play = on_play

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._since

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Leave the block once so much of what is left was spent; what comes after it has the rest."""
        before = self._plays_max, self._seconds
        if self._plays_max is not None:
            self._plays_max = self.plays + int((self._plays_max - self.plays) * share)
        if self._seconds is not None:
            self._seconds = self.seconds + (self._seconds - self.seconds) * share
        try:
            yield
        except OutOfBudgetError:
            pass
        finally:
            self._plays_max, self._seconds = before

    def spend(self) -> None:
        """Count a program that is about to be played; raises `OutOfBudgetError` where none may be."""
        self.check_time()
        if self.hangs >= _HANGS or (self._plays_max is not None and self.plays >= self._plays_max):
            raise OutOfBudgetError
        if self._on_play is not None:
            self._on_play()
        self.plays += 1

    def check_time(self) -> None:
        """Raise `OutOfBudgetError` once it is late."""
        if self._seconds is not None and self.seconds >= self._seconds:
            raise OutOfBudgetError

    def note_failure(self, error: Exception) -> None:
        """Count a candidate that could not be run, among the misfits or the mistakes."""
        if _is_mistake(error):
            self.mistakes[describe_error(error)] += 1
        else:
            self.misfits[type(error).__name__] += 1

    def tell_mistakes(self) -> tuple[str, ...]:
        """Return a line for each mistake, the most frequent first."""
        return tuple(
            f"{count} candidate{'s' * (count > 1)} could not be run: {mistake}"
            for mistake, count in self.mistakes.most_common()
        )


def _is_mistake(error: Exception) -> bool:
    """Tell whether the one who raised an error is a driver or a judge, and did not mean to."""
    if isinstance(error, PymllmError):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).startswith(_OWN_ROOMS)


def makes_sense(judge: Judge, operation: Operation) -> bool:
    """Tell whether the slots that an operation names are the caller's to name.

    Of judges and operations that are not about slots everything is let pass: the judge itself says afterwards
    what made no sense.
    """
    if not isinstance(judge, PrefixJudge) or judge.ledger.pool is None:
        return True
    try:
        if isinstance(operation, Free | FreeSWA):
            is_kept = isinstance(operation, Free)
            return _are_callers(judge, operation.slots, None if is_kept else True)
        if isinstance(operation, MoveSWA):
            return _are_callers(judge, operation.source, True) and _are_callers(
                judge, operation.target, False
            )
        return not isinstance(operation, Insert) or _may_stand(judge, operation)
    except ProgramError:
        return False


def _are_callers(judge: PrefixJudge, spans: Iterable[Span], has_half: bool | None) -> bool:
    ledger = judge.ledger
    slots = ledger.resolve(spans)
    return len(set(slots)) == len(slots) and all(
        ledger.owner(slot) is Owner.CALLER and has_half in (None, ledger.has_half(slot)) for slot in slots
    )


def _may_stand(judge: PrefixJudge, operation: Insert) -> bool:
    """Tell whether each page of an insert is the caller's, or the cache's own at this place."""
    if operation.slots is None:
        return True
    model, ledger = judge.model, judge.ledger
    whole = model.whole(path_of_key(operation.key))
    slots = ledger.resolve(operation.slots)
    firsts = slots[: len(whole.tokens) : model.page_size]
    return len(set(firsts)) == len(firsts) and all(
        ledger.owner(slot) is Owner.CALLER or ledger.place(slot) == end
        for end, slot in zip(model.page_ends(whole), firsts, strict=False)
    )


_REPAIRS = 4
"""Operations that are carried out for one candidate, at most, as a multiple of its length."""
_LEAST_REPAIRS = 400


class Look(Enum):
    """How closely a program is looked at: the cheapest way in which the law is seen to be broken."""

    OUTCOMES = "each outcome is judged"
    TO_THE_END = "and the end, with parts of the program run again"
    INSIDE = "and the implementation is walked from inside after every step"


class Trials:
    """Plays programs that are to break one of ``laws``, remembers them, and counts what they cost."""

    def __init__(self, header: Header, laws: Collection[str], budget: ShrinkBudget) -> None:
        self.look = Look.OUTCOMES
        self._header = header
        self._laws = frozenset(laws)
        self._budget = budget
        self._tried: set[int] = set()

    def is_new(self, program: Program) -> bool:
        """Tell whether a program has not been asked about before, and note that it has now."""
        key = program.key
        if key in self._tried:
            return False
        self._tried.add(key)
        return True

    def forget(self) -> None:
        """Let every program be tried again: it is looked at in another way now."""
        self._tried.clear()

    def play(self, program: Program) -> tuple[Program, FoundViolation] | None:
        """Run a program without those of its operations that make no sense; ``None`` where no law breaks.

        What was left of it comes back, up to the step that broke one. Raises `OutOfBudgetError` where it must
        not be played any more, or was not at its end in time.
        """
        left = max(_LEAST_REPAIRS, _REPAIRS * len(program.operations))
        while left > 0:
            run = self._run(program)
            left -= max(run.steps, 1)
            if run.skipped:
                # Steps have other numbers without them, and who knows what else: once more, as it will stand.
                done = program.operations[: run.steps] if run.found else program.operations
                program = Program(program.config, without(done, run.skipped))
                if not self.is_new(program):
                    return None
            elif run.found is None:
                return None
            else:
                return Program(program.config, program.operations[: run.steps]), run.found
        return None

    def _run(self, program: Program) -> _Run:
        """Run a program once."""
        examiner = self._examiner_of(program)
        if examiner is None:
            return _Run(0)
        skipped: set[int] = set()
        number = 0
        try:
            with closing(examiner.adapter):
                for number, operation in enumerate(program.operations, 1):
                    self._budget.check_time()
                    if not _carry_out(examiner, number, operation, skipped):
                        skipped.add(number)
                if not skipped and self.look is not Look.OUTCOMES:
                    end_program(examiner)
        except InvariantViolation as violation:
            if violation.law in self._laws:
                return _Run(number, skipped, FoundViolation(examiner.history, violation))
        except OutOfBudgetError:
            raise
        except ProgramError:
            return _Run(number, {*skipped, number})
        except HungError:
            self._budget.hangs += 1
        except Exception as error:  # whatever a program without some of its steps meets, it is not shorter
            self._budget.note_failure(error)
        else:
            # What is judged at the end was left out above.
            return _Run(number, skipped if self.look is not Look.OUTCOMES else set())
        return _Run(number)

    def _examiner_of(self, program: Program) -> Examiner | None:
        self._budget.spend()
        try:
            adapter = build_adapter(self._header.adapter, dict(program.config))
        except HungError:
            self._budget.hangs += 1
            return None
        except PymllmError as error:  # no adapter can be built so
            self._budget.note_failure(error)
            return None
        try:
            return Examiner(adapter, seed=self._header.seed, audit=self.look is Look.INSIDE)
        except ProgramError:  # nor judged
            close_adapter(adapter)
            return None


@dataclass(frozen=True, slots=True)
class _Run:
    """What came of one run: how many steps were begun, which made no sense, and what they broke."""

    steps: int
    skipped: Collection[int] = ()
    found: FoundViolation | None = None


def _carry_out(examiner: Examiner, number: int, operation: Operation, skipped: Collection[int]) -> bool:
    """Carry an operation out if it makes sense; whether it did."""
    is_left_over = any(step in skipped for step in references(operation))
    if is_left_over or not makes_sense(examiner.judge, operation):
        return False
    try:
        examiner.do(operation, number)
    except ProgramError:
        if examiner.is_cut_short:  # the adapter itself saw it, before it did anything
            examiner.history.steps.pop()
            return False
        raise
    return True
