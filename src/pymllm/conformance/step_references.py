"""Which fields of an operation name a step, and what becomes of them where steps go or are numbered anew.

A program is here a sequence of operations, numbered from 1: leaving some out takes along what refers to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from pymllm.history.operations import (
    Hash,
    Lock,
    Operation,
    Pause,
    Release,
    Resume,
    ScheduleChunk,
    Span,
    Unlock,
)

__all__ = ["REFERENCES", "needed_by", "only", "references", "renumbered", "without"]

REFERENCES: dict[type, tuple[str, ...]] = {
    Span: ("step",),
    Lock: ("of",),
    Unlock: ("lock", "at", "token"),
    Hash: ("of",),
    ScheduleChunk: ("request",),
    Pause: ("request",),
    Resume: ("request",),
    Release: ("request",),
}
"""Fields of operations, and of records in them, that name a step where they are neither ``None`` nor 0.

The other operations that have a ``request`` mean a row of the context, which is the caller's.
"""

_FIELDS: dict[type, tuple[str, ...]] = {}


def references(record: Any) -> Iterator[int]:
    """Yield the number of each step that an operation refers to, repeats included."""
    kind = type(record)
    if kind is tuple:
        for item in record:
            if type(item) is int:
                return  # tuples are of one kind each: numbers stand for themselves
            yield from references(item)
        return
    for name in REFERENCES.get(kind, ()):
        if number := getattr(record, name):
            yield number
    for name in _fields_with_records(kind):
        yield from references(getattr(record, name))


def renumbered(record: Any, number_of: Callable[[int], int]) -> Any:
    """Return an operation with another number for each step that it refers to."""
    kind = type(record)
    if kind is tuple:
        if not record or type(record[0]) is int:
            return record
        return tuple(renumbered(item, number_of) for item in record)
    changes = {}
    for name in REFERENCES.get(kind, ()):
        if number := getattr(record, name):
            changes[name] = number_of(number)
    for name in _fields_with_records(kind):
        changes[name] = renumbered(getattr(record, name), number_of)
    return dataclasses.replace(record, **changes) if changes else record


def _fields_with_records(kind: type) -> tuple[str, ...]:
    """Return the fields of a record class that hold spans, one or many."""
    if kind not in _FIELDS:
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        _FIELDS[kind] = tuple(field.name for field in fields if "Span" in str(field.type))
    return _FIELDS[kind]


def without(operations: Sequence[Operation], dropped: Collection[int]) -> tuple[Operation, ...]:
    """Leave operations out, and whatever refers to them; what is left is numbered from 1 again.

    Parameters
    ----------
    operations : sequence of Operation
        A program.
    dropped : collection of int
        Step numbers.

    Returns
    -------
    tuple of Operation
        What refers to a step that has not been before it is left out, too.
    """
    numbers: dict[int, int] = {}
    kept: list[Operation] = []
    for number, operation in enumerate(operations, 1):
        if number in dropped or not all(named in numbers for named in references(operation)):
            continue
        numbers[number] = len(kept) + 1
        is_moved = number != len(kept) + 1
        kept.append(renumbered(operation, numbers.__getitem__) if is_moved else operation)
    return tuple(kept)


def needed_by(operations: Sequence[Operation], wanted: Collection[int]) -> set[int]:
    """Return the steps that some steps need, themselves included: those they refer to, and so on."""
    needed = set(wanted)
    for number in range(len(operations), 0, -1):
        if number in needed:
            needed.update(references(operations[number - 1]))
    return needed


def only(operations: Sequence[Operation], wanted: Collection[int]) -> tuple[Operation, ...]:
    """Keep some operations and what they need; numbered from 1 again."""
    needed = needed_by(operations, wanted)
    return without(operations, set(range(1, len(operations) + 1)) - needed)
