"""Smaller records: shorter keys, fewer slots, smaller pools and pages, plainer fields, lower numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pymllm.conformance.reduction import REFERENCES, Reduction, references
from pymllm.history.files import Config
from pymllm.history.operations import Alloc, AllocBlocks, Evict, Insert, Key, Operation, Span, Token


def shorten_keys(reduction: Reduction) -> None:
    """Cut whole pages out of keys, then single tokens: for all that share them, then for one alone."""
    page_size = reduction.program.config.get("page_size")
    units = (page_size, 1) if type(page_size) is int and page_size > 1 else (1,)
    for unit in units:
        for is_shared in (True, False):
            while any(
                reduction.attempt(shorter) for shorter in _shorter(reduction.operations, unit, is_shared)
            ):
                pass


def _shorter(
    operations: tuple[Operation, ...], unit: int, is_shared: bool
) -> Iterator[tuple[Operation, ...]]:
    """Yield programs in which some tokens of a key are gone, those first in which many are."""
    keys = [(at, key) for at, operation in enumerate(operations) if (key := _key_of(operation)) is not None]
    seen = set()
    for at, key in sorted(keys, key=lambda item: -len(item[1].tokens)):
        if is_shared and (key.extra_key, key.tokens) in seen:
            continue
        seen.add((key.extra_key, key.tokens))
        for start, stop in _ranges(len(key.tokens), unit):
            shared = key.tokens[:stop]
            yield tuple(
                _cut(operation, start, stop)
                if other == at or (is_shared and _begins(operation, key.extra_key, shared))
                else operation
                for other, operation in enumerate(operations)
            )


def _ranges(length: int, unit: int) -> Iterator[tuple[int, int]]:
    """Yield what to cut out, in whole units from the end on: a half, a quarter, and so on."""
    size = length // unit // 2 or 1
    while size:
        for stop in range(length // unit * unit, 0, -size * unit):
            yield max(stop - size * unit, 0), stop
        size //= 2
    if length % unit:
        yield length // unit * unit, length


def _key_of(operation: Operation) -> Key | None:
    key = getattr(operation, "key", None)
    return key if isinstance(key, Key) else None


def _begins(operation: Operation, space: str | int | None, tokens: Sequence[Token]) -> bool:
    key = _key_of(operation)
    return key is not None and key.extra_key == space and key.tokens[: len(tokens)] == tokens


def _cut(operation: Any, start: int, stop: int) -> Any:
    """Cut tokens out of an operation's key, and with them their slots."""
    key = operation.key
    changes: dict[str, Any] = {"key": replace(key, tokens=key.tokens[:start] + key.tokens[stop:])}
    if isinstance(operation, Insert):
        if operation.slots is not None:
            changes["slots"] = cut_spans(operation.slots, start, stop)
        for name in ("prev_prefix_len", "swa_evicted_seqlen"):
            length = getattr(operation, name)
            changes[name] = length - max(0, min(length, stop) - start)
    return replace(operation, **changes)


def merge_tokens(reduction: Reduction) -> None:
    """Let the tokens of all keys count from 1, then let two be one: families, and branches of a family."""
    tokens = _tokens(reduction.operations)
    ranks = {token: rank for rank, token in enumerate(tokens, 1)}
    reduction.attempt(_with_tokens(reduction.operations, ranks))
    is_merging = True
    while is_merging:
        tokens = _tokens(reduction.operations)
        pairs = [(gone, kept) for gone in reversed(tokens) for kept in tokens if kept < gone]
        is_merging = any(
            reduction.attempt(_with_tokens(reduction.operations, {gone: kept})) for gone, kept in pairs
        )


def _tokens(operations: Sequence[Operation]) -> list[int]:
    """Return the numbers that stand in keys, in ascending order."""
    keys = [key for operation in operations if (key := _key_of(operation)) is not None]
    tokens = (token if isinstance(token, tuple) else (token,) for key in keys for token in key.tokens)
    return sorted({number for token in tokens for number in token})


def _with_tokens(operations: Sequence[Any], others: dict[int, int]) -> tuple[Operation, ...]:
    def changed(token: Token) -> Token:
        if isinstance(token, tuple):
            return tuple(others.get(number, number) for number in token)
        return others.get(token, token)

    return tuple(
        operation
        if (key := _key_of(operation)) is None
        else replace(operation, key=replace(key, tokens=tuple(map(changed, key.tokens))))
        for operation in operations
    )


def cut_spans(spans: Sequence[Span], start: int, stop: int) -> tuple[Span, ...]:
    """Leave out the numbers at places ``start`` to ``stop`` that spans name, counted over all of them."""
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


_IN_TOKENS = ("slots", "swa_slots", "window")
"""Keys of a configuration that count tokens."""
_OF_PAGES = ("slots", "swa_slots")
"""Those of them that are whole pages."""


def shrink_pools(reduction: Reduction) -> None:
    """Lower each number of the configuration as far as it goes."""
    for key in list(reduction.program.config):
        while _lower(reduction, key):
            pass


def _lower(reduction: Reduction, key: str) -> bool:
    value = reduction.program.config[key]
    if type(value) is not int:
        return False
    page_size = reduction.program.config.get("page_size")
    unit = page_size if key in _OF_PAGES and type(page_size) is int and page_size > 0 else 1
    counts = dict.fromkeys((1, value // unit // 2, value // unit - 1))
    smaller = [count * unit for count in counts if 0 < count * unit < value]
    return any(reduction.attempt(reduction.operations, **{key: size}) for size in smaller)


def shrink_pages(reduction: Reduction) -> None:
    """Let a page be one token: the first of each page, of keys as of slots."""
    page_size = reduction.program.config.get("page_size")
    if type(page_size) is int and page_size > 1:
        config = _scaled(reduction.program.config, page_size)
        reduction.attempt(_with_pages_of_one(reduction.operations, page_size), **config)


def _scaled(config: Config, size: int) -> Config:
    scaled: Config = {"page_size": 1}
    for key in _IN_TOKENS:
        value = config.get(key)
        if type(value) is int:
            scaled[key] = -(-value // size)
    return scaled


def _with_pages_of_one(operations: Sequence[Operation], size: int) -> tuple[Operation, ...]:
    def change(record: Any) -> Any:
        if isinstance(record, Key):
            return replace(record, tokens=record.tokens[::size])
        if isinstance(record, Span):
            # Of a track slot there is one, whatever a page is.
            is_one = record.stop - record.start == 1 and record.start == 0
            return record if is_one else Span(record.step, record.start // size, -(-record.stop // size))
        if isinstance(record, tuple):
            return tuple(change(item) for item in record)
        if not is_dataclass(record):
            return record  # a number or a word, in a tuple
        if isinstance(record, Alloc | Evict):
            record = replace(record, tokens=-(-record.tokens // size))
        if isinstance(record, Evict):
            return replace(record, secondary=-(-record.secondary // size))
        if isinstance(record, Insert):
            record = replace(
                record,
                prev_prefix_len=record.prev_prefix_len // size,
                swa_evicted_seqlen=record.swa_evicted_seqlen // size,
            )
        changes = {
            field.name: change(value)
            for field in fields(record)
            if isinstance(value := getattr(record, field.name), Key | Span | tuple)
        }
        return replace(record, **changes) if changes else record

    return tuple(change(operation) for operation in operations)


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
