"""The smallest program so far, and the rule by which another one takes its place."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.shrink_trials import Program
from pymllm.conformance.step_references import references
from pymllm.history.files import History
from pymllm.history.operations import AddRequest, Key, Operation

__all__ = ["Player", "Reduction", "count_tokens", "weigh"]


class Player(Protocol):
    """Who runs programs: `pymllm.conformance.shrink_trials.Trials`."""

    def is_new(self, program: Program) -> bool:
        """Tell whether a program has not been asked about before."""

    def play(self, program: Program) -> tuple[Program, FoundViolation] | None:
        """Run a program; what was left of it and broke the law, or ``None``."""


class Reduction:
    """Takes over what is smaller and breaks the law all the same.

    Parameters
    ----------
    player : Player
        Runs what is tried.
    program : Program
        Breaks the law.
    found : FoundViolation
        What came of it.

    Attributes
    ----------
    program, found
        The smallest so far.
    """

    def __init__(self, player: Player, program: Program, found: FoundViolation) -> None:
        self._player = player
        self.program = program
        self.found = found

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Those of the smallest program."""
        return self.program.operations

    def attempt(self, operations: tuple[Operation, ...], **config: int | str | bool | None) -> bool:
        """Play a program, and take it over if it breaks the law.

        Parameters
        ----------
        operations : tuple of Operation
            Numbered from 1.
        **config
            What is configured otherwise.

        Returns
        -------
        bool
            False also where it is no smaller than what is there, or was tried before.

        Raises
        ------
        OutOfBudgetError
            Nothing more may be tried.
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

    Returns
    -------
    tuple of int
        Operations, how often one refers to another, tokens of keys and prompts, the sum of the
        configuration's numbers, how many fields of operations are not their default, and the sum of all
        numbers in operations.
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
    tokens = len(record.tokens) if isinstance(record, Key | AddRequest) else 0
    return _sum([_weigh_record(value) for value, _ in values], (tokens, unusual, 0))


def _sum(weights: list[tuple[int, int, int]], start: tuple[int, int, int]) -> tuple[int, int, int]:
    first, second, third = (sum(column) for column in zip(start, *weights, strict=True))
    return first, second, third
