"""Violations to work with: of a small program, and of the first seed from which a machine meets one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.errors import InvariantViolation
from pymllm.history.operations import AllocRows, FreeRow, Operation, ReadRows, Span, WriteRow
from pymllm.machines.acting import ActingMachine, FoundViolation, drive
from pymllm.machines.examiner import Examiner
from pymllm.search.program import play_steps

ROWS = {"max_reqs": 3, "max_context_len": 4}
DIRTY: tuple[Operation, ...] = (
    AllocRows(1),
    WriteRow(Span(1, 0, 1), 0, 1, (7,)),
    FreeRow(Span(1, 0, 1)),
    ReadRows(),
)
"""Breaks P2 where a row is not cleaned when it is given back."""


def found_in(adapter: str, operations: Iterable[Operation] = DIRTY) -> FoundViolation:
    """Run a program of rows up to the step that an adapter is wrong in."""
    examiner = Examiner(make_adapter(adapter, dict(ROWS)), seed=5)
    with pytest.raises(InvariantViolation) as caught:
        play_steps(examiner, enumerate(operations, 1))
    return FoundViolation(examiner.history, caught.value)


def found_by(machine: type[ActingMachine], steps: int = 40) -> FoundViolation:
    """Drive a machine from one seed after another until a law is broken."""
    for seed in range(200):
        try:
            drive(machine, seed, steps)
        except InvariantViolation:
            break
    assert machine.found is not None
    return machine.found
