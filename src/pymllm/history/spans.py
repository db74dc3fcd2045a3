"""The numbers that steps gave, named by spans: slots, rows, blocks and states by the step that gave them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from pymllm.errors import ProgramError
from pymllm.history.operations import Hash, Lock, Operation, Span, Unlock

SPAN_LIMIT: Final = 1_000_000
"""Most numbers that the spans of one list may stand for; who needs more has a broken hand."""


def resolve_spans(spans: Iterable[Span], given: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the numbers that spans name; `ProgramError` where a step gave fewer, or none."""
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
    """Remembers, for each step, the numbers that it gave, and for each number where it was given last."""

    def __init__(self) -> None:
        self._by_step: dict[int, tuple[int, ...]] = {}
        self._last: dict[int, tuple[int, int]] = {}

    def record(self, step: int, numbers: tuple[int, ...]) -> None:
        """Remember the numbers that a step gave, in order."""
        self._by_step[step] = numbers
        last = self._last
        for place, number in enumerate(numbers):
            last[number] = step, place

    def resolve(self, spans: Iterable[Span]) -> list[int]:
        """Return the numbers that spans name; errors as of `resolve_spans`."""
        return resolve_spans(spans, self._by_step)

    def given_by(self, step: int) -> tuple[int, ...]:
        """Return the numbers that a step gave, in order; a later step may have given them, too."""
        return self._by_step.get(step, ())

    def origin(self, number: int) -> int:
        """Return the step that gave a number last, or 0 if none did."""
        return self._last.get(number, (0, number))[0]

    def given_with_first(self, numbers: Sequence[int]) -> list[int]:
        """Return the first of some numbers, and the others that its step gave and no later one.

        Of a page these are the slots that its allocation answered: those that a program can name.
        """
        step = self.origin(numbers[0])
        return [number for number in numbers if self.origin(number) == step]

    def name(self, numbers: Sequence[int]) -> tuple[Span, ...]:
        """Return numbers, in order, as spans of the steps that gave them last; others as plain numbers."""
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
    """Return every span of an operation."""
    found: list[Span] = []
    for name in span_fields_of(type(operation)):
        value = getattr(operation, name)
        found += (value,) if isinstance(value, Span) else value or ()
    return found


def nodes_and_holds_of(operation: Operation) -> tuple[Sequence[int], Sequence[int]]:
    """Return the steps that an operation names for their node, and the steps named for their hold."""
    if isinstance(operation, Lock | Hash):
        return (operation.of,), ()
    if isinstance(operation, Unlock):
        nodes = () if operation.at is None else (operation.at,)
        return nodes, (operation.lock, operation.token) if operation.token else (operation.lock,)
    return (), ()


def steps_of(operation: Operation) -> Iterator[int]:
    """Yield every step that an operation names."""
    yield from (span.step for span in spans_of(operation))
    for steps in nodes_and_holds_of(operation):
        yield from steps


@functools.cache
def span_fields_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of an operation's class that hold spans."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if "Span" in str(field.type))
