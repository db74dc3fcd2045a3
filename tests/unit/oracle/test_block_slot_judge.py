"""The judge of slots: good programs, and what each wrong outcome of them breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.conformance.program import run_program
from pymllm.errors import ProgramError
from pymllm.history.operations import (
    AllocBlocks,
    AllocSlots,
    DropStates,
    EvictSlots,
    FindSlots,
    NameStates,
    Operation,
    RegisterBlocks,
    ReleaseBlocks,
    SetClock,
    Span,
    StampBlocks,
)
from pymllm.history.outcomes import Done, Effect, Failed, FoundSlots, Outcome, Slots

Spoiler = Callable[[Outcome], Outcome]


def first(*places: int) -> tuple[Span, ...]:
    """Blocks of step 1, by their places."""
    return tuple(Span(1, place, place + 1) for place in places)


def number(value: int) -> tuple[Span, ...]:
    return (Span(0, value, value + 1),)


def answers(result: Any) -> Spoiler:
    return lambda outcome: dataclasses.replace(outcome, result=result)


def size(name: str) -> Spoiler:
    return lambda outcome: dataclasses.replace(
        outcome, sizes={**outcome.sizes, name: outcome.sizes[name] + 1}
    )


FIVE: list[Operation] = [AllocBlocks(5), RegisterBlocks((Span(1, 0, 5),), (11, 22, 33, 44, 55), (0,) * 5)]
FULL: list[Operation] = [
    *FIVE,
    AllocSlots(first(0, 1, 2)),
    SetClock(2),
    StampBlocks(first(0)),
    ReleaseBlocks(first(0, 1)),
]
"""Slots 0, 1, 2 for blocks 0, 1, 2, of which 1 is older than 0, and 2 is held."""

REFUSED = answers(Failed("MambaSlotCapacityError"))

WRONG: list[tuple[list[Operation], Spoiler, str]] = [
    # A batch.
    ([*FIVE, AllocSlots(first(0, 1))], answers(Slots((0,))), "C5"),
    ([*FIVE, AllocSlots(first(0, 0))], answers(Slots((0, 1))), "C5"),
    ([*FIVE, AllocSlots(first(0))], REFUSED, "C5"),
    ([*FIVE, AllocSlots(first(0, 1))], answers(Slots((0, 0))), "C2"),
    ([*FIVE, AllocSlots(first(0, 1))], answers(Slots((0, 3))), "C2"),
    ([*FIVE, AllocSlots(first(0))], size("free_count"), "C2"),
    ([*FIVE, AllocSlots(first(0))], size("pool_avail"), "C1"),
    ([*FULL, AllocSlots(first(2))], answers(Slots((0,))), "C5"),
    ([*FULL, AllocSlots(first(0, 3))], answers(Slots((0, 0))), "C5"),
    ([*FULL, AllocSlots(first(3))], answers(Slots((0,))), "C6"),
    ([*FULL, AllocSlots(first(3))], answers(Slots((2,))), "C6"),
    ([*FULL, AllocSlots(first(3))], answers(Slots((7,))), "C2"),
    ([*FULL, EvictSlots(1), AllocSlots(first(3))], answers(Slots((1,))), "C2"),
    ([*FULL, AllocSlots(first(3, 4, 1))], answers(Slots((0, 2, 1))), "C5"),
    ([*FULL, AllocSlots(first(3, 4, 1))], size("free_count"), "C5"),
    ([*FIVE, AllocSlots(number(7))], answers(Slots((0,))), "C6"),
    ([*FIVE, AllocSlots(number(7))], size("free_count"), "X1"),
    ([*FIVE, AllocSlots(number(8))], answers(Slots((0,))), "C6"),
    # Slots for a caller.
    ([*FULL, EvictSlots(1)], answers(Slots((0,))), "C6"),
    ([*FULL, EvictSlots(1)], answers(Slots((2,))), "C6"),
    ([*FULL, EvictSlots(1)], answers(Slots((1, 0))), "C6"),
    ([*FULL, EvictSlots(1)], REFUSED, "C6"),
    ([*FULL, EvictSlots(1)], size("free_count"), "C2"),
    ([*FULL, EvictSlots(3)], answers(Slots((1, 0, 2))), "C6"),
    ([*FULL, EvictSlots(3)], answers(Failed("RuntimeError")), "C6"),
    # What is found.
    ([*FULL, FindSlots(first(0, 3))], answers(FoundSlots((0, 3), (True, False))), "C2"),
    ([*FULL, FindSlots(first(0))], answers(FoundSlots((0,), (False,))), "C2"),
    ([*FULL, FindSlots(first(0))], size("free_count"), "C2"),
    ([*FULL, FindSlots(first(0))], size("pool_avail"), "C1"),
    ([*FULL, EvictSlots(3), FindSlots(first(0))], answers(FoundSlots((-1,), (False,))), "C6"),
    ([*FULL, FindSlots(number(-1))], answers(FoundSlots((0,), (True,))), "X1"),
    # What is known, and the end.
    ([*FULL, NameStates(first(2), (33,))], answers(Failed("UsageError")), "C4"),
    ([*FULL, NameStates(first(2), (34,))], answers(Done()), "C4"),
    ([*FULL, NameStates(first(3), (44,))], answers(Done()), "C4"),
    ([*FULL, NameStates(first(2), ())], answers(Done()), "C4"),
    ([*FULL, NameStates(number(9), (0,))], answers(Done()), "C4"),
    ([*FULL, DropStates(first(2))], answers(Failed("UsageError")), "C4"),
    ([*FULL, DropStates(first(2))], size("free_count"), "C4"),
    ([*FULL, DropStates(first(2), "one by one")], size("evictable_blocks"), "C1"),
    ([*FULL, DropStates(number(9), "deregistered")], answers(Done()), "X1"),
    ([*FULL, DropStates(number(-1), "one by one")], answers(Done()), "X1"),
    # A block that goes takes its slot with it.
    ([AllocBlocks(1), AllocSlots(first(0)), ReleaseBlocks(first(0))], size("free_count"), "C6"),
    (
        [AllocBlocks(1), AllocSlots(first(0)), ReleaseBlocks(first(0))],
        lambda outcome: dataclasses.replace(outcome, effects=()),
        "C6",
    ),
    (
        [*FULL, EvictSlots(9)],
        lambda outcome: dataclasses.replace(outcome, effects=(Effect("callback", (0,)),)),
        "C6",
    ),
]


@pytest.mark.parametrize(("program", "spoil", "law"), WRONG)
def test_a_wrong_outcome_breaks_its_law(
    law_broken_by: Callable[..., str | None], program: list[Operation], spoil: Spoiler, law: str
) -> None:
    """Each check of the judge can fail, by the law that it is about."""
    assert law_broken_by(program, spoil) == law


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([EvictSlots(-1)], "use Malformed"),
        ([*FIVE, DropStates(first(0), "at once")], "must be one of one by one, batch"),
        ([*FIVE, DropStates((*first(0), *number(9)), "one by one")], "dropped first"),
    ],
)
def test_what_the_contract_leaves_open_is_no_program(operations: list[Operation], says: str) -> None:
    """X1: a caller's breach is not judged."""
    with pytest.raises(ProgramError, match=says):
        run_program("blocks", dict(Blocks.CONFIGURATIONS[0]), operations)


@pytest.mark.parametrize("operation", [AllocSlots(()), DropStates(()), EvictSlots(0)])
def test_slots_are_not_asked_for_where_there_are_none(
    law_broken_by: Callable[..., str | None], operation: Operation
) -> None:
    """C2: an adapter that claims none and answers all the same is no better than its program."""
    with pytest.raises(ProgramError, match="cached states are not claimed"):
        law_broken_by([operation], answers(Done()), slots=None)
