"""The smallest program so far, the rule by which another one takes its place, and fewer operations.

A program is a sequence of operations, numbered from 1: leaving some out takes along what refers to them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

from pymllm.conformance.acting import FoundViolation
from pymllm.history import operations as ops
from pymllm.history.files import Config, History
from pymllm.history.operations import Key, Operation, Span

REFERENCES: dict[type, tuple[str, ...]] = {
    Span: ("step",),
    ops.Lock: ("of",),
    ops.Unlock: ("lock", "at", "token"),
    ops.Hash: ("of",),
    ops.ScheduleChunk: ("request",),
    ops.Pause: ("request",),
    ops.Resume: ("request",),
    ops.Release: ("request",),
}
"""Fields of operations, and of records in them, that name a step where they are neither ``None`` nor 0.

The other operations that have a ``request`` mean a row of the context, which is the caller's.
"""


def references(record: Any) -> Iterator[int]:
    """Yield the number of each step that an operation refers to, repeats included."""
    kind: Any = type(record)
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
    kind: Any = type(record)
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


@functools.cache
def _fields_with_records(kind: type) -> tuple[str, ...]:
    """Return the fields of a record class that hold spans, one or many."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return tuple(field.name for field in fields if "Span" in str(field.type))


def without(operations: Sequence[Operation], dropped: Collection[int]) -> tuple[Operation, ...]:
    """Leave operations out, and whatever refers to them; what is left is numbered from 1 again."""
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


@dataclass(frozen=True, slots=True)
class Program:
    """What is made smaller: a configuration, and operations that are numbered from 1."""

    config: Config
    operations: tuple[Operation, ...]

    @property
    def key(self) -> int:
        """A number that two programs share if they are equal, and hardly otherwise."""
        return hash((tuple(self.config.items()), self.operations))


class Player(Protocol):
    """Who runs programs: `pymllm.conformance.shrink_trials.Trials`."""

    def is_new(self, program: Program) -> bool:
        """Tell whether a program has not been asked about before."""

    def play(self, program: Program) -> tuple[Program, FoundViolation] | None:
        """Run a program; what was left of it and broke the law, or ``None``."""


