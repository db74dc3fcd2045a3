"""Run candidates for a shorter program, each on a new adapter, and see whether it still breaks the law."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.adapter_calls import build_adapter, close_adapter, closing
from pymllm.conformance.caller_duty import makes_sense
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.program import end_program
from pymllm.conformance.shrink_budget import OutOfBudgetError, ShrinkBudget
from pymllm.conformance.step_references import references, without
from pymllm.conformance.time_limit import HungError
from pymllm.errors import InvariantViolation, ProgramError, PymllmError
from pymllm.history.files import Config, Header
from pymllm.history.operations import Operation

__all__ = ["Look", "Program", "Trials"]

_REPAIRS = 4
"""Operations that are carried out for one candidate, at most, as a multiple of its length."""
_LEAST_REPAIRS = 400


@dataclass(frozen=True, slots=True)
class Program:
    """What is made smaller: a configuration, and operations that are numbered from 1."""

    config: Config
    operations: tuple[Operation, ...]

    @property
    def key(self) -> int:
        """A number that two programs share if they are equal, and hardly otherwise."""
        return hash((tuple(self.config.items()), self.operations))


class Look(Enum):
    """How closely a program is looked at: the cheapest way in which the law is seen to be broken."""

    OUTCOMES = "each outcome is judged"
    TO_THE_END = "and the end, with parts of the program run again"
    INSIDE = "and the implementation is walked from inside after every step"


class Trials:
    """Plays programs, remembers which were tried, and keeps count of what they cost.

    Parameters
    ----------
    header : Header
        Of the history that is made smaller: adapter and seed.
    laws : collection of str
        Ids; a program that breaks one of them will do.
    budget : ShrinkBudget
        Spent with each program.

    Attributes
    ----------
    look : Look
        How closely.
    """

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
        """Run a program without those of its operations that make no sense.

        Returns
        -------
        tuple of (Program, FoundViolation) or None
            What was left of it and broke one of the laws, up to the step that did; ``None`` where none is
            broken.

        Raises
        ------
        OutOfBudgetError
            It must not be played any more, or was not at its end in time.
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
