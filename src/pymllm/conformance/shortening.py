"""Drop the steps of a failing program that it does not need.

Hypothesis makes the numbers small that an act draws, and stops while there are acts that do nothing. Here
whole steps go: each names others by their number, so what is left means the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.adapter_calls import build_adapter, closing
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.program import play_steps
from pymllm.conformance.time_limit import HungError
from pymllm.errors import InvariantViolation, PymllmError
from pymllm.oracle.history import Header, Step
from pymllm.oracle.operations import Hash, Lock, Span, Unlock

__all__ = ["shorten"]

_REFERENCES: dict[type, tuple[str, ...]] = {
    Span: ("step",),
    Lock: ("of",),
    Unlock: ("lock", "at", "token"),
    Hash: ("of",),
}
"""Fields that name a step, where they are neither ``None`` nor 0."""


def shorten(found: FoundViolation, plays: int) -> FoundViolation:
    """Return the shortest program that dropping steps leads to, and that breaks the same law.

    Parameters
    ----------
    found : FoundViolation
        Comes back as it is where running it again does not break the law.
    plays : int
        Most programs to try.

    Returns
    -------
    FoundViolation
        Marked as unfinished where ``found`` is, where there were more programs to try, or the adapter hung.
    """
    header, law = found.history.header, found.violation.law
    kept = found
    try:
        again = _play(header, found.history.steps, law)
        if again is None:
            return found
        kept, is_finished = again, not found.is_unfinished
        for shorter in _shorten(again, plays):
            kept, is_finished = shorter or kept, is_finished and shorter is not None
        kept = _play(header, _renumber(kept.history.steps), law) or kept
    except HungError:
        is_finished = False
    return dataclasses.replace(kept, is_unfinished=not is_finished)


def _shorten(found: FoundViolation, plays: int) -> Iterator[FoundViolation | None]:
    """Yield ever shorter programs that break the same law; ``None`` at last where there are more to try."""
    header, law = found.history.header, found.violation.law
    length = len(found.history)
    while length:
        for steps in _without(found.history.steps, length):
            if not plays:
                yield None
                return
            plays -= 1
            shorter = _play(header, steps, law)
            if shorter is not None:
                yield (found := shorter)
                break
        else:
            length //= 2


def _without(steps: list[Step], length: int) -> Iterator[list[Step]]:
    """Leave out so many steps in a row, first the last: what nobody refers to goes before what gave it."""
    for stop in range(len(steps), 0, -length):
        yield [*steps[: max(stop - length, 0)], *steps[stop:]]


def _renumber(steps: list[Step]) -> list[Step]:
    """Return the steps numbered from 1 again, and so whatever names them."""
    numbers = {step.number: number for number, step in enumerate(steps, 1)}
    return [Step(numbers[step.number], _refer(step.operation, numbers)) for step in steps]


def _refer(record: Any, numbers: dict[int, int]) -> Any:
    if isinstance(record, tuple):
        return tuple(_refer(item, numbers) for item in record)
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        return record
    changes = {
        field.name: _refer(getattr(record, field.name), numbers) for field in dataclasses.fields(record)
    }
    for name in _REFERENCES.get(type(record), ()):
        changes[name] = numbers.get(changes[name], changes[name])
    return dataclasses.replace(record, **changes)


def _play(header: Header, steps: list[Step], law: str) -> FoundViolation | None:
    """Run a program; what it breaks, if that is the law."""
    try:
        examiner = Examiner(build_adapter(header.adapter, dict(header.config)), seed=header.seed)
    except HungError:
        raise
    except PymllmError:
        return None
    try:
        with closing(examiner.adapter):
            play_steps(examiner, ((step.number, step.operation) for step in steps))
    except InvariantViolation as violation:
        return FoundViolation(examiner.history, violation) if violation.law == law else None
    except HungError:
        raise
    except Exception:
        return None  # a program that lacks a step may be without sense; whatever it meets, it is not shorter
    return None
