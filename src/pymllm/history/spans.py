"""Spans, which name slots, rows, blocks and states by the steps that returned them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from pymllm.errors import ProgramError
from pymllm.history.operations import Hash, Lock, Operation, Span, Unlock

SPAN_LIMIT: Final = 1_000_000
"""The greatest number of items that the spans of one list may stand for."""


def resolve_spans(spans: Iterable[Span], given: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the numbers that spans name; raise `ProgramError` if a step returned too few."""
    found: list[int] = []
    for span in spans:
        if span.stop - span.start > SPAN_LIMIT - len(found):
            raise ProgramError(f"{span} makes more than {SPAN_LIMIT:,} numbers of one list; name fewer")
        if span.step == 0:
            found += range(span.start, span.stop)
            continue
        numbers = given.get(span.step, ())
        if not 0 <= span.start <= span.stop <= len(numbers):
            raise ProgramError(f"step {span.step} gave {len(numbers)} numbers, not {span.start}..{span.stop}")
        found += numbers[span.start : span.stop]
    return found


class GivenNumbers:
    """The numbers that each step returned, and the last step that returned each number."""

    def __init__(self) -> None:
        self._by_step: dict[int, tuple[int, ...]] = {}
        self._last: dict[int, tuple[int, int]] = {}

    def record(self, step: int, numbers: tuple[int, ...]) -> None:
        """Record the numbers that a step returned, in order."""
        self._by_step[step] = numbers
        last = self._last
        for place, number in enumerate(numbers):
            last[number] = step, place

    def resolve(self, spans: Iterable[Span]) -> list[int]:
        """Return the numbers that spans name; raise errors as `resolve_spans`."""
        return resolve_spans(spans, self._by_step)

    def given_by(self, step: int) -> tuple[int, ...]:
        """Return the numbers that a step returned, in order, even if later steps returned them again."""
        return self._by_step.get(step, ())

    def origin(self, number: int) -> int:
        """Return the last step that returned a number, or 0 if none did."""
        return self._last.get(number, (0, number))[0]

    def given_with_first(self, numbers: Sequence[int]) -> list[int]:
        """Return the first of some numbers, and the others that its step and no later one returned.

        Of a page these are the slots that its allocation answered: those that a program can name.
        """
        step = self.origin(numbers[0])
        return [number for number in numbers if self.origin(number) == step]

    def name(self, numbers: Sequence[int]) -> tuple[Span, ...]:
        """Return numbers, in order, as spans of the last steps that returned them, or as plain numbers."""
        runs: list[list[int]] = []
        for number in numbers:
            step, place = self._last.get(number, (0, number))
            if runs and runs[-1][0] == step and runs[-1][2] == place:
                runs[-1][2] = place + 1
            else:
                runs.append([step, place, place + 1])
        return tuple(Span(*run) for run in runs)


# -- what an operation names -------------------------------------------------------------------------------


def spans_of(operation: Operation) -> list[Span]:
    """Return every span in an operation."""
    found: list[Span] = []
    for name in span_fields_of(type(operation)):
        value = getattr(operation, name)
        found += (value,) if isinstance(value, Span) else value or ()
    return found


def nodes_and_holds_of(operation: Operation) -> tuple[Sequence[int], Sequence[int]]:
    """Return two sequences for an operation: steps whose nodes it uses, and steps whose holds it releases."""
    if isinstance(operation, Lock | Hash):
        return (operation.of,), ()
    if isinstance(operation, Unlock):
        nodes = () if operation.at is None else (operation.at,)
        return nodes, (operation.lock, operation.token) if operation.token else (operation.lock,)
    return (), ()


def steps_of(operation: Operation) -> Iterator[int]:
    """Yield every step to which an operation refers."""
    yield from (span.step for span in spans_of(operation))
    for steps in nodes_and_holds_of(operation):
        yield from steps


@functools.cache
def span_fields_of(kind: Any) -> tuple[str, ...]:
    """Return the names of an operation class's fields that hold spans."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if "Span" in str(field.type))
