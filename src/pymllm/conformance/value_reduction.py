"""Plainer operations: what is usual instead of what is not, and smaller numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pymllm.conformance.reduction import Reduction
from pymllm.conformance.step_references import REFERENCES
from pymllm.history.operations import Operation

__all__ = ["lower_numbers", "make_usual"]


def make_usual(reduction: Reduction) -> None:
    """Let fields of one name have their default, in all operations at once and then one by one."""
    names = sorted({name for operation in reduction.operations for name, _ in _unusual(operation)})
    for name in names:
        reduction.attempt(tuple(_made_usual(operation, name) for operation in reduction.operations))
    for at in range(len(reduction.operations)):
        for name in names:
            if at < len(reduction.operations):
                usual = _made_usual(reduction.operations[at], name)
                reduction.attempt(_replaced(reduction.operations, at, usual))


def _unusual(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and default of each field that has another value, those of records in it included."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.default is not dataclasses.MISSING and value != field.default:
            yield field.name, field.default
        elif dataclasses.is_dataclass(value):
            yield from _unusual(value)


def _made_usual(record: Any, name: str) -> Any:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = _made_usual(value, name)
        elif field.name == name and field.default is not dataclasses.MISSING:
            changes[field.name] = field.default
    return dataclasses.replace(record, **changes) if changes else record


def lower_numbers(reduction: Reduction) -> None:
    """Try smaller numbers in each field that names no step, and shorter rows of numbers."""
    at = len(reduction.operations) - 1
    while at >= 0:
        is_lowered = any(
            reduction.attempt(_replaced(reduction.operations, at, lower))
            for lower in _lowered(reduction.operations[at])
        )
        # Each time from the beginning: what did not go before may go now.
        at = min(at, len(reduction.operations) - 1) if is_lowered else at - 1


def _lowered(operation: Operation) -> Iterator[Operation]:
    """Yield an operation with less in its rows, then with one smaller number, the smallest first."""
    yield from _with_shorter_rows(operation)
    for field in dataclasses.fields(operation):
        if field.name not in REFERENCES.get(type(operation), ()):
            for value in _smaller(getattr(operation, field.name)):
                yield dataclasses.replace(operation, **{field.name: value})


def _with_shorter_rows(operation: Operation) -> Iterator[Operation]:
    """Yield an operation with some items less in all of its rows that are equally long."""
    rows = {
        field.name: value
        for field in dataclasses.fields(operation)
        if type(value := getattr(operation, field.name)) is tuple
    }
    for length in sorted({len(row) for row in rows.values()}):
        alike = {name: row for name, row in rows.items() if len(row) == length}
        for start, stop in _runs(length):
            shorter: dict[str, Any] = {name: row[:start] + row[stop:] for name, row in alike.items()}
            yield dataclasses.replace(operation, **shorter)


def _runs(length: int) -> Iterator[tuple[int, int]]:
    """Yield what to leave out of a row, long runs first."""
    size = length // 2
    while size:
        yield from ((start, min(start + size, length)) for start in range(0, length, size))
        size //= 2


def _smaller(value: Any) -> Iterator[Any]:
    if type(value) is int and value:
        sign = 1 if value > 0 else -1
        yield from (
            sign * size
            for size in dict.fromkeys((0, 1, abs(value) // 2, abs(value) - 1))
            if size < abs(value)
        )
    elif type(value) is tuple and value and type(value[0]) is int:
        ranks = {number: rank for rank, number in enumerate(sorted(set(value)), 1)}
        yield tuple(ranks[number] for number in value)
        yield (1,) * len(value)


def _replaced(operations: tuple[Operation, ...], at: int, operation: Operation) -> tuple[Operation, ...]:
    return (*operations[:at], operation, *operations[at + 1 :])
