"""Run a recorded history again, and set what happens beside what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pymllm.adapters.base import Adapter
from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.conformance.adapter_calls import build_adapter, close_adapter, closing
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.program import play_steps
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Config, History, Step
from pymllm.history.operations import Operation


@dataclass(frozen=True, slots=True)
class RerunResult:
    """The result of a rerun."""

    history: History  # the steps carried out, the last one a violating one included
    exercised: Counter[str]  # exercised, audited: tests by law, from outside and from inside
    audited: Counter[str]
    violation: InvariantViolation | None  # what ended it
    # why the rest could not be carried out: the program depends on choices that were made otherwise here
    misfit: str | None
    # steps as they were recorded and as they are now, where the two outcomes differ
    differences: tuple[tuple[Step, Step], ...]


def rerun_history(
    history: History,
    adapter: str,
    config: Config | None = None,
    wrap: Callable[[Adapter], Adapter] | None = None,
) -> RerunResult:
    """Run the operations of a history, whatever outcomes it has, on an adapter of its kind.

    ``config`` is the history's if left out; ``wrap`` puts instruments around the adapter, such as a
    `pymllm.instrument.recorder.Recorder`, which are closed with it. `UsageError`: no such adapter, it
    is of another kind, or (`ProgramError`) the program makes no sense. `AdapterError`: it cannot be loaded,
    built or asked.
    """
    kind = load_adapter(find_adapter(adapter)).KIND
    if kind != history.header.kind:
        raise ProgramError(f"has a program for {history.header.kind}; {adapter} is of kind {kind}")
    made = build_adapter(adapter, dict(history.header.config if config is None else config))
    try:
        if wrap is not None:
            made = wrap(made)
        examiner = Examiner(made, seed=history.header.seed)
    except BaseException:
        close_adapter(made)
        raise
    violation, misfit = _play(examiner, history)
    differences = _compare(history, examiner.history)
    if misfit is not None and not differences:
        raise ProgramError(misfit)
    exercised = examiner.judge.evidence.exercised
    return RerunResult(examiner.history, exercised, examiner.audited, violation, misfit, differences)


def _play(examiner: Examiner, history: History) -> tuple[InvariantViolation | None, str | None]:
    begun = 0

    def operations() -> Iterator[tuple[int, Operation]]:
        nonlocal begun
        for step in history.steps:
            begun = step.number
            yield step.number, step.operation

    try:
        with closing(examiner.adapter, examiner.history):
            play_steps(examiner, operations())
    except InvariantViolation as violation:
        return violation, None
    except ProgramError as error:
        return None, f"step {begun}: {error}"
    return None, None


def _compare(recorded: History, again: History) -> tuple[tuple[Step, Step], ...]:
    return tuple(
        (then, now)
        for then, now in zip(recorded.steps, again.steps, strict=False)
        if None not in (then.outcome, now.outcome) and then.outcome != now.outcome
    )
