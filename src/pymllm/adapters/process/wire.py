"""Operations and outcomes as they stand in a line: those of histories, with the slots that are meant.

A history names slots by the step that gave them, so that it runs anywhere. A program is told the numbers
that it gave itself: what is a `Span` there is here a list of integers, or one integer where exactly one is
meant. Nodes and holds stay steps. How an argument lies in memory (``form``) is left out.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from pymllm.errors import ProgramError
from pymllm.history.codec import lean
from pymllm.history.operations import Hash, Lock, Operation, Span, Unlock
from pymllm.history.schema import schema_of

Numbers = Callable[[Sequence[Span]], list[int]]

_UNSAID = "form"

# -- writing -------------------------------------------------------------------------------------------------


def write_operation(operation: Operation, numbers: Numbers) -> dict[str, Any]:
    """Return an operation as plain data, ``op`` first; fields that have their default are left out.

    Parameters
    ----------
    operation : Operation
        What is asked.
    numbers : callable
        Returns the numbers that spans name, as `pymllm.adapters.base.BaseAdapter.numbers` does.

    Raises
    ------
    ProgramError
        A span names what was never given, or not exactly one number where one is meant.
    """
    plain: dict[str, Any] = msgspec.to_builtins(lean(operation))
    plain.pop(_UNSAID, None)
    if "key" in plain:
        plain["key"].pop(_UNSAID, None)
    for name in _span_fields_of(type(operation)):
        if name in plain:
            spans = getattr(operation, name)
            plain[name] = _one(spans, numbers) if isinstance(spans, Span) else numbers(spans)
    return plain


def spans_of(operation: Operation) -> list[Span]:
    """Return every span of an operation."""
    found: list[Span] = []
    for name in _span_fields_of(type(operation)):
        value = getattr(operation, name)
        found += (value,) if isinstance(value, Span) else value or ()
    return found


def nodes_and_holds_of(operation: Operation) -> tuple[Sequence[int], Sequence[int]]:
    """Return the steps that an operation names for their node, and those that it names for their hold."""
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
def _span_fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if "Span" in str(field.type))


def _one(span: Span, numbers: Numbers) -> int:
    found = numbers((span,))
    if len(found) != 1:
        raise ProgramError(f"{span} names {len(found)} numbers where exactly one is meant")
    return found[0]


def operations_schema() -> dict[str, Any]:
    """Describe the plain data of every operation, told apart by ``op``."""
    schema = schema_of(Operation)
    for kind, described in zip(typing.get_args(Operation), schema["oneOf"], strict=True):
        fields = described["properties"]
        fields.pop(_UNSAID, None)
        if "key" in fields:
            del fields["key"]["properties"][_UNSAID]
        for field in msgspec.structs.fields(kind):
            if field.name in _span_fields_of(kind):
                is_one = field.type in (Span, Span | None)
                number = {"type": "integer"}
                said = number if is_one else {"type": "array", "items": number}
                note = fields[field.name].get("description")
                fields[field.name] = {**said, "description": note} if note else said
    return schema
