"""The passes by which a shrinker makes a program smaller: fewer operations, then smaller pools.

Each tries some smaller programs, and keeps what still breaks the law.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from msgspec import structs

from pymllm.history.files import PlayedAct
from pymllm.history.operations import (
    Alloc,
    Evict,
    Insert,
    Key,
    Namespace,
    Operation,
    Span,
    Token,
)
from pymllm.machines.acting import ActingMachine, acts_of
from pymllm.search.reduction import (
    REFERENCES,
    Reduction,
    changed,
    only,
    parts,
    references,
    unusual,
    without,
)
from pymllm.search.shrink_references import POOLS_OF_PAGES, count_of, cut_row, page_size_of, replaced

Operations = tuple[Operation, ...]

_IN_TOKENS: dict[type, tuple[str, ...]] = {
    Alloc: ("tokens",),
    Evict: ("tokens", "secondary"),
    Insert: ("prev_prefix_len", "swa_evicted_seqlen"),
}
"""Fields of operations that count tokens."""
_POOLS_IN_TOKENS = (*POOLS_OF_PAGES, "window")
"""Keys of a configuration that count tokens."""

_FIRST_END = 4
_LONGER_ENDS = 3
"""Numbers of last operations to try, from small to large, since short ends cost almost nothing."""
_MOST_IN_PAIRS = 24
_OTHERS = 150
_ACTS_OF_OTHERS = 3


# -- fewer operations --
def keep_end(reduction: Reduction) -> None:
    """Keep only the last few operations and those that they need, then more, until the law breaks."""
    operations = reduction.items
    kept = _FIRST_END
    while kept < len(operations):
        end = only(operations, range(len(operations) - kept + 1, len(operations) + 1))
        if reduction.attempt(end):
            return
        kept *= _LONGER_ENDS


def drop_families(reduction: Reduction) -> None:
    """Drop all operations on keys with the same first token, one such token after the other."""
    for family in sorted({_family(operation) for operation in reduction.items} - {""}):
        numbers = [at for at, operation in enumerate(reduction.items, 1) if _family(operation) == family]
        reduction.attempt(without(reduction.items, set(numbers)))


def _family(operation: Operation) -> str:
    """Return a key's namespace and first token as text; empty for operations without a key."""
    key = _key_of(operation)
    return "" if key is None else repr((key.extra_key, key.tokens[:1]))


def drop_kinds(reduction: Reduction) -> None:
    """Drop all operations of one kind, those without references to them first, or all except the last."""
    operations = reduction.items
    named = Counter(type(operations[number - 1]) for it in operations for number in references(it))
    kinds = {type(operation): None for operation in operations}
    for kind in sorted(kinds, key=lambda kind: (named[kind], kind.__name__)):
        numbers = [at for at, operation in enumerate(reduction.items, 1) if type(operation) is kind]
        if numbers and not reduction.attempt(without(reduction.items, set(numbers))):
            reduction.attempt(without(reduction.items, set(numbers[:-1])))


