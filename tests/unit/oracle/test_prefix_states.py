"""Tests of states in matches, inserts and resets: each wrong answer is refused by the law that it breaks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from told_program import HYBRID, ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.operations import (
    AllocTrack,
    Evict,
    Fault,
    FreeTrack,
    Key,
    Lock,
    Match,
    ReadStates,
    Reset,
    Span,
    WriteState,
)
from pymllm.history.outcomes import INJECTED, Done, Effect, Failed, Inserted, NoRoom, Slots, States


@pytest.fixture
def told() -> ToldProgram:
    return ToldProgram("mamba", **HYBRID)


def state(*slots: int) -> tuple[Effect, ...]:
    return tuple(Effect("free_state", (slot,)) for slot in slots)


# -- the caller's track slots --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "law"),
    [(Slots((3,)), None), (Slots((2,)), "M7"), (Slots(()), "M7"), (Slots((3, 4)), "M7"), (NoRoom(), "M7")],
)
def test_a_wrong_track_slot_is_refused(told: ToldProgram, result: Any, law: str | None) -> None:
    """M7: one, and nobody's."""
    told(AllocTrack())
    assert told.law(told(AllocTrack()), result=result) == law


@pytest.mark.parametrize(("pool", "law"), [("token", "X4"), ("none", "M7")])
def test_a_track_slot_too_many_is_refused(pool: str, law: str) -> None:
    """X4: and where there is no pool of KV that claims it, M7."""
    told = ToldProgram("mamba", **{**HYBRID, "pool": pool, "track_slots": 1})
    told(AllocTrack())
    assert told.law(told(AllocTrack()), result=Slots((3,))) == law


def test_running_out_is_noticed_and_where(told: ToldProgram) -> None:
    """X4: also when the request has been matched already, and not once it was inserted."""
    told.put_state(7)
    for _ in "123":
        told(AllocTrack())
    told(Match(Key((7, 8))))
    told(AllocTrack())
    told.put(7, 8)
    told(AllocTrack())
    evidence = told.sound()
    assert evidence.reached["track slots run out"] == 3
    assert evidence.reached["track slots run out between match and insert"] == 1


def test_a_freed_track_slot_is_free(told: ToldProgram) -> None:
    """M7: and an error in between is one."""
    slot = told.snapshot()
    freed = told(FreeTrack(slot))
    told(AllocTrack())
    told.sound()
    assert told.law(freed, result=Failed("OwnershipError")) == "M7"
    assert told.law(freed, sizes={"available_track_slots": 2}) == "M7"


def test_what_is_not_the_callers_cannot_be_freed(told: ToldProgram) -> None:
    """M7: that is judged in state pools."""
    told(FreeTrack(Span(0, 2, 3)))
    with pytest.raises(ProgramError, match="caller"):
        told.judged()


@pytest.mark.parametrize(
    "operation",
    [AllocTrack(), FreeTrack(Span(0, 2, 3)), WriteState(0, Span(0, 2, 3), 1, 1), ReadStates(0)],
)
def test_without_states_there_are_no_track_slots(operation: Any) -> None:
    """M7: they have no meaning for a cache that keeps KV only."""
    told = ToldProgram()
    told.steps.append(dataclasses.replace(told.step(told.put(7)), number=9, operation=operation))
    with pytest.raises(ProgramError, match="states are not claimed"):
        told.judged()


# -- what stands in them -------------------------------------------------------------------------------------


def with_contents(told: ToldProgram) -> int:
    """Cache the numbers 5, 6 and hand out 8, 9 as states, in track slots 2 and 3; then read them all."""
    cached = told.snapshot()
    told(WriteState(0, cached, 5, 6))
    told.put(7, state=cached)
    told(WriteState(0, told.snapshot(), 8, 9))
    return told(ReadStates(0))


def states(*recurrent: int, conv: tuple[int, ...]) -> States:
    """Show rows of one element from row 0 on."""
    rows = tuple((number,) for number in recurrent), tuple((number,) for number in conv)
    return States(*rows, (len(recurrent), 1), (len(conv), 1))


