"""The shrinker of programs that break a law: delta debugging over a history, with each candidate run.

It comes with who can see the law broken again. A recorded program is made smaller in a process that may end
over it; what is found on the way is told at once, so that neither an adapter that ends its process nor a user
who has waited long enough loses any of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from pymllm.errors import InvariantViolation, PymllmError, UsageError
from pymllm.history.files import History
from pymllm.history.operations import Operation
from pymllm.machines.acting import FoundViolation, Scenario, with_scenario
from pymllm.machines.registry import find_scenario
from pymllm.oracle.judge import judge_steps
from pymllm.search.program import RerunResult, rerun_history
from pymllm.search.reduction import Program, Reduction, renumbered
from pymllm.search.shrink_passes import (
    draw_others,
    drop_families,
    drop_kinds,
    drop_pairs,
    drop_runs,
    keep_end,
    lower_arguments,
    lower_numbers,
    make_usual,
    merge_tokens,
    shorten_keys,
    shrink_pages,
    shrink_pools,
)
from pymllm.search.shrink_references import (
    join_operations,
    lower_spans,
    match_instead,
    retarget_references,
    shrink_allocations,
    untangle_inserts,
)
from pymllm.search.shrink_trials import (
    ActTrials,
    Look,
    OutOfBudgetError,
    ShrinkBudget,
    Trials,
    play_scenario,
)
from pymllm.work.workers import tell


@dataclass(frozen=True, slots=True)
class Finding:
    """The violation of one law that a search found, with its smallest program."""

    violation: InvariantViolation  # the law, what was expected and what was observed
    history: History  # the smallest program that was seen to break it, ending with the step that does
    is_rerun: bool  # whether running the history again breaks the law again
    is_judged: bool  # whether its outcomes alone show it, without the implementation
    is_unfinished: bool = False  # whether the search for a smaller program was cut short
    mistakes: tuple[str, ...] = ()  # as of `pymllm.machines.acting.FoundViolation`

    @property
    def law(self) -> str:
        """The id of the broken law."""
        return self.violation.law

    @property
    def step(self) -> int:
        """The number of the program's last step; 0 if it has none."""
        return self.history.steps[-1].number if self.history.steps else 0


def make_finding(found: FoundViolation) -> Finding:
    """Return a finding, after testing how its violation can be reproduced.

    An engine that drives a cache and an adapter that looks inside both see what outcomes alone do not
    show; a cache that does not do the same twice may show nothing the second time. Where the operations do
    not show it, the history has the acts, where a machine played any.
    """
    law = found.violation.law
    is_rerun = _is_rerun(found.history, law)
    return Finding(
        found.violation,
        with_scenario(found.history, None if is_rerun else found.scenario),
        is_rerun,
        _is_judged(found.history, law),
        found.is_unfinished,
        found.mistakes,
    )


