"""The smallest program so far, and the references between the operations of a program.

A program is a sequence of operations, numbered from 1: leaving some out takes along what refers to them.
Operations are looked at by the types of their fields alone: what names a step, keys, spans, numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import NODEFAULT, structs

from pymllm.history import operations as ops
from pymllm.history.files import Config, History
from pymllm.history.operations import Key, Operation, Span
from pymllm.machines.acting import FoundViolation

REFERENCES: dict[type, tuple[str, ...]] = {
    Span: ("step",),
    ops.Lock: ("of",),
    ops.Unlock: ("lock", "at", "token"),
    ops.Hash: ("of",),
    ops.ScheduleChunk: ("request",),
    ops.Pause: ("request",),
    ops.Resume: ("request",),
    ops.Truncate: ("request",),
    ops.Release: ("request",),
    ops.TransferRequest: ("request",),
    ops.EndTransfer: ("transfer",),
}
"""Fields of operations and their records that refer to a step unless they are ``None`` or 0.

The other operations that have a ``request`` mean a row of the context, which is the caller's.
"""


# -- records in operations --
def parts(record: Any) -> Iterator[Any]:
    """Yield an operation, then the keys and spans in its fields."""
    yield record
    kind: Any = type(record)
    for name in _fields_with_records(kind):
        value = getattr(record, name)
        if type(value) is tuple:
            yield from value
        elif value is not None:
            yield value


def changed(record: Any, change: Callable[[Any], Any]) -> Any:
    """Return an operation with a function applied to each of its keys and spans, and then to itself."""
    kind: Any = type(record)
    values: dict[str, Any] = {}
    for name in _fields_with_records(kind):
        value = getattr(record, name)
        if type(value) is tuple:
            values[name] = tuple(map(change, value))
        elif value is not None:
            values[name] = change(value)
    return change(structs.replace(record, **values) if values else record)


@functools.cache
def _fields_with_records(kind: type) -> tuple[str, ...]:
    """Return the fields of a record class that contain keys or spans."""
    return tuple(it.name for it in structs.fields(kind) if "Span" in str(it.type) or "Key" in str(it.type))


def unusual(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and default of each field of an operation, key or span that differs from the default."""
    kind: Any = type(part)
    for name, default in _defaults_of(kind):
        if getattr(part, name) != default:
            yield name, default


@functools.cache
def _defaults_of(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple((it.name, it.default) for it in structs.fields(kind) if it.default is not NODEFAULT)


# -- what refers to what --
def references(operation: Any) -> Iterator[int]:
    """Yield the number of each step that an operation refers to, including repeats."""
    for part in parts(operation):
        for name in REFERENCES.get(type(part), ()):
            if number := getattr(part, name):
                yield number


def renumbered(operation: Any, number_of: Callable[[int], int]) -> Any:
    """Return an operation with each step number that it refers to replaced."""

    def change(part: Any) -> Any:
        named = {name: getattr(part, name) for name in REFERENCES.get(type(part), ())}
        numbers = {name: number_of(number) for name, number in named.items() if number}
        return structs.replace(part, **numbers) if numbers else part

    return changed(operation, change)


def without(operations: Sequence[Any], dropped: Collection[int]) -> tuple[Any, ...]:
    """Return a program without some operations and those that refer to them, numbered from 1 again."""
    numbers: dict[int, int] = {}
    kept: list[Operation] = []
    for number, operation in enumerate(operations, 1):
        if number in dropped or not all(named in numbers for named in references(operation)):
            continue
        numbers[number] = len(kept) + 1
        is_moved = number != len(kept) + 1
        kept.append(renumbered(operation, numbers.__getitem__) if is_moved else operation)
    return tuple(kept)


def only(operations: Sequence[Operation], wanted: Collection[int]) -> tuple[Operation, ...]:
    """Return some operations with all that they refer to, directly or not, numbered from 1 again."""
    needed = set(wanted)
    for number in range(len(operations), 0, -1):
        if number in needed:
            needed.update(references(operations[number - 1]))
    return without(operations, set(range(1, len(operations) + 1)) - needed)


# -- programs --
@dataclass(frozen=True, slots=True)
class Program:
    """A program to shrink: a configuration, and operations numbered from 1, or a machine's acts."""

    config: Config
    items: tuple[Any, ...]

    @property
    def key(self) -> int:
        """A hash that is equal for equal programs, and almost never for different ones."""
        return hash((tuple(self.config.items()), self.items))

    @property
    def pools(self) -> int:
        """The sum of the numbers in the configuration."""
        return sum(value for value in self.config.values() if type(value) is int)


class Player(Protocol):
    """The interface of a player of programs, which has one implementation for operations and one for acts."""

    @property
    def tried(self) -> Collection[object]:
        """Keys of the programs tried so far."""

    def is_worth(self, program: Program, best: Program) -> bool:
        """Tell whether a program may be smaller than the best and has not been tried."""

    def play(self, program: Program) -> tuple[Program, FoundViolation] | None:
        """Run a program; return the smaller part that broke the law, or ``None`` if no law broke."""


class Reduction:
    """The smallest program so far, replaced by each smaller program that breaks the law."""

    def __init__(self, player: Player, program: Program, found: FoundViolation) -> None:
        self.player = player
        self.program = program
        self.found = found

    @property
    def items(self) -> tuple[Any, ...]:
        """The operations or acts of the smallest program."""
        return self.program.items

    def attempt(self, items: tuple[Any, ...], **config: int | str | bool | None) -> bool:
        """Play operations or acts, perhaps in another configuration, and keep a program that breaks the law.

        False also where it is no smaller than what is there, or was tried before. Raises `OutOfBudgetError`.
        """
        candidate = Program({**self.program.config, **config}, items)
        result = self.player.play(candidate) if self.player.is_worth(candidate, self.program) else None
        if result is None:
            return False
        self.program, self.found = result
        return True


# -- weights --
def weigh(program: Program) -> tuple[int, ...]:
    """Return the sizes of a program that shrinking minimises, the most important first.

    Operations, how often one refers to another, tokens of keys and prompts, the sum of the configuration's
    numbers, how many fields of operations are not their default, and the sum of all numbers in operations.
    """
    weights = [_weigh_operation(operation) for operation in program.items]
    tokens, others, numbers = (sum(column) for column in zip((0, 0, 0), *weights, strict=True))
    named = sum(1 for operation in program.items for _ in references(operation))
    return len(program.items), named, tokens, program.pools, others, numbers


def count_tokens(history: History) -> int:
    """Count the tokens of all keys and prompts of a history."""
    return sum(_weigh_operation(step.operation)[0] for step in history.steps)


@functools.lru_cache(maxsize=100_000)
def _weigh_operation(operation: Any) -> tuple[int, int, int]:
    """Return an operation's number of tokens, number of unusual fields, and sum of numbers and lengths."""
    tokens = others = numbers = 0
    for part in parts(operation):
        tokens += len(part.tokens) if isinstance(part, Key | ops.AddRequest) else 0
        others += sum(1 for _ in unusual(part))
        numbers += sum(map(_magnitude, structs.astuple(part)))
    return tokens, others, numbers


def _magnitude(value: Any) -> int:
    if isinstance(value, tuple):
        return len(value) + sum(map(_magnitude, value))
    return abs(value) if isinstance(value, int) else 0
