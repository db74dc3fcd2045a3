"""The passes by which a shrinker changes the references between steps: slots, nodes and holds.

They are of the same form as those of `pymllm.search.shrink_passes`: each tries some smaller programs,
and keeps what still breaks the law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from msgspec import structs

from pymllm.history.files import Config
from pymllm.history.operations import (
    Alloc,
    AllocBlocks,
    AllocRows,
    Evict,
    Insert,
    Match,
    Operation,
    Span,
)
from pymllm.search.reduction import Reduction, changed, parts, references, renumbered, without

Operations = tuple[Operation, ...]

_COUNTS: dict[type, str] = {Alloc: "tokens", AllocBlocks: "count", AllocRows: "count"}
"""Operations that hand out a requested number of slots or blocks, with the field for that number."""
_SUMMED: dict[type, tuple[str, ...]] = {
    **{kind: (count,) for kind, count in _COUNTS.items()},
    Evict: ("tokens", "secondary"),
}
"""Operations of which one can do the work of two, with the fields that say how much."""
POOLS_OF_PAGES = ("slots", "swa_slots")
"""Keys of a configuration that count tokens in whole pages."""


# -- one step for two --
def join_operations(reduction: Reduction) -> None:
    """Join each operation with the next of its kind, for allocations, evictions and operations with lists."""
    while any(reduction.attempt(_joined(reduction.items, *pair)) for pair in _neighbours(reduction.items)):
        pass


def _neighbours(operations: Operations) -> Iterator[tuple[int, int]]:
    """Yield the numbers of successive operations of a kind that can be joined."""
    for kind in dict.fromkeys(map(type, operations)):
        for pair in pairwise(at for at, operation in enumerate(operations, 1) if type(operation) is kind):
            if _together(*(operations[number - 1] for number in pair)) is not None:
                yield pair


def _together(one: Any, other: Any) -> Any:
    """Return one operation with the counts or lists of two; ``None`` if they differ otherwise."""
    changes: dict[str, Any] = {}
    for name in one.__struct_fields__:
        first, second = getattr(one, name), getattr(other, name)
        if name in _SUMMED.get(type(one), ()) or (type(first) is tuple and type(second) is tuple):
            changes[name] = first + second
        elif first != second:
            return None
    return structs.replace(one, **changes) if changes else None


def _joined(operations: Operations, first: int, second: int) -> Operations:
    """Replace two operations by one, at the place of the first for allocations, else of the second."""
    one, other = operations[first - 1], operations[second - 1]
    count = _COUNTS.get(type(one))
    given = 0 if count is None else getattr(one, count)

    def change(part: Any) -> Any:
        if type(part) is Span:
            is_moved = count is not None and part.step == second
            return Span(first, given + part.start, given + part.stop) if is_moved else part
        return _with_rows(part, merged)

    kept, dropped = (second, first) if count is None else (first, second)
    joined = replaced(operations, kept - 1, _together(one, other))
    return without([changed(operation, change) for operation in joined], {dropped})


# -- one giver for another --
_GIVE_ALIKE: tuple[frozenset[type], ...] = (frozenset({Match, Insert}), frozenset({Match, Alloc}))
"""Operations of different kinds that may return the same thing: a node, or slots."""


def retarget_references(reduction: Reduction) -> None:
    """Drop each step, last first, after redirecting references to the first step that returns the same.

    A node is the same whether a match or an insert found it, and so are the slots of a match and of the
    allocation that they come from. Nobody asks here whether they are: the law tells.
    """
    number = len(reduction.items)
    while number:
        users = [at for at, operation in enumerate(reduction.items, 1) if number in references(operation)]
        for other in range(1, users[0]) if users else ():
            if _give_alike(*(type(reduction.items[place - 1]) for place in (number, other))) and (
                other != number and reduction.attempt(_retargeted(reduction.items, number, other))
            ):
                break
        number = min(number - 1, len(reduction.items))


def _give_alike(one: type, other: type) -> bool:
    return one is other or any({one, other} <= kinds for kinds in _GIVE_ALIKE)


def _retargeted(operations: Operations, number: int, other: int) -> Operations:
    """Drop a step after redirecting its references to another step."""
    moved = [renumbered(it, lambda step: other if step == number else step) for it in operations]
    return without(moved, {number})


def match_instead(reduction: Reduction) -> None:
    """Replace an insert by a match of its key, if only the returned node or the access matters."""
    for at, operation in enumerate(reduction.items):
        if isinstance(operation, Insert):
            reduction.attempt(replaced(reduction.items, at, Match(operation.key)))


def lower_spans(reduction: Reduction) -> None:
    """Make spans name the first slots of a step, in order, so that the step can return fewer."""
    for change in (_lowered, _in_order):
        for at in range(len(reduction.items)):
            if at < len(reduction.items):
                reduction.attempt(replaced(reduction.items, at, changed(reduction.items[at], change)))


def _lowered(part: Any) -> Any:
    is_lower = type(part) is Span and part.step and part.start
    return Span(part.step, 0, part.stop - part.start) if is_lower else part


def _in_order(part: Any) -> Any:
    return _with_rows(part, lambda row: merged(sorted(row, key=structs.astuple)))


def untangle_inserts(reduction: Reduction) -> None:
    """Take all slots of an insert from one allocation, for all inserts at once and then for each.

    What a match or another allocation gave is no longer needed then, and can be dropped.
    """
    operations = reduction.items
    tangled = [at for at, operation in enumerate(operations) if _allocation_of(operations, operation)]
    reduction.attempt(_untangled(operations, tangled))
    for at in tangled:
        if at < len(reduction.items):
            reduction.attempt(_untangled(reduction.items, [at]))


def _allocation_of(operations: Operations, operation: Operation) -> int:
    """Return the last of several allocations that gave an insert its slots; 0 if there is only one."""
    if not isinstance(operation, Insert) or operation.slots is None or len(operation.slots) < 2:
        return 0
    steps = [span.step for span in operation.slots if span.step]
    return max((step for step in steps if isinstance(operations[step - 1], Alloc)), default=0)


def _untangled(operations: Operations, places: Sequence[int]) -> Operations:
    untangled: list[Any] = list(operations)
    for at in places:
        number, insert = _allocation_of(operations, operations[at]), untangled[at]
        if number:
            length = count_of(insert.slots)
            untangled[number - 1] = Alloc(max(untangled[number - 1].tokens, length))
            untangled[at] = structs.replace(insert, slots=(Span(number, 0, length),))
    return tuple(untangled)


# -- as much as is named --
def shrink_allocations(reduction: Reduction) -> None:
    """Reduce each allocation to the pages that are named, or to fewer unnamed pages in a smaller pool.

    What fills a pool may have to fill it: with fewer pages handed out, more would be left.
    """
    number = 1
    while number <= len(reduction.items):
        kind = type(reduction.items[number - 1])
        unit = page_size_of(reduction.program.config) if kind is Alloc else 1
        if kind not in _COUNTS or not _shrink_allocation(reduction, number, unit):
            number += 1


def _shrink_allocation(reduction: Reduction, number: int, unit: int) -> bool:
    pages = _named_pages(reduction.items, number, unit)
    return reduction.attempt(
        _with_pages(reduction.items, number, unit, pages, len(pages))
    ) or _shrink_filled_pool(reduction, number, unit, pages)


def _named_pages(operations: Operations, number: int, unit: int) -> Sequence[int]:
    """Return the pages of an allocation that operations name."""
    spans = [
        it for operation in operations for it in parts(operation) if type(it) is Span and it.step == number
    ]
    return sorted({place // unit for span in spans for place in range(span.start, span.stop)})


def _with_pages(
    operations: Operations, number: int, unit: int, pages: Sequence[int], count: int
) -> Operations:
    """Reduce an allocation to ``count`` pages, of which the first are the named ``pages``."""
    moved = {page: place for place, page in enumerate(pages)}

    def change(part: Any) -> Any:
        if type(part) is not Span or part.step != number or part.start >= part.stop:
            return part
        shift = (part.start // unit - moved[part.start // unit]) * unit
        return Span(number, part.start - shift, part.stop - shift)

    allocation = operations[number - 1]
    less = structs.replace(allocation, **{_COUNTS[type(allocation)]: count * unit})
    return tuple(changed(it, change) for it in replaced(operations, number - 1, less))


def _shrink_filled_pool(reduction: Reduction, number: int, unit: int, pages: Sequence[int]) -> bool:
    """Remove unnamed pages from an allocation and equally many from the pool: all, half, or one."""
    allocation = reduction.items[number - 1]
    count = getattr(allocation, _COUNTS[type(allocation)]) // unit
    spare = count - len(pages)
    pools = {
        key: (value, unit if key in POOLS_OF_PAGES else 1)
        for key, value in reduction.program.config.items()
        if type(value) is int
    }
    return any(
        reduction.attempt(
            _with_pages(reduction.items, number, unit, pages, count - less), **{key: value - less * size}
        )
        for key, (value, size) in pools.items()
        if value // size >= count
        for less in dict.fromkeys((spare, spare // 2, 1))
        if 0 < less <= spare
    )


def page_size_of(config: Config) -> int:
    """Return the page size of a configuration in tokens, or 1 if it has no pages."""
    size = config.get("page_size")
    return size if type(size) is int and size > 0 else 1


# -- rows of spans --
def is_spans(value: Any) -> bool:
    """Tell whether a field holds several spans."""
    return type(value) is tuple and bool(value) and type(value[0]) is Span


def count_of(row: tuple[Any, ...]) -> int:
    """Return the length of a list, counting for spans the numbers that they stand for."""
    return sum(span.stop - span.start for span in row) if is_spans(row) else len(row)


def cut_row(row: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
    """Remove places ``start`` to ``stop`` from a list, counting for spans the numbers they stand for."""
    if not is_spans(row):
        return row[:start] + row[stop:]
    kept: list[Span] = []
    begin = 0
    for span in row:
        end = begin + span.stop - span.start
        for first, last in ((begin, min(end, start)), (max(begin, stop), end)):
            if first < last:
                kept.append(Span(span.step, span.start + first - begin, span.start + last - begin))
        begin = end
    return merged(kept)


def _with_rows(part: Any, change: Callable[[tuple[Span, ...]], tuple[Span, ...]]) -> Any:
    """Return a record with its lists of spans changed."""
    rows = {name: row for name in part.__struct_fields__ if is_spans(row := getattr(part, name))}
    return structs.replace(part, **{name: change(row) for name, row in rows.items()}) if rows else part


def merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return spans with adjacent ones merged."""
    merged: list[Span] = []
    for span in spans:
        if merged and (merged[-1].step, merged[-1].stop) == (span.step, span.start):
            merged[-1] = Span(span.step, merged[-1].start, span.stop)
        else:
            merged.append(span)
    return tuple(merged)


def replaced(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    """Return a tuple with one item replaced."""
    return (*items[:at], item, *items[at + 1 :])
