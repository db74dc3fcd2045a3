"""A recorded program run again and made smaller, in a process that may end over it.

What is found on the way is told at once: an adapter that ends its process, or a user who has waited long
enough, loses none of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from pymllm.conformance.acting import FoundViolation, Scenario, find_scenario
from pymllm.conformance.finding import make_finding
from pymllm.conformance.rerun import RerunResult, rerun_history
from pymllm.conformance.scenario_reduction import play_scenario
from pymllm.conformance.shrinker import Shrinker
from pymllm.conformance.worker_process import tell
from pymllm.errors import UsageError
from pymllm.history.files import History

_BETWEEN_WORDS = 0.5  # Seconds: a long program takes some time to be told.


@dataclass(frozen=True, slots=True)
class ShrinkTask:
    """What to make smaller."""

    history: History  # the program
    adapter: str  # registry name, ``module:Class`` or ``command:PROGRAM ARGS``
    laws: tuple[str, ...]  # as of `Shrinker`; empty for the one that the program breaks
    seconds: float  # after which the best so far will do


@dataclass(frozen=True, slots=True)
class ShrinkRun:
    """What is known of it by now."""

    # of the operations as they were; ``None`` where they make no sense, and acts may show why
    result: RerunResult | None
    # before, best: what was seen again, and the smallest program so far; ``None`` where no law is broken
    before: FoundViolation | None = None
    best: FoundViolation | None = None
    plays: int = 0  # programs that were run for it
    seconds: float = 0.0  # that they took
    # as of `pymllm.conformance.shrink_trials.ShrinkBudget`
    misfits: dict[str, int] = field(default_factory=dict)
    # whether the operations of the smallest, run again, break its law; known at the end only
    is_rerun: bool = False


def run_shrink(task: ShrinkTask) -> ShrinkRun:
    """Run a program again and, where it breaks a law, look for the smallest; raises as `rerun_history`."""
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
    """Whether the operations of a program, run again, break its law."""
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
    """Take the violation of the operations, or else that of the acts."""
    if result is not None and result.violation is not None:
        return FoundViolation(result.history, result.violation, scenario=scenario)
    if scenario is None:
        return None
    return play_scenario(scenario, replace(task.history.header, adapter=task.adapter))
