"""Fewer slots: allocations of no more than is used, and inserts that need one allocation only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pymllm.conformance.reduction import Reduction
from pymllm.conformance.step_references import references
from pymllm.history.operations import Alloc, AllocBlocks, Insert, Operation, Span

__all__ = ["cut_spans", "shrink_allocations", "untangle_inserts"]


def cut_spans(spans: Sequence[Span], start: int, stop: int) -> tuple[Span, ...]:
    """Leave some of the numbers out that spans name, counted over all of them.

    Parameters
    ----------
    spans : sequence of Span
        What is cut.
    start, stop : int
        Half-open range of places.
    """
    kept: list[Span] = []
    begin = 0
    for span in spans:
        end = begin + span.stop - span.start
        for first, last in ((begin, min(end, start)), (max(begin, stop), end)):
            if first < last:
                kept.append(Span(span.step, span.start + first - begin, span.start + last - begin))
        begin = end
    joined: list[Span] = []
    for span in kept:
        if joined and (joined[-1].step, joined[-1].stop) == (span.step, span.start):
            joined[-1] = Span(span.step, joined[-1].start, span.stop)
        else:
            joined.append(span)
    return tuple(joined)


def shrink_allocations(reduction: Reduction) -> None:
    """Let each allocation be of the pages that somebody names."""
    page_size = reduction.program.config.get("page_size")
    unit = page_size if type(page_size) is int else 1
    number = 1
    while number <= len(reduction.operations):
        operation = reduction.operations[number - 1]
        if isinstance(operation, Alloc):
            _shrink_allocation(reduction, number, operation.tokens, unit)
        elif isinstance(operation, AllocBlocks):
            _shrink_allocation(reduction, number, operation.count, 1)
        number += 1


def _shrink_allocation(reduction: Reduction, number: int, given: int, unit: int) -> None:
    spans = _spans_of(reduction.operations, number)
    named = {place for span in spans for place in range(span.start, span.stop)}
    pages = sorted({place // unit for place in named})
    if len(pages) * unit >= given:
        return
    moved = {page: place for place, page in enumerate(pages)}

    def move(record: Any) -> Any:
        if isinstance(record, Span) and record.step == number and record.start < record.stop:
            shift = (record.start // unit - moved[record.start // unit]) * unit
            return Span(number, record.start - shift, record.stop - shift)
        return _mapped(record, move)

    operations = tuple(move(operation) for operation in reduction.operations)
    less = type(operations[number - 1])(len(pages) * unit)
    reduction.attempt((*operations[: number - 1], less, *operations[number:]))


def _spans_of(record: Any, number: int) -> list[Span]:
    """Return the spans that name a step."""
    if isinstance(record, Span):
        return [record] if record.step == number else []
    if isinstance(record, tuple):
        return [span for item in record for span in _spans_of(item, number)]
    if number not in references(record):
        return []
    return [span for field in fields(record) for span in _spans_of(getattr(record, field.name), number)]


def _mapped(record: Any, change: Any) -> Any:
    """Return a tuple or an operation with its spans changed."""
    if isinstance(record, tuple):
        return tuple(change(item) for item in record)
    if not is_dataclass(record) or isinstance(record, type) or not any(True for _ in references(record)):
        return record
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    changes = {name: change(value) for name, value in values.items() if isinstance(value, Span | tuple)}
    return replace(record, **changes)


def untangle_inserts(reduction: Reduction) -> None:
    """Let inserts take all their slots from one allocation: all of them, then each.

    What a match or another allocation gave is no longer needed then, and can be dropped.
    """
    operations = reduction.operations
    tangled = [at for at, operation in enumerate(operations) if _allocation_of(operations, operation)]
    reduction.attempt(_untangled(operations, tangled))
    for at in tangled:
        if at < len(reduction.operations):
            reduction.attempt(_untangled(reduction.operations, [at]))


def _allocation_of(operations: Sequence[Operation], operation: Operation) -> int:
    """Return the last allocation of those steps that gave an insert its slots; 0 where one gave all."""
    if not isinstance(operation, Insert) or operation.slots is None or len(operation.slots) < 2:
        return 0
    steps = [span.step for span in operation.slots if span.step]
    return max((step for step in steps if isinstance(operations[step - 1], Alloc)), default=0)


def _untangled(operations: tuple[Operation, ...], places: Sequence[int]) -> tuple[Operation, ...]:
    changed = list(operations)
    for at in places:
        number, insert = _allocation_of(operations, operations[at]), operations[at]
        if number and isinstance(insert, Insert) and insert.slots is not None:
            length = sum(span.stop - span.start for span in insert.slots)
            alloc = changed[number - 1]
            assert isinstance(alloc, Alloc)  # or it would not be named so
            changed[number - 1] = Alloc(max(alloc.tokens, length))
            changed[at] = replace(insert, slots=(Span(number, 0, length),))
    return tuple(changed)
