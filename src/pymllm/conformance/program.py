"""A program that was written down: as Python that one can paste, and run again with each step judged.

The end is run again, too, in part and as a whole; a recorded history stands beside what happens then.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pymllm.adapters.base import Adapter
from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.conformance.adapter_calls import apply_step, build_adapter, close_adapter, closing
from pymllm.conformance.examiner import Examiner
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.claims import ANY_REFUSAL, are_met
from pymllm.history.files import Config, History, Step
from pymllm.history.operations import Clear, Fault, Operation, Reset
from pymllm.history.outcomes import INJECTED, Done, Failed, NoRoom, Outcome
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.laws import find_law

_COMMENT_MAX = 160


def write_program(history: History) -> str:
    """Write a history as a Python program that needs this package and the adapter, outcomes as comments."""
    names = sorted({name for step in history.steps for name in _names_in(step.operation)})
    numbers = [step.number for step in history.steps]
    is_numbered = numbers == list(range(1, len(numbers) + 1))
    opening, closing = ("[", "]") if is_numbered else ("{", "}")
    lines = ["from pymllm.conformance.program import run_program"]
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
    """Write a record, or what a field of one holds, as a Python expression without its defaults."""
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
    """Names of the record classes that an expression for the record needs."""
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


_DETERMINISTIC = ("slots", "rows", "buffers", "states", "hashes", "blocks", "requests", "index")
"""Kinds of which every step that was refused, found no room or only looked must have changed nothing."""


def check_determinism(examiner: Examiner, make: Callable[[], Adapter]) -> None:
    """Make both checks of this module, where the kind has them; what they take and raise."""
    if examiner.adapter.kind in _DETERMINISTIC:
        check_idle_steps(examiner, make)
        # What stands in rows that are nobody's shows, and is anybody's guess where it is not zeroed.
        if examiner.adapter.kind != "rows" or "zeroed_rows" in examiner.adapter.capabilities:
            check_clears(examiner, make)


def check_idle_steps(examiner: Examiner, make: Callable[[], Adapter]) -> None:
    """Run the program without the steps that must have changed nothing: the rest must do the same.

    These are the refused ones (X1), those that found no room (X4), and looks (X8). If the rest does
    something else, the looks are put back first, to tell whose doing it is: the broken law is that of the
    last step left out before the difference (a failed allocation changed, for instance, the order of what is
    handed out next), and X3 if there is none. A fault that was to happen in a step which is left out is left
    out with it.
    """
    failed, looks = _laws_of_nothing(examiner), _find_looks(examiner)
    laws = {**failed, **looks}
    if not laws:
        return
    different = _first_difference(examiner, laws, make)
    if different is not None:
        for some in filter(None, (failed, looks)):
            alone = _first_difference(examiner, some, make)
            if alone is not None:
                laws, different = some, alone
                break
        # Where nothing was left out before it, the same program did something else.
        before = [number for number in laws if number < different[0].number]
        law = laws[max(before)] if before else "X3"
        _refuse(law, different, f"without {_NOTHINGS[law]}" if before else "")
    examiner.judge.evidence.count(*set(laws.values()))


_NOTHINGS = {
    "X1": "the refused steps before it",
    "X4": "the steps before it that found no room",
    "X8": "the looks before it",
}


def check_clears(examiner: Examiner, make: Callable[[], Adapter]) -> None:
    """Run what followed the last clear on a new adapter: it must do the same (X7).

    Refused steps are left out: they may name what the clear took back.
    """
    steps = examiner.history.steps
    cleared = max(
        (at for at, step in enumerate(steps) if isinstance(step.operation, Clear | Reset) and _is_done(step)),
        default=None,
    )
    if cleared is None:
        return
    laws = _laws_of_nothing(examiner)
    try:
        different = _first_difference(examiner, laws, make, cleared + 1)
    except ProgramError:  # a step names what was given before the clear, which a new one never gave
        return
    if different is not None:
        _refuse("X7", different, "on a new one, without the steps before the clear")
    examiner.judge.evidence.count("X7")


def _is_done(step: Step) -> bool:
    return step.outcome is not None and isinstance(step.outcome.result, Done)


def _laws_of_nothing(examiner: Examiner) -> dict[int, str]:
    """Return the law by which each step must have changed nothing, of those that must have."""
    steps = examiner.history.steps
    return _with_faults(
        {step.number: law for step in steps if (law := _law_of_nothing(step, examiner))}, steps
    )


def _law_of_nothing(step: Step, examiner: Examiner) -> str:
    """Return the claimed law by which a step must have changed nothing, or nothing."""
    result = step.outcome.result if step.outcome is not None else None
    capabilities = examiner.adapter.capabilities
    if isinstance(result, Failed) and result.error != INJECTED and are_met((ANY_REFUSAL,), capabilities):
        return "X1"
    # Which slots come next only who claims merges promises: others may merge when they fail.
    is_kept = "merges" in capabilities or examiner.adapter.kind != "slots"
    return "X4" if isinstance(result, NoRoom) and "pool" in capabilities and is_kept else ""


def _find_looks(examiner: Examiner) -> dict[int, str]:
    """Return the steps that only looked, each with its law."""
    looks, steps = _looks_of(examiner.adapter.kind), examiner.history.steps
    return _with_faults({step.number: "X8" for step in steps if type(step.operation) in looks}, steps)


def _with_faults(laws: dict[int, str], steps: Sequence[Step]) -> dict[int, str]:
    """Leave out what was to fail in a step that is left out, by the same law."""
    for before, step in pairwise(steps):
        if isinstance(before.operation, Fault) and step.number in laws:
            laws[before.number] = laws[step.number]
    return laws


@functools.cache
def _looks_of(kind: str) -> frozenset[type[Operation]]:
    return frozenset(operation for operation, _, of_kind, _ in find_law("X8").checks if of_kind == kind)


def _first_difference(
    examiner: Examiner, left_out: Collection[int], make: Callable[[], Adapter], start: int = 0
) -> tuple[Step, Outcome] | None:
    """Return the first step from a place on that has another outcome on a new adapter, with that outcome."""
    twin = make()
    with closing(twin):
        for step in examiner.history.steps[start:]:
            if step.number in left_out:
                continue
            again = apply_step(twin, step.number, step.operation)
            if again != step.outcome:
                return step, again
    return None


def _refuse(law: str, different: tuple[Step, Outcome], how: str) -> None:
    step, again = different
    what = f"step {step.number}, run again {how}"
    raise InvariantViolation(law, what, expected=repr(step.outcome), observed=repr(again))


def run_program(
    adapter: str, config: Config, operations: Sequence[Operation] | Mapping[int, Operation]
) -> History:
    """Run a program, a sequence numbered from 1 or a mapping, on an adapter; every step with its outcome.

    `InvariantViolation`: it breaks a law on this adapter. `ProgramError`: it makes no sense.
    `AdapterError`: the adapter cannot be loaded, built or asked.
    """
    numbered = operations if isinstance(operations, Mapping) else dict(enumerate(operations, 1))
    examiner = Examiner(build_adapter(adapter, dict(config)))
    with closing(examiner.adapter, examiner.history):
        play_steps(examiner, numbered.items())
    return examiner.history


def play_steps(examiner: Examiner, steps: Iterable[tuple[int, Operation]]) -> None:
    """Carry out steps, then `end_program`."""
    for number, operation in steps:
        examiner.do(operation, number)
    end_program(examiner)


def end_program(examiner: Examiner) -> None:
    """Judge the end of a program, and run it on new adapters again, in part and as a whole (X3)."""
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