def pick_smallest(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the smallest program for each law, ordered by size."""
    kept: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda finding: (len(finding.history), finding.is_unfinished)):
        kept.setdefault(finding.law, finding)
    return tuple(kept.values())


def _is_rerun(history: History, law: str) -> bool:
    try:
        violation = rerun_history(history, history.header.adapter).violation
    except PymllmError:
        return False
    return violation is not None and violation.law == law


def _is_judged(history: History, law: str) -> bool:
    try:
        _, found = judge_steps(history.header, history.steps, coverage=False)
    except PymllmError:
        return False
    return found is not None and found[1].law == law


_PASSES = (
    drop_kinds,
    drop_families,
    drop_runs,
    untangle_inserts,
    drop_runs,
    retarget_references,
    match_instead,
    drop_pairs,
    make_usual,
    merge_tokens,
    shorten_keys,
    lower_spans,
    shrink_allocations,
    shrink_pages,
    shrink_pools,
    lower_numbers,
)


_LONG = 60
_SHARE_OF_ACTS = 0.4


@dataclass(frozen=True, slots=True)
class ShrinkProgress:
    """The progress of a shrinker."""

    plays: int  # programs played so far
    operations: int  # of the smallest program so far
    seconds: float  # since it began


_PLAYS = 2_000
"""The number of programs that suffices for nearly every shrinking. Of the first failures of 263 planted
faults, half were shrunk to the end in 74 programs, and the slowest in 1,876, which took 6 s."""


def plays_after(shrinks: int) -> int:
    """Return the number of programs that `shrink` may play after Hypothesis played some; 0 after 0."""
    return max(_PLAYS, shrinks) if shrinks else 0


def shrink(
    found: FoundViolation,
    *,
    seconds: float | None = 60.0,
    plays: int | None = None,
    laws: Collection[str] | None = None,
    from_outside: bool = False,
) -> FoundViolation:
    """Return the smallest program found that breaks the same law, or any of ``laws``.

    It ends with the step that breaks the law, is numbered from 1, has outcomes, and is never larger than the
    one given, which comes back where running it again breaks no law. After ``seconds`` the best so far is
    returned; with ``plays``, the most programs to try, what is found does not depend on the machine. Marked
    as unfinished where there were more programs to try, or the adapter hung. With ``from_outside`` the
    outcome of an operation must show it, and nobody looks closer.
    """
    shrinker = Shrinker(found, seconds=seconds, plays=plays, laws=laws, from_outside=from_outside)
    shrinker.run()
    return shrinker.best


class Shrinker:
    """A shrinker of one program, as `shrink`, whose best result stays available after an interrupt."""

    def __init__(
        self,
        found: FoundViolation,
        *,
        seconds: float | None = 60.0,
        plays: int | None = None,
        laws: Collection[str] | None = None,
        from_outside: bool = False,
        on_progress: Callable[[ShrinkProgress], None] | None = None,
    ) -> None:
        self._found = found
        self._looks = (Look.OUTCOMES,) if from_outside else tuple(Look)
        self._on_progress = on_progress
        self._laws = frozenset({found.violation.law} if laws is None else laws)
        self.budget = ShrinkBudget(plays, seconds, self._tell)
        self._trials = Trials(found.history.header, self._laws, self.budget)
        self._reduction: Reduction | None = None
        self._is_finished = False

    @property
    def best(self) -> FoundViolation:
        """The smallest program so far."""
        found = self._found if self._reduction is None else self._reduction.found
        is_unfinished = not self._is_finished
        mistakes = self.budget.tell_mistakes()
        if (found.is_unfinished, found.mistakes) == (is_unfinished, mistakes):
            return found
        return replace(found, is_unfinished=is_unfinished, mistakes=mistakes)

    def run(self) -> None:
        """Try smaller programs until none is left or the budget is spent."""
        try:
            if self._found.scenario is not None and len(self._found.history) > _LONG:
                self._begin_with_acts(self._found.scenario)
            self._begin()
            self._is_finished = not self.budget.hangs
        except OutOfBudgetError:
            pass

    def _begin_with_acts(self, scenario: Scenario) -> None:
        """Drop acts of a long program before operations, since the operations of an act belong together."""
        with self.budget.part(_SHARE_OF_ACTS):
            reduction = self._play_acts(scenario)
            if reduction is not None:
                try:
                    self._reduce_acts(reduction, scenario)
                finally:
                    self._found = reduction.found

    def _begin(self) -> None:
        """Reproduce the violation by operations alone or else by acts, and shrink the program that does."""
        trials, scenario = self._trials, self._found.scenario
        program = _numbered(self._found.history)
        for trials.look in self._looks:
            result = trials.play(program)
            if result is not None:
                self._reduction = Reduction(trials, *result)
                self._reduce(self._reduction)
                if len(self._looks) > 1:
                    self._confirm(self._reduction)
                return
        self._reduction = reduction = None if scenario is None else self._play_acts(scenario)
        before = None
        while reduction is not None and scenario is not None and before != reduction.program:
            before = reduction.program
            self._reduce_acts(reduction, scenario)
            draw_others(reduction, scenario.machine)

    def _play_acts(self, scenario: Scenario) -> Reduction | None:
        """Reproduce the violation by acts; return ``None`` if they do not break the law."""
        header = self._found.history.header
        trials = ActTrials(scenario, header, self._laws, self.budget)
        result = trials.play(Program(dict(header.config), scenario.acts))
        return None if result is None else Reduction(trials, *result)

    def _reduce_acts(self, reduction: Reduction, scenario: Scenario) -> None:
        drop_runs(reduction)
        lower_arguments(reduction, scenario.machine)
        shrink_pools(reduction)

    def _reduce(self, reduction: Reduction) -> None:
        keep_end(reduction)
        before = None
        while before != reduction.program:
            before = reduction.program
            for make_smaller in _PASSES:
                make_smaller(reduction)
            if before == reduction.program:  # not before: what is joined is harder to leave out
                join_operations(reduction)

    def _confirm(self, reduction: Reduction) -> None:
        """Check that the most thorough check, which reruns use, also sees the law broken.

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
    """Return operations numbered from 1, with their references renumbered."""
    numbers = {step.number: number for number, step in enumerate(history.steps, 1)}
    operations: list[Operation] = [
        renumbered(step.operation, lambda number: numbers.get(number, number)) for step in history.steps
    ]
    return Program(dict(history.header.config), tuple(operations))


_BETWEEN_WORDS = 0.5  # Seconds: a long program takes some time to be told.


@dataclass(frozen=True, slots=True)
class ShrinkTask:
    """The task of shrinking a program."""

    history: History  # the program
    adapter: str  # registry name, ``module:Class`` or ``command:PROGRAM ARGS``
    laws: tuple[str, ...]  # as of `Shrinker`; empty for the one that the program breaks
    seconds: float  # after which the best so far will do


@dataclass(frozen=True, slots=True)
class ShrinkRun:
    """The results so far of a task to shrink a program."""

    # of the operations as they were; ``None`` where they make no sense, and acts may show why
    result: RerunResult | None
    # before, best: what was seen again, and the smallest program so far; ``None`` where no law is broken
    before: FoundViolation | None = None
    best: FoundViolation | None = None
    plays: int = 0  # programs that were run for it
    seconds: float = 0.0  # that they took
    # as of `pymllm.search.shrink_trials.ShrinkBudget`
    misfits: dict[str, int] = field(default_factory=dict)
    # whether the operations of the smallest, run again, break its law; known at the end only
    is_rerun: bool = False


def run_shrink(task: ShrinkTask) -> ShrinkRun:
    """Run a program and, if it breaks a law, shrink it; raises errors as `rerun_history`."""
    scenario = find_scenario(task.history.header)
    result = _rerun(task, has_acts=scenario is not None)
    before = _see_again(task, result, scenario)
    if before is None:
        return ShrinkRun(result)
    told = -_BETWEEN_WORDS

    def say(*_: object) -> None:
        nonlocal told
        if time.monotonic() - told >= _BETWEEN_WORDS:
            tell(known())
            told = time.monotonic()

    def known() -> ShrinkRun:
        budget = shrinker.budget
        misfits = dict(sorted(budget.misfits.items()))
        return ShrinkRun(result, before, shrinker.best, budget.plays, budget.seconds, misfits)

    shrinker = Shrinker(before, seconds=task.seconds, laws=task.laws or None, on_progress=say)
    say()
    shrinker.run()
    run = known()
    return replace(run, is_rerun=shows_again(shrinker.best))


def shows_again(found: FoundViolation) -> bool:
    """Tell whether a program's operations break its law when they are run again."""
    return make_finding(found).is_rerun


def _rerun(task: ShrinkTask, *, has_acts: bool) -> RerunResult | None:
    try:
        return rerun_history(task.history, task.adapter)
    except UsageError:
        if has_acts:  # no caller may do what an engine did wrong
            return None
        raise


def _see_again(
    task: ShrinkTask, result: RerunResult | None, scenario: Scenario | None
) -> FoundViolation | None:
    """Return the violation that the operations show when run again, or else that of the acts."""
    if result is not None and result.violation is not None:
        return FoundViolation(result.history, result.violation, scenario=scenario)
    if scenario is None:
        return None
    return play_scenario(scenario, replace(task.history.header, adapter=task.adapter))
