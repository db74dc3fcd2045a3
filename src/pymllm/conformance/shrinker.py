"""The smallest program that breaks a law: delta debugging over a history, each candidate run again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.record_reduction import (
    lower_numbers,
    make_usual,
    merge_tokens,
    shorten_keys,
    shrink_allocations,
    shrink_pages,
    shrink_pools,
    untangle_inserts,
)
from pymllm.conformance.reduction import (
    Program,
    Reduction,
    drop_families,
    drop_kinds,
    drop_pairs,
    drop_runs,
    keep_end,
    renumbered,
)
from pymllm.conformance.scenario_reduction import ScenarioReduction
from pymllm.conformance.shrink_trials import Look, OutOfBudgetError, ShrinkBudget, Trials
from pymllm.history.files import History
from pymllm.history.operations import Operation

_PASSES = (
    drop_kinds,
    drop_families,
    drop_runs,
    untangle_inserts,
    drop_runs,
    drop_pairs,
    make_usual,
    merge_tokens,
    shorten_keys,
    shrink_allocations,
    shrink_pages,
    shrink_pools,
    lower_numbers,
)


_LONG = 60
_SHARE_OF_ACTS = 0.4


@dataclass(frozen=True, slots=True)
class ShrinkProgress:
    """How far a shrinker is."""

    plays: int  # programs played so far
    operations: int  # of the smallest program so far
    seconds: float  # since it began


def shrink(
    found: FoundViolation,
    *,
    seconds: float | None = 60.0,
    plays: int | None = None,
    laws: Collection[str] | None = None,
    on_progress: Callable[[ShrinkProgress], None] | None = None,
) -> FoundViolation:
    """Return the smallest program that was found to break the same law, or one of ``laws``.

    It ends with the step that breaks the law, is numbered from 1, has outcomes, and is never larger than the
    one given, which comes back where running it again breaks no law. After ``seconds`` the best so far is
    returned; with ``plays``, the most programs to try, what is found does not depend on the machine. Marked
    as unfinished where ``found`` is, where there were more programs to try, or the adapter hung.
    """
    shrinker = Shrinker(found, seconds=seconds, plays=plays, laws=laws, on_progress=on_progress)
    shrinker.run()
    return shrinker.best


class Shrinker:
    """Makes one program smaller, as `shrink`; the best so far can be had also after an interrupt."""

    def __init__(
        self,
        found: FoundViolation,
        *,
        seconds: float | None = 60.0,
        plays: int | None = None,
        laws: Collection[str] | None = None,
        on_progress: Callable[[ShrinkProgress], None] | None = None,
    ) -> None:
        self._found = found
        self._on_progress = on_progress
        self._laws = frozenset({found.violation.law} if laws is None else laws)
        self.budget = ShrinkBudget(plays, seconds, self._tell)
        self._trials = Trials(found.history.header, self._laws, self.budget)
        self._reduction: Reduction | ScenarioReduction | None = None
        self._is_finished = False

    @property
    def is_reproduced(self) -> bool:
        """Whether running the program again broke the law."""
        return self._reduction is not None

    @property
    def best(self) -> FoundViolation:
        """The smallest so far."""
        found = self._found if self._reduction is None else self._reduction.found
        is_unfinished = self._found.is_unfinished or not self._is_finished
        mistakes = self.budget.tell_mistakes()
        if (found.is_unfinished, found.mistakes) == (is_unfinished, mistakes):
            return found
        return replace(found, is_unfinished=is_unfinished, mistakes=mistakes)

    def run(self) -> None:
        """Try smaller programs until there are none, or no more may be tried."""
        try:
            if self._found.scenario is not None and len(self._found.history) > _LONG:
                self._begin_with_acts()
            self._reduction = self._begin()
            if isinstance(self._reduction, ScenarioReduction):
                self._reduction.run()
            elif self._reduction is not None:
                self._reduce(self._reduction)
                self._confirm(self._reduction)
            self._is_finished = not self.budget.hangs
        except OutOfBudgetError:
            pass

    def _begin_with_acts(self) -> None:
        """Leave out acts of a long program before operations: what is left of them hangs together."""
        with self.budget.part(_SHARE_OF_ACTS):
            scenarios = ScenarioReduction(self._found, self._laws, self.budget)
            if scenarios.begin():
                try:
                    scenarios.run_once()
                finally:
                    self._found = replace(scenarios.found, is_unfinished=self._found.is_unfinished)

    def _begin(self) -> Reduction | ScenarioReduction | None:
        """Break the law again: by the operations alone, or else by the acts that led to them."""
        trials = self._trials
        program = _numbered(self._found.history)
        for trials.look in Look:
            result = trials.play(program)
            if result is not None:
                return Reduction(trials, *result)
        if self._found.scenario is None:
            return None
        scenarios = ScenarioReduction(self._found, self._laws, self.budget)
        return scenarios if scenarios.begin() else None

    def _reduce(self, reduction: Reduction) -> None:
        keep_end(reduction)
        before = None
        while before != reduction.program:
            before = reduction.program
            for make_smaller in _PASSES:
                make_smaller(reduction)

    def _confirm(self, reduction: Reduction) -> None:
        """See to it that whoever looks as closely as possible, as a rerun does, sees the law broken, too.

        Where another law is seen first, the program is made smaller once more under the closest look, if that
        shows the law in the program as it was found.
        """
        trials = self._trials
        if trials.look is Look.INSIDE:
            return
        trials.look = Look.INSIDE
        result = trials.play(reduction.program)
        if result is not None:
            reduction.program, reduction.found = result
            return
        again = trials.play(_numbered(self._found.history))
        if again is not None:
            trials.forget()
            self._reduction = Reduction(trials, *again)
            self._reduce(self._reduction)

    def _tell(self) -> None:
        if self._on_progress is not None:
            told = ShrinkProgress(self.budget.plays, len(self.best.history), self.budget.seconds)
            self._on_progress(told)


def _numbered(history: History) -> Program:
    """Return the operations numbered from 1, and so whatever names them."""
    numbers = {step.number: number for number, step in enumerate(history.steps, 1)}
    operations: list[Operation] = [
        renumbered(step.operation, lambda number: numbers.get(number, number)) for step in history.steps
    ]
    return Program(dict(history.header.config), tuple(operations))
