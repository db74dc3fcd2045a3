"""The caller's own calls to the pool under a prefix cache."""

from __future__ import annotations

from typing import Any

import pytest
from told_program import ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.files import Step
from pymllm.history.operations import (
    Alloc,
    Evict,
    Free,
    FreeSWA,
    Key,
    Match,
    MoveSWA,
    Operation,
    ReadHalves,
    Span,
)
from pymllm.history.outcomes import Done, Failed, NoRoom, Outcome, Slots


def windowed(**config: Any) -> ToldProgram:
    return ToldProgram("radix-window", **{"window": 2, **config})


@pytest.mark.parametrize(
    ("slots", "swa_slots", "law"),
    [
        ((0, 1), (3, 4), "A1"),
        ((12, 13), (3, 4), "A1"),
        ((1, 3), (3, 4), "A2"),
        ((3, 3), (3, 4), "A3"),
        ((3,), (3,), "A3"),
        ((3, 4), (1, 4), "A7"),
        ((3, 4), (4, 4), "A7"),
        ((3, 4), (), "A7"),
    ],
)
def test_a_wrong_allocation_is_refused(slots: tuple[int, ...], swa_slots: tuple[int, ...], law: str) -> None:
    """A1, A2, A3, A7: distinct free slots, none of page 0, each with an SWA slot of its own."""
    told = windowed()
    told.put(7, 7)
    given = told(Alloc(2))
    assert told.law(given) is None
    assert told.law(given, result=Slots(slots, swa_slots)) == law


def test_halves_that_nobody_claims_must_be_told_all_the_same() -> None:
    """A2: where not, the pool cannot be followed, and nobody is accused of anything."""
    told = ToldProgram()
    given = told(Alloc(2))
    with pytest.raises(ProgramError, match="1 SWA slots for 2 slots: without them"):
        told.law(given, swa_slots=(1,))


def test_an_allocation_is_whole_pages_in_order() -> None:
    """A3: the rest of the last page is the caller's, too."""
    told = windowed(page_size=2)
    given = told(Alloc(3))
    told(Free((Span(given, 0, 3),)))
    assert told.judged()[1] is None
    assert told.law(given, result=Slots((3, 4, 5), (2, 3, 4))) == "A3"


def test_an_allocation_succeeds_where_there_is_room_and_only_there() -> None:
    """A3, X4: and one that fails changes nothing."""
    told = windowed()
    given, failed = told(Alloc(12)), told(Alloc(1))
    evidence, law = told.judged()
    assert law is None
    assert evidence.reached["memory runs out"] == 1
    assert told.law(given, result=NoRoom()) == "A3"
    assert told.law(failed, result=Slots((1,), (1,))) == "X4"
    assert told.law(failed, sizes={"available_size": 1}) == "X4"


def test_what_the_caller_gives_back_is_free() -> None:
    """A2, A7: the pool takes it."""
    told = windowed()
    given = told(Alloc(4))
    spans = (Span(given, 0, 2),)
    halves = told(FreeSWA(spans))
    moved = told(MoveSWA((Span(given, 2, 4),), spans))
    freed = told(Free((Span(given, 0, 4),)))
    assert told.judged()[1] is None
    laws = [told.law(number, result=Failed("KeyError")) for number in (halves, moved, freed)]
    assert laws == ["A7", "A7", "A2"]
    assert told.law(halves, sizes={"swa_available_size": 8}) == "A7"
    assert told.law(freed, sizes={"full_available_size": 8}) == "A2"


def test_halves_are_followed_where_they_are_not_claimed() -> None:
    """A2: a cache without a window may be over a pool with SWA halves."""
    told = ToldProgram()
    given = told(Alloc(2))
    halves = told(FreeSWA((Span(given, 0, 1),)))
    told(Free((Span(given, 0, 2),)))
    assert told.judged()[1] is None
    assert told.law(halves, result=Failed("KeyError")) == "A2"


def test_halves_can_be_read() -> None:
    """S2, A7: those of the tree's slots are there exactly where it is alive."""
    told = windowed(page_size=2, slots=16, swa_slots=16)
    told.put(7, 7, 7, 7)
    given = told(Alloc(2))
    for tokens in ((7, 7), (7, 7, 7, 7)):
        told(Match(Key(tokens)))
    told(Evict(0, 2))
    read = told(ReadHalves((Span(1, 0, 4), Span(given, 0, 2))))
    evidence, law = told.judged()
    assert law is None
    assert evidence.exercised["S2"] == 2
    seen = told.outcome(read).result.swa_slots  # type: ignore[union-attr]
    assert [bool(half) for half in seen] == [False, False, True, True, True, True]
    assert told.law(read, swa_slots=(9, *seen[1:])) == "S2"
    assert told.law(read, swa_slots=(*seen[:5], 9)) == "A7"
    assert told.law(read, swa_slots=seen[:5]) == "A7"
    assert told.law(read, result=Done()) == "A7"


@pytest.mark.parametrize(
    "operation",
    [
        Free((Span(1, 0, 1),)),
        Free((Span(0, 0, 1),)),
        Free((Span(0, 9, 10),)),
        Free((Span(3, 0, 1), Span(3, 0, 1))),
        FreeSWA((Span(3, 0, 1),)),
        MoveSWA((Span(3, 1, 2),), (Span(3, 2, 3),)),
        MoveSWA((Span(3, 1, 3),), (Span(3, 0, 1),)),
        Alloc(-1),
    ],
)
def test_misuse_of_the_pool_has_no_meaning_here(operation: Operation) -> None:
    """A5, A7: it is judged in slot allocators."""
    told = windowed()
    told.put(7)
    given = told(Alloc(3))
    told(FreeSWA((Span(given, 0, 1),)))
    told.steps.append(Step(9, operation, Outcome(Done())))
    with pytest.raises(ProgramError, match=r"slot|sources"):
        told.judged()


@pytest.mark.parametrize("operation", [Alloc(1), Free((Span(0, 1, 2),)), ReadHalves((Span(0, 1, 2),))])
def test_there_may_be_no_pool(operation: Operation) -> None:
    """A2: or one without halves."""
    told = ToldProgram(pool="none")
    told.steps.append(Step(1, operation, Outcome(Done())))
    with pytest.raises(ProgramError, match="pool"):
        told.judged()


def test_a_refusal_names_the_call() -> None:
    """A2, A7: with its slots, or what there should be as many of."""
    told = windowed(pool="swa")
    given = told(Alloc(2))
    read = told(ReadHalves((Span(given, 0, 2),)))
    halves = told.outcome(read).result
    assert isinstance(halves, Slots)
    more = Slots((), (*halves.swa_slots, 0))
    assert told.words(read, result=more) == "A7: number of halves: expected 2, observed 3"
    freed = told(Free((Span(given, 0, 2),)))
    assert told.words(freed, result=Failed("ValueError")).startswith("A2: free([1, 2]): ")