@pytest.mark.parametrize(
    ("result", "law"),
    [
        (states(0, 0, 5, 8, conv=(0, 0, 6, 9)), None),
        (states(1, 2, 5, 8, 3, conv=(4, 5, 6, 9, 7)), None),
        (states(0, 0, 8, 8, conv=(0, 0, 6, 9)), "E1"),
        (states(0, 0, 5, 8, conv=(0, 0, 6, 6)), "E1"),
        (states(0, 0, 5, conv=(0, 0, 6, 9)), "E1"),
        (NoRoom(), "E1"),
    ],
)
def test_what_was_written_is_read_in_every_slot_that_is_not_free(
    told: ToldProgram, result: Any, law: str | None
) -> None:
    """E1: whoever has it; what stands in other rows is open."""
    assert told.law(with_contents(told), result=result) == law


def test_a_read_counts_as_a_test_of_every_state(told: ToldProgram) -> None:
    """E1: of nothing where nothing was written."""
    told(ReadStates(0))
    assert told.judged()[0].exercised["E1"] == 0
    with_contents(told)
    told(Evict(0, 1))
    told(ReadStates(0))
    told(ReadStates(0))
    assert told.sound().exercised["E1"] == 2 + 1


def test_a_ramp_is_followed_through_every_element(told: ToldProgram) -> None:
    """E1: in the order of memory; a part without elements has nothing to compare."""
    told(WriteState(0, told.snapshot(), 5, 6, 2))
    read = told(ReadStates(0))
    wide = States(((), (), (5, 7, 9)), ((), (), ()), (3, 3), (3, 0))
    assert told.law(read, result=wide) is None
    assert told.law(read, result=dataclasses.replace(wide, recurrent=((), (), (5, 7, 8)))) == "E1"


def test_only_the_caller_writes_and_may_not_be_refused(told: ToldProgram) -> None:
    """E1, M7: what was handed over is the cache's."""
    written = told(WriteState(0, told.snapshot(), 5, 6))
    assert told.law(written, result=Failed("RuntimeError")) == "E1"
    told.put_state(7)
    told(WriteState(0, Span(0, 3, 4), 5, 6))
    with pytest.raises(ProgramError, match="caller"):
        told.judged()


# -- match ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"state": None}, "M1"),
        ({"state": 3}, "E1"),
        ({"state": 9}, "E1"),
        ({"branching": None}, "M2"),
        ({"branching": 1}, "M2"),
        ({"slots": (1, 2), "prefix_len": 2}, "M2"),
        ({"slots": (), "prefix_len": 0}, "M2"),
    ],
)
def test_a_wrong_match_is_refused(told: ToldProgram, changes: dict[str, Any], law: str) -> None:
    """M1, M2, E1: the longest prefix that ends at a state, that state, and how much KV there is beyond."""
    told.put(7, 7)
    told.put_state(7)
    told.put_state(8)
    matched = told(Match(Key((7, 7))))
    evidence, broken = told.judged()
    assert broken is None
    assert evidence.reached["a match ends at an earlier state"] == 1
    assert told.law(matched, **changes) == law


def test_nothing_can_be_resumed_from_kv_alone(told: ToldProgram) -> None:
    """M2: the whole of it is what a state would save."""
    told.put(7, 7)
    matched = told(Match(Key((7, 7))))
    assert told.sound().reached["KV is found without a state"] == 1
    assert told.law(matched, slots=(1, 2), prefix_len=2) == "M2"
    assert told.law(matched, branching=None) == "M2"


def test_a_match_that_is_shorter_than_the_last_state_is_refused(told: ToldProgram) -> None:
    """R2: nothing is in its way."""
    told.put_state(7)
    assert told.law(told(Match(Key((7,)))), slots=(), prefix_len=0) == "R2"


# -- insert --------------------------------------------------------------------------------------------------