class Reduction:
    """The smallest so far; takes over what is smaller and breaks the law all the same."""

    def __init__(self, player: Player, program: Program, found: FoundViolation) -> None:
        self._player = player
        self.program = program
        self.found = found

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Those of the smallest program."""
        return self.program.operations

    def attempt(self, operations: tuple[Operation, ...], **config: int | str | bool | None) -> bool:
        """Play operations, in another configuration perhaps, and take over what breaks the law.

        False also where it is no smaller than what is there, or was tried before. Raises `OutOfBudgetError`.
        """
        candidate = Program({**self.program.config, **config}, operations)
        if not _is_smaller(candidate, self.program) or not self._player.is_new(candidate):
            return False
        result = self._player.play(candidate)
        if result is None:
            return False
        self.program, self.found = result
        return True


def _is_smaller(one: Program, other: Program) -> bool:
    if len(one.operations) != len(other.operations):
        return len(one.operations) < len(other.operations)
    return weigh(one) < weigh(other)


def weigh(program: Program) -> tuple[int, ...]:
    """Return what is to become small, what matters most first.

    Operations, how often one refers to another, tokens of keys and prompts, the sum of the configuration's
    numbers, how many fields of operations are not their default, and the sum of all numbers in operations.
    """
    tokens, unusual, numbers = _sum([_weigh_record(operation) for operation in program.operations], (0, 0, 0))
    pools = sum(value for value in program.config.values() if type(value) is int)
    named = sum(1 for operation in program.operations for _ in references(operation))
    return len(program.operations), named, tokens, pools, unusual, numbers


def count_tokens(history: History) -> int:
    """Count the tokens of all keys and prompts of a history."""
    return sum(_weigh_record(step.operation)[0] for step in history.steps)


@functools.lru_cache(maxsize=100_000)
def _weigh_record(record: Any) -> tuple[int, int, int]:
    """Return tokens, fields that are not their default, and the sum of numbers."""
    if isinstance(record, int):
        return 0, 0, abs(record)
    if isinstance(record, tuple):
        weights = [_weigh_record(item) for item in record]
        return _sum(weights, (0, 0, len(record)))
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        return 0, 0, 0
    values = [(getattr(record, field.name), field.default) for field in dataclasses.fields(record)]
    unusual = sum(value != default for value, default in values if default is not dataclasses.MISSING)
    tokens = len(record.tokens) if isinstance(record, Key | ops.AddRequest) else 0
    return _sum([_weigh_record(value) for value, _ in values], (tokens, unusual, 0))


def _sum(weights: list[tuple[int, int, int]], start: tuple[int, int, int]) -> tuple[int, int, int]:
    first, second, third = (sum(column) for column in zip(start, *weights, strict=True))
    return first, second, third


_FIRST_END = 4
_LONGER_ENDS = 3
"""Ends are tried from short to long: a short one costs nearly nothing."""
_MOST_IN_PAIRS = 24


def keep_end(reduction: Reduction) -> None:
    """Try the last few operations with what they need, ever more of them, until some break the law."""
    operations = reduction.operations
    kept = _FIRST_END
    while kept < len(operations):
        end = only(operations, range(len(operations) - kept + 1, len(operations) + 1))
        if reduction.attempt(end):
            return
        kept *= _LONGER_ENDS


def drop_families(reduction: Reduction) -> None:
    """Leave out all operations on the keys that begin alike, one family after the other."""
    for family in sorted({_family(operation) for operation in reduction.operations} - {""}):
        numbers = [at for at, operation in enumerate(reduction.operations, 1) if _family(operation) == family]
        reduction.attempt(without(reduction.operations, set(numbers)))


def _family(operation: Operation) -> str:
    """Return how an operation's key begins, its namespace included; nothing where it has none."""
    key = getattr(operation, "key", None)
    return "" if key is None else repr((key.extra_key, key.tokens[:1]))


def drop_kinds(reduction: Reduction) -> None:
    """Leave out all operations of one kind, those first that nobody refers to; else all but the last."""
    operations = reduction.operations
    named = Counter(type(operations[number - 1]) for it in operations for number in references(it))
    kinds = {type(operation): None for operation in operations}
    for kind in sorted(kinds, key=lambda kind: (named[kind], kind.__name__)):
        numbers = [at for at, operation in enumerate(reduction.operations, 1) if type(operation) is kind]
        if numbers and not reduction.attempt(without(reduction.operations, set(numbers))):
            reduction.attempt(without(reduction.operations, set(numbers[:-1])))


def drop_runs(reduction: Reduction) -> None:
    """Leave out so many operations in a row, the last first, then half as many, down to single ones."""
    length = len(reduction.operations) // 2
    while length:
        if not _drop_runs_of(reduction, length) or length > 1:
            length //= 2


def _drop_runs_of(reduction: Reduction, length: int) -> bool:
    """Go once through the program; what nobody refers to goes before what gave it."""
    has_dropped = False
    stop = len(reduction.operations)
    while stop > 0:
        start = max(stop - length, 0)
        dropped = range(start + 1, stop + 1)
        has_dropped |= reduction.attempt(without(reduction.operations, dropped))
        stop = min(start, len(reduction.operations))
    return has_dropped


def drop_pairs(reduction: Reduction) -> None:
    """Leave out any two operations of a short program that do not go one by one."""
    numbers = range(len(reduction.operations), 0, -1)
    for pair in combinations(numbers if len(numbers) <= _MOST_IN_PAIRS else (), 2):
        if reduction.attempt(without(reduction.operations, pair)):
            return drop_pairs(reduction)
    return None
