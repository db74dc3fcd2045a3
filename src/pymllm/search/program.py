"""Programs as Python text to paste, and their rerun with each step judged.

The end is run again, too, in part and as a whole; a recorded history stands beside what happens then.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pymllm.adapters.base import Adapter
from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Config, History, Step
from pymllm.history.operations import Operation
from pymllm.machines.adapter_calls import build_adapter, close_adapter, closing
from pymllm.machines.determinism import check_determinism
from pymllm.machines.examiner import Examiner
from pymllm.oracle.evidence import Evidence

_COMMENT_MAX = 160


def write_program(history: History) -> str:
    """Write a history as Python code that needs this package and the adapter, with outcomes as comments."""
    names = sorted({name for step in history.steps for name in _names_in(step.operation)})
    numbers = [step.number for step in history.steps]
    is_numbered = numbers == list(range(1, len(numbers) + 1))
    opening, closing = ("[", "]") if is_numbered else ("{", "}")
    lines = ["from pymllm.search.program import run_program"]
    if names:
        lines.append(f"from pymllm.history.operations import {', '.join(names)}")
    lines += ["", "run_program(", f"    {history.header.adapter!r},", f"    {history.header.config!r},"]
    lines.append(f"    {opening}")
    for step in history.steps:
        number = "" if is_numbered else f"{step.number}: "
        lines.append(f"        {number}{write_record(step.operation)},  # {_comment(step)}")
    lines += [f"    {closing},", ")"]
    return "\n".join(lines) + "\n"


def write_record(record: object) -> str:
    """Write a record, or a value in its fields, as a Python expression without default values."""
    if isinstance(record, tuple):
        items = ", ".join(write_record(item) for item in record)
        return f"({items},)" if len(record) == 1 else f"({items})"
    if isinstance(record, dict):
        return "{" + ", ".join(f"{key!r}: {write_record(value)}" for key, value in record.items()) + "}"
    if not dataclasses.is_dataclass(record):
        return repr(record)
    parts = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            parts.append(write_record(value))
        elif value != (
            field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        ):
            parts.append(f"{field.name}={write_record(value)}")
    return f"{type(record).__name__}({', '.join(parts)})"


def _names_in(record: object) -> Iterator[str]:
    """Return the names of the record classes in the expression for a record."""
    if isinstance(record, tuple):
        for item in record:
            yield from _names_in(item)
    elif dataclasses.is_dataclass(record):
        yield type(record).__name__
        for field in dataclasses.fields(record):
            yield from _names_in(getattr(record, field.name))


def _comment(step: Step) -> str:
    if step.outcome is None:
        return f"{step.number}: not run"
    effects = "".join(f", {write_record(effect)}" for effect in step.outcome.effects)
    text = f"{step.number}: {write_record(step.outcome.result)}{effects}"
    return text if len(text) <= _COMMENT_MAX else f"{text[: _COMMENT_MAX - 3]}..."


def run_program(
    adapter: str, config: Config, operations: Sequence[Operation] | Mapping[int, Operation]
) -> History:
    """Run a program, a sequence numbered from 1 or a mapping, on an adapter; return its steps with outcomes.

    `InvariantViolation`: it breaks a law on this adapter. `ProgramError`: it makes no sense.
    `AdapterError`: the adapter cannot be loaded, built or asked.
    """
    numbered = operations if isinstance(operations, Mapping) else dict(enumerate(operations, 1))
    examiner = Examiner(build_adapter(adapter, dict(config)))
    with closing(examiner.adapter, examiner.history):
        play_steps(examiner, numbered.items())
    return examiner.history


def play_steps(examiner: Examiner, steps: Iterable[tuple[int, Operation]]) -> None:
    """Carry out the steps, then call `end_program`."""
    for number, operation in steps:
        examiner.do(operation, number)
    end_program(examiner)


def end_program(examiner: Examiner) -> None:
    """Judge the end of a program, and run parts and the whole of it again on new adapters (X3)."""
    header = examiner.history.header

    def make() -> Adapter:
        return build_adapter(header.adapter, dict(header.config))

    check_determinism(examiner, make)
    examiner.check_replay(make)


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
    evidence: Evidence  # of the judge


def rerun_history(
    history: History,
    adapter: str,
    config: Config | None = None,
    wrap: Callable[[Adapter], Adapter] | None = None,
) -> RerunResult:
    """Run the operations of a history, regardless of its outcomes, on an adapter of its kind.

    ``config`` is the history's if left out; ``wrap`` puts instruments around the adapter, such as a
    `pymllm.adapters.recorder.Recorder`, which are closed with it. `UsageError`: no such adapter, it
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
        examiner = Examiner(made, seed=history.header.seed, deviations=history.header.deviations)
    except BaseException:
        close_adapter(made)
        raise
    violation, misfit = _play(examiner, history)
    differences = _compare(history, examiner.history)
    if misfit is not None and not differences:
        raise ProgramError(misfit)
    exercised = examiner.judge.evidence.exercised
    return RerunResult(
        examiner.history,
        exercised,
        examiner.audited,
        violation,
        misfit,
        differences,
        examiner.judge.evidence,
    )


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
        return (violation if examiner.find_known(violation) is None else None), None
    except ProgramError as error:
        return None, f"step {begun}: {error}"
    return None, None


def _compare(recorded: History, again: History) -> tuple[tuple[Step, Step], ...]:
    return tuple(
        (then, now)
        for then, now in zip(recorded.steps, again.steps, strict=False)
        if None not in (then.outcome, now.outcome) and then.outcome != now.outcome
    )