def drop_runs(reduction: Reduction) -> None:
    """Drop long runs of operations, the last first, then shorter runs, down to single operations.

    An allocation goes with all that names it; what nobody refers to goes before what gave it.
    """
    length = max(len(reduction.items) // 2, 1)
    while length:
        has_dropped = False
        stop = len(reduction.items)
        while stop > 0:
            start = max(stop - length, 0)
            has_dropped |= reduction.attempt(without(reduction.items, range(start + 1, stop + 1)))
            stop = min(start, len(reduction.items))
        if not has_dropped or length > 1:
            length //= 2


def drop_pairs(reduction: Reduction) -> None:
    """Drop any two operations of a short program that cannot be dropped one by one."""
    numbers = range(len(reduction.items), 0, -1)
    for pair in combinations(numbers if len(numbers) <= _MOST_IN_PAIRS else (), 2):
        if reduction.attempt(without(reduction.items, pair)):
            return drop_pairs(reduction)
    return None


def _cuts(length: int, unit: int) -> Iterator[tuple[int, int]]:
    """Yield ranges to cut out of a key, in whole units and from the end: a half, a quarter, and so on."""
    size = length // unit // 2 or 1
    while size:
        for stop in range(length // unit * unit, 0, -size * unit):
            yield max(stop - size * unit, 0), stop
        size //= 2
    if length % unit:
        yield length // unit * unit, length


# -- keys --
def _key_of(operation: Operation) -> Key | None:
    key = getattr(operation, "key", None)
    return key if isinstance(key, Key) else None


def shorten_keys(reduction: Reduction) -> None:
    """Cut whole pages and then single tokens from keys: first in all keys that share them, then in one."""
    page_size = page_size_of(reduction.program.config)
    for unit in (page_size, 1) if page_size > 1 else (1,):
        for is_shared in (True, False):
            while any(reduction.attempt(shorter) for shorter in _shorter(reduction.items, unit, is_shared)):
                pass


def _shorter(operations: Operations, unit: int, is_shared: bool) -> Iterator[Operations]:
    """Yield programs in which some tokens of a key are cut out, the longest cuts first."""
    keys = [(at, key) for at, operation in enumerate(operations) if (key := _key_of(operation)) is not None]
    seen = set()
    for at, key in sorted(keys, key=lambda item: -len(item[1].tokens)):
        if is_shared and (key.extra_key, key.tokens) in seen:
            continue
        seen.add((key.extra_key, key.tokens))
        for start, stop in _cuts(len(key.tokens), unit):
            shared = key.tokens[:stop]
            yield tuple(
                _cut(operation, start, stop)
                if other == at or (is_shared and _begins(operation, key.extra_key, shared))
                else operation
                for other, operation in enumerate(operations)
            )


def _begins(operation: Operation, space: Namespace, tokens: Sequence[Token]) -> bool:
    key = _key_of(operation)
    return key is not None and key.extra_key == space and key.tokens[: len(tokens)] == tokens


def _cut(operation: Any, start: int, stop: int) -> Any:
    """Cut tokens from an operation's key, with the slots that belong to them."""
    tokens = cut_row(operation.key.tokens, start, stop)
    changes: dict[str, Any] = {"key": structs.replace(operation.key, tokens=tokens)}
    if isinstance(operation, Insert):
        if operation.slots is not None:
            changes["slots"] = cut_row(operation.slots, start, stop)
        for name in _IN_TOKENS[Insert]:
            length = getattr(operation, name)
            changes[name] = length - max(0, min(length, stop) - start)
    return structs.replace(operation, **changes)


def merge_tokens(reduction: Reduction) -> None:
    """Renumber the tokens of all keys from 1, then merge two tokens or branches at a time."""
    tokens = _tokens(reduction.items)
    ranks = {token: rank for rank, token in enumerate(tokens, 1)}
    reduction.attempt(_with_tokens(reduction.items, ranks))
    is_merging = True
    while is_merging:
        tokens = _tokens(reduction.items)
        pairs = [(gone, kept) for gone in reversed(tokens) for kept in tokens if kept < gone]
        is_merging = any(
            reduction.attempt(_with_tokens(reduction.items, {gone: kept})) for gone, kept in pairs
        )


def _tokens(operations: Operations) -> list[int]:
    """Return the tokens in all keys, in ascending order."""
    keys = [key for operation in operations if (key := _key_of(operation)) is not None]
    tokens = (token if isinstance(token, tuple) else (token,) for key in keys for token in key.tokens)
    return sorted({number for token in tokens for number in token})


def _with_tokens(operations: Operations, others: dict[int, int]) -> Operations:
    def other(token: Token) -> Token:
        if isinstance(token, tuple):
            return tuple(others.get(number, number) for number in token)
        return others.get(token, token)

    def change(part: Any) -> Any:
        is_key = type(part) is Key
        return structs.replace(part, tokens=tuple(map(other, part.tokens))) if is_key else part

    return tuple(changed(operation, change) for operation in operations)


# -- pages, pools --
def shrink_pages(reduction: Reduction) -> None:
    """Shrink the page size to 1: keep the first token of each page in keys, and the first slot."""
    config = reduction.program.config
    size = page_size_of(config)
    if size == 1:
        return
    pools = {key: value for key in _POOLS_IN_TOKENS if type(value := config.get(key)) is int}
    scaled = {key: -(-value // size) for key, value in pools.items()}

    def change(part: Any) -> Any:
        if type(part) is Key:
            return structs.replace(part, tokens=part.tokens[::size])
        if type(part) is Span:
            # Of a track slot there is one, whatever a page is.
            is_one = part.stop - part.start == 1 and part.start == 0
            return part if is_one else Span(part.step, part.start // size, -(-part.stop // size))
        counts = {name: getattr(part, name) for name in _IN_TOKENS.get(type(part), ())}
        up = 0 if type(part) is Insert else size - 1
        return structs.replace(part, **{name: (count + up) // size for name, count in counts.items()})

    reduction.attempt(
        tuple(changed(operation, change) for operation in reduction.items), page_size=1, **scaled
    )


def shrink_pools(reduction: Reduction) -> None:
    """Lower each number of the configuration as far as possible."""
    for key in list(reduction.program.config):
        while _lower(reduction, key):
            pass


def _lower(reduction: Reduction, key: str) -> bool:
    config = reduction.program.config
    value = config[key]
    if type(value) is not int:
        return False
    unit = page_size_of(config) if key in POOLS_OF_PAGES and config.get("pool") != "none" else 1
    counts = dict.fromkeys((1, value // unit // 2, value // unit - 1))
    smaller = [count * unit for count in counts if 0 < count * unit < value]
    return any(reduction.attempt(reduction.items, **{key: size}) for size in smaller)


# -- fields --
def make_usual(reduction: Reduction) -> None:
    """Set fields of one name to their default, in all operations at once and then one by one."""
    found = (part for operation in reduction.items for part in parts(operation))
    names = sorted({name for part in found for name, _ in unusual(part)})
    for name in names:
        reduction.attempt(tuple(_made_usual(operation, name) for operation in reduction.items))
    for at in range(len(reduction.items)):
        for name in names:
            if at < len(reduction.items):
                reduction.attempt(replaced(reduction.items, at, _made_usual(reduction.items[at], name)))


def _made_usual(operation: Operation, name: str) -> Any:
    def change(part: Any) -> Any:
        return structs.replace(part, **{it: usual for it, usual in unusual(part) if it == name})

    return changed(operation, change)


def lower_numbers(reduction: Reduction) -> None:
    """Try smaller numbers in each field that refers to no step, and shorter lists of numbers and spans."""
    at = len(reduction.items) - 1
    while at >= 0:
        is_lowered = any(
            reduction.attempt(replaced(reduction.items, at, lower)) for lower in _lowered(reduction.items[at])
        )
        # Each time from the beginning: what did not go before may go now.
        at = min(at, len(reduction.items) - 1) if is_lowered else at - 1


def _lowered(operation: Operation) -> Iterator[Operation]:
    """Yield an operation with shorter lists, then with one smaller number, the smallest first."""
    if _key_of(operation) is None:  # or its slots go with its tokens
        yield from _with_shorter_rows(operation)
    for name in operation.__struct_fields__:
        if name not in REFERENCES.get(type(operation), ()):
            for value in _smaller(getattr(operation, name)):
                yield structs.replace(operation, **{name: value})


def _with_shorter_rows(operation: Operation) -> Iterator[Operation]:
    """Yield an operation with all its lists of equal length shortened alike."""
    values = {name: getattr(operation, name) for name in operation.__struct_fields__}
    rows = {name: value for name, value in values.items() if type(value) is tuple}
    for length in sorted({count_of(row) for row in rows.values()}):
        alike = {name: row for name, row in rows.items() if count_of(row) == length}
        for start, stop in _runs(length):
            yield structs.replace(
                operation, **{name: cut_row(row, start, stop) for name, row in alike.items()}
            )


def _runs(length: int) -> Iterator[tuple[int, int]]:
    """Yield ranges to drop from a list, the longest first."""
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


# -- acts --
def lower_arguments(reduction: Reduction, machine: type[ActingMachine]) -> None:
    """Try smaller arguments of each act, down to the least that the act permits."""
    known = acts_of(machine)
    at = 0
    while at < len(reduction.items):
        for name, (least, _) in known[reduction.items[at].name].act_ranges.items():
            while at < len(reduction.items) and any(
                reduction.attempt(replaced(reduction.items, at, lower))
                for lower in _with_less(reduction.items[at], name, least)
            ):
                pass
        at += 1


def _with_less(act: PlayedAct, name: str, least: int) -> Iterator[PlayedAct]:
    arguments = dict(act.arguments)
    value = arguments.get(name, least)
    for lower in dict.fromkeys((least, (least + value) // 2, value - 1)):
        if least <= lower < value:
            yield PlayedAct(act.name, tuple({**arguments, name: lower}.items()))


def draw_others(reduction: Reduction, machine: type[ActingMachine]) -> None:
    """Draw new, short runs of acts in small pools, since a few requests may do what took many."""
    source = random.Random(len(reduction.player.tried))
    known = acts_of(machine)
    names, weights = list(known), [act.act_weight for act in known.values()]

    def draw(low: int, high: int) -> int:
        """Draw a number from a range, with a preference for small ones."""
        return source.randint(low, source.randint(low, high))

    for _ in range(_OTHERS):
        chosen = source.choices(names, weights, k=source.randint(1, _ACTS_OF_OTHERS))
        ranges = [(name, known[name].act_ranges.items()) for name in chosen]
        acts = [PlayedAct(name, tuple((key, draw(*ends)) for key, ends in each)) for name, each in ranges]
        config = reduction.program.config
        pools = {key: value for key, value in config.items() if type(value) is int and value}
        sizes = {key: draw(1, value) for key, value in pools.items() if source.random() < 0.5}
        reduction.attempt(tuple(acts), **sizes)