def test_a_state_that_is_there_already_stays_the_callers(told: ToldProgram) -> None:
    """M1, M7: and only where it is itself; who tells otherwise is refused."""
    told.put_state(7)
    again = told.put_state(7)
    below = told.put_state(7, 7)
    told.sound()
    assert told.law(again, state_exists=False) == "M1"
    assert told.law(below, state_exists=True) == "M1"
    assert told.law(again, sizes={"mamba_evictable_size": 2}) == "M6"
    assert told.law(again, sizes={"available_track_slots": 2}) == "M7"
    assert told.law(again, effects=state(3)) == "M7"


def test_kv_alone_brings_no_state(told: ToldProgram) -> None:
    """M1: nothing exists, whatever is there."""
    told.put_state(7)
    assert told.law(told.put(7), state_exists=True) == "M1"


@pytest.mark.parametrize(("tokens", "page_size"), [((), 1), ((7,), 2), ((7, 7, 7), 2)])
def test_a_state_without_a_whole_key_is_refused(tokens: tuple[int, ...], page_size: int) -> None:
    """M1: nothing happens."""
    told = ToldProgram("mamba", **{**HYBRID, "page_size": page_size})
    inserted = told.put_state(*tokens)
    assert told.sound().reached["a state without a whole key is refused"] == 1
    assert told.outcome(inserted).result.error == "ValueError"
    assert told.law(inserted, result=Inserted(0, ())) == "M1"


@pytest.mark.parametrize("span", [Span(0, 2, 3), Span(0, 3, 4), Span(0, 2, 2)])
def test_a_state_that_is_not_the_callers_has_no_meaning(told: ToldProgram, span: Span) -> None:
    """M7: the tree's own included."""
    told.put_state(7)
    last = told.step(told.put(8))
    told.steps[-1] = dataclasses.replace(last, operation=dataclasses.replace(last.operation, state=span))
    with pytest.raises(ProgramError, match="caller"):
        told.judged()


def test_a_state_has_no_meaning_without_states() -> None:
    """M1: a cache that keeps KV only would ignore it."""
    told = ToldProgram("mamba", without=("mamba", "lru_lists"), **HYBRID)
    told.put(7, state=Span(0, 2, 3))
    with pytest.raises(ProgramError, match="states are not claimed"):
        told.judged()


# -- reset ---------------------------------------------------------------------------------------------------


def two_states(told: ToldProgram) -> ToldProgram:
    """Cache (7,) and (8,) in slots 1 and 2, with states in track slots 2 and 3, the second held."""
    told.put_state(7)
    told(Lock(told.put_state(8)))
    return told


KV = Effect("free", (1, 2))


@pytest.mark.parametrize(
    ("effects", "law"),
    [
        ((*state(3, 2), KV), None),
        ((*state(2), KV), "X7"),
        ((*state(2, 3, 3), KV), "M7"),
        ((*state(2, 3, 4), KV), "M7"),
        (state(2, 3), "X7"),
    ],
)
def test_a_reset_returns_every_state_once(
    told: ToldProgram, effects: tuple[Effect, ...], law: str | None
) -> None:
    """X7, M7: whatever is held."""
    done = two_states(told)(Reset())
    assert told.law(done, effects=effects) == law
    assert told.judged()[0].reached["a reset with states held"] == 1


@pytest.mark.parametrize(
    ("effects", "left", "law"),
    [
        ((*state(3), KV), 1, None),
        ((*state(2), KV), 1, None),
        ((KV,), 2, "X7"),
        (state(2), 1, "X7"),
    ],
)
def test_a_refused_reset_asks_for_everything_else(
    told: ToldProgram, effects: tuple[Effect, ...], left: int, law: str | None
) -> None:
    """X7: what one call did not take is the caller's."""
    two_states(told)(Fault("free_state"))
    done = told(Reset())
    assert told.outcome(done).result == Failed(INJECTED)
    sizes = {"available_track_slots": 3 - left}
    assert told.law(done, effects=effects, sizes=sizes) == law
    assert told.judged()[0].reached["the state pool refuses a reset"] == 1
    assert told.law(done, result=Done()) == "X7"
