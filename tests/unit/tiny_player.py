"""Programs that "break a law" by a predicate, so that a pass is tested without any implementation."""

from __future__ import annotations

from collections.abc import Callable

from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.reduction import Program, Reduction
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config, Header, History, Step
from pymllm.history.operations import Operation


class TinyPlayer:
    """Breaks a law where a predicate holds; keeps what was played."""

    def __init__(self, breaks: Callable[[Program], object]) -> None:
        self.played: list[Program] = []
        self._breaks = breaks

    def is_new(self, program: Program) -> bool:
        return program not in self.played

    def play(self, program: Program) -> tuple[Program, FoundViolation] | None:
        self.played.append(program)
        return (program, found_in(program)) if self._breaks(program) else None


def found_in(program: Program) -> FoundViolation:
    steps = [Step(number, operation) for number, operation in enumerate(program.operations, 1)]
    history = History(Header("tiny", "prefix", program.config), steps)
    return FoundViolation(history, InvariantViolation("R2", "looked"))


def reduction_of(
    operations: list[Operation],
    breaks: Callable[[tuple[Operation, ...]], object],
    config: Config | None = None,
) -> Reduction:
    """Make a reduction whose programs break the law as their operations say."""
    return reduction_in(operations, lambda program: breaks(program.operations), config)


def reduction_in(
    operations: list[Operation], breaks: Callable[[Program], object], config: Config | None = None
) -> Reduction:
    """Make a reduction whose programs break the law as they and their configuration say."""
    program = Program(config or {}, tuple(operations))
    assert breaks(program)
    return Reduction(TinyPlayer(breaks), program, found_in(program))
