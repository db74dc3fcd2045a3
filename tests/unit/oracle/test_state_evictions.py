"""Wrong evictions from a hybrid cache are refused by the law that they break."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from told_program import HYBRID, ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.operations import AllocTrack, Evict, Fault, Inspect, Lock
from pymllm.history.outcomes import INJECTED, Effect, Evicted, Failed


def freed(*slots: int) -> Effect:
    return Effect("free", slots)


def state(*slots: int) -> tuple[Effect, ...]:
    return tuple(Effect("free_state", (slot,)) for slot in slots)


def callback(told: ToldProgram, step: int) -> Effect:
    """The first callback of a step."""
    return next(effect for effect in told.effects(step) if effect.call == "callback")


def three_leaves(*without: str, **config: Any) -> ToldProgram:
    """Cache (6, 6), (7,) and (8,) in slots 1 to 4, with states in track slots 2, 3 and 4."""
    told = ToldProgram("mamba", without=without, **{**HYBRID, **config})
    for tokens in ((6, 6), (7,), (8,)):
        told.put_state(*tokens)
    if not without:
        told(Inspect())
    return told


def path_of_three(*without: str, states: tuple[int, ...] = (1, 2, 3), **config: Any) -> ToldProgram:
    """Cache (7, 7, 7) in slots 1 to 3, with states after some of its tokens, in track slots from 2 on."""
    told = ToldProgram("mamba", without=without, **{**HYBRID, **config})
    told.put(7, 7, 7)
    for length in states:
        told.put_state(*(7,) * length)
    if not without:
        told(Inspect())
    return told


@pytest.mark.parametrize(
    ("effects", "result", "law"),
    [
        ((*state(2), freed(1, 2)), Evicted(2, 0, 1), None),
        ((*state(2), freed(1, 2)), Evicted(1, 0, 1), "R5"),
        ((*state(2), freed(1, 2)), Evicted(2, 1, 1), "R5"),
        ((*state(2), freed(1, 2)), Evicted(2, 0, 2), "M6"),
        ((freed(1, 2),), Evicted(2, 0, 0), "M7"),
        ((*state(2, 2), freed(1, 2)), Evicted(2, 0, 2), "M7"),
        ((*state(2, 9), freed(1, 2)), Evicted(2, 0, 2), "M7"),
        ((*state(2, 3), freed(1, 2)), Evicted(2, 0, 2), "M5"),
        ((*state(3), freed(3)), Evicted(1, 0, 1), "R8"),
        ((*state(2, 3), freed(1, 2, 3)), Evicted(3, 0, 2), "R5"),
        ((), Evicted(0, 0, 0), "R5"),
        ((freed(1, 2), *state(2)), Evicted(2, 0, 1), "X2"),
        ((*state(2), freed(1), freed(2)), Evicted(2, 0, 1), "X2"),
        ((*state(2), freed(1, 2), Effect("free_swa", (1,))), Evicted(2, 0, 1), "R4"),
        ((*state(2), freed(1, 2)), Failed("KeyError"), "R5"),
    ],
)
def test_a_wrong_eviction_of_tokens_is_refused(effects: tuple[Effect, ...], result: Any, law: str) -> None:
    """R5, M5 to M7, X2: the least recent leaf with its state, in the order of calls, and no more."""
    told = three_leaves()
    evicted = told(Evict(1))
    called = (callback(told, evicted),) if any(effect.call == "free" for effect in effects) else ()
    assert told.law(evicted, effects=(*effects, *called), result=result) == law


@pytest.mark.parametrize(
    ("effects", "result", "law"),
    [
        (state(2), Evicted(0, 0, 1), None),
        (state(3), Evicted(0, 0, 1), "M5"),
        (state(2, 3), Evicted(0, 0, 2), "M5"),
        ((), Evicted(0, 0, 0), "M5"),
        ((*state(2, 4), freed(3)), Evicted(1, 0, 2), "M5"),
    ],
)
def test_a_wrong_eviction_of_states_is_refused(
    effects: tuple[Effect, ...], result: Evicted, law: str | None
) -> None:
    """M5: the least recent state, its KV stays where there is more below."""
    told = path_of_three()
    evicted = told(Evict(0, 1))
    assert told.law(evicted, effects=effects, result=result) == law


def test_a_refusal_tells_how_many_states_went() -> None:
    """M5: and how many would have been enough."""
    told = path_of_three()
    evicted = told(Evict(0, 1))
    words = told.words(evicted, effects=(), result=Evicted(0, 0, 0))
    assert words == "M5: states evicted: expected >= 1, observed 0"


def test_a_leaf_that_has_no_state_any_more_goes_too() -> None:
    """M5: and not only as far as was asked for."""
    told = path_of_three(states=(3,))
    evicted = told(Evict(0, 1))
    told.sound()
    called = callback(told, evicted)
    changes = {"effects": (*state(2), freed(3), called), "result": Evicted(1, 0, 1)}
    assert told.law(evicted, **changes) == "M5"


def test_less_than_a_state_is_asked_for_where_only_tokens_are_told() -> None:
    """R5: without a pool the result tells how much went."""
    told = three_leaves(pool="none")
    evicted = told(Evict(1))
    told.sound()
    assert told.law(evicted, full=3) == "R5"
    assert told.law(evicted, full=0) == "R5"


def test_a_locked_state_stays() -> None:
    """M4: however old it is."""
    told = three_leaves()
    told(Lock(3))
    evicted = told(Evict(0, 1))
    told.sound()
    assert told.judged()[0].exercised["M4"]
    assert told.law(evicted, effects=state(2), result=Evicted(0, 0, 1)) == "M4"


def test_victims_that_nobody_can_tell_have_no_meaning() -> None:
    """R8: without a pool they follow from the order only."""
    told = three_leaves("exact_lru", pool="none")
    told(Evict(1))
    with pytest.raises(ProgramError, match="exact_lru"):
        told.judged()


# -- an order of its own -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "wanted", "effects", "result", "law"),
    [
        (1, 0, (*state(3), freed(3)), Evicted(1, 0, 1), None),
        (1, 0, (*state(3, 4), freed(3, 4)), Evicted(2, 0, 2), "R5"),
        (0, 1, (*state(3, 4), freed(3, 4)), Evicted(2, 0, 2), "M5"),
        (0, 1, (*state(4), freed(4)), Evicted(1, 0, 1), None),
    ],
)
def test_any_order_will_do_where_none_is_claimed(
    tokens: int, wanted: int, effects: tuple[Effect, ...], result: Evicted, law: str | None
) -> None:
    """R5, M5: but not more than was needed."""
    told = three_leaves("exact_lru", "callbacks", "inspect", "call_order")
    evicted = told(Evict(tokens, wanted))
    sizes = {
        "evictable_size": 4 - result.full,
        "total_size": 4 - result.full,
        "available_size": 8 + result.full,
        "mamba_evictable_size": 3 - result.states,
        "available_track_slots": result.states,
    }
    assert told.law(evicted, effects=effects, result=result, sizes=sizes) == law


@pytest.mark.parametrize(
    ("left_out", "law"),
    [((), "M5"), (("exact_lru",), "M5"), (("state_leaves",), None), (("exact_lru", "state_leaves"), None)],
    ids=str,
)
def test_a_leaf_may_lack_a_state_where_nothing_else_is_claimed(
    left_out: tuple[str, ...], law: str | None
) -> None:
    """M5: the last page goes with its state, and two above it stay, in whatever order."""
    told = path_of_three("callbacks", "inspect", "call_order", *left_out, states=(3,))
    evicted = told(Evict(0, 1))
    available = told.outcome(evicted).sizes["available_size"] - 2
    sizes = {"evictable_size": 2, "total_size": 2, "available_size": available}
    effects = (*state(2), freed(3))
    assert told.law(evicted, effects=effects, result=Evicted(1, 0, 1), sizes=sizes) == law


def test_a_page_that_is_more_than_was_asked_for_is_noticed_without_an_order() -> None:
    """R5: of two tokens one was needed."""
    told = ToldProgram("mamba", without=("exact_lru",), **{**HYBRID, "page_size": 2})
    told.put_state(9, 9)
    told.put_state(8, 8)
    told(Evict(1, 0))
    assert told.sound().reached["an eviction takes more than was asked for"] == 1


# -- calls that fail ---------------------------------------------------------------------------------------

REFUSED = Failed(INJECTED)


def test_what_a_failing_call_did_not_take_is_still_there() -> None:
    """X2: one state is gone, the rest is not."""
    told = three_leaves()
    told(Fault("free_state", 2))
    evicted = told(Evict(9))
    told(Inspect())
    assert told.sound().reached["the state pool refuses an eviction half-way"] == 1
    assert told.effects(evicted) == state(2)


@pytest.mark.parametrize(
    ("fault", "effects", "law"),
    [
        (Fault("free_state", 2), state(2), None),
        (Fault("free_state", 2), state(3), None),
        (Fault("free_state", 2), (), "X2"),
        (Fault("free_state", 2), state(2, 3), "X2"),
        (Fault("free_state", 2), (*state(2), Effect("callback", node=2)), "X2"),
        (Fault("free_state", 2), (*state(2), freed(1, 2)), "X2"),
        (Fault("free_state", 4), state(2, 3, 4), "X2"),
        (Fault("free"), state(2, 3, 4), None),
        (Fault("free"), state(2, 3), "X2"),
        (Fault("free"), (*state(2, 3, 4), freed(1, 2)), "X2"),
    ],
)
def test_an_eviction_stops_at_the_call_that_failed(
    fault: Fault, effects: tuple[Effect, ...], law: str | None
) -> None:
    """X2: states one by one, in whatever order, then one free."""
    told = three_leaves()
    told(fault)
    evicted = told(Evict(9))
    freed_states = sum(effect.call == "free_state" for effect in effects)
    sizes = {
        "evictable_size": 4,
        "total_size": 4,
        "available_size": 8,
        "mamba_evictable_size": 3 - freed_states,
        "available_track_slots": freed_states,
    }
    assert told.law(evicted, effects=effects, result=REFUSED, sizes=sizes) == law


def test_what_was_not_to_be_taken_is_named() -> None:
    """X2: the state of another leaf is gone, and the older one's call failed."""
    told = three_leaves()
    told(Fault("free_state", 2))
    evicted = told(Evict(0, 2))
    sizes = {"mamba_evictable_size": 2, "available_track_slots": 1}
    changed = {"effects": state(4), "result": REFUSED, "sizes": sizes}
    assert told.law(evicted, **changed) == "X2"
    words = told.words(evicted, **changed)
    assert words == "X2: what was taken: expected (6, 6), (7,), observed (8,)"


def test_a_call_that_was_not_to_be_made_did_not_fail() -> None:
    """X2: nothing had to be removed."""
    told = path_of_three()
    told(Fault("free"))
    evicted = told(Evict(0, 1))
    told.sound()
    assert told.law(evicted, result=REFUSED) == "X2"


@pytest.mark.parametrize("left_out", [("call_order",), ("exact_lru", "call_order")])
def test_any_part_may_be_gone_where_no_order_is_claimed(left_out: tuple[str, ...]) -> None:
    """X2: of what was to be taken."""
    told = three_leaves(*left_out, "callbacks", "inspect")
    told(Fault("free_state", 2))
    told(Evict(9))
    told.sound()


def test_a_call_that_was_let_fail_is_told() -> None:
    """X2: an eviction that went well has swallowed an error."""
    told = three_leaves()
    told(Fault("reenter", 9))
    evicted = told(Evict(9))
    for fault, law in ((Fault("free_state", 3), "X2"), (Fault("free"), "X2"), (Fault("free_state", 4), None)):
        told.steps[-2] = dataclasses.replace(told.steps[-2], operation=fault)
        assert told.law(evicted) == law


@pytest.mark.parametrize(
    ("fault", "result", "effects", "law"),
    [
        (Fault("free_state"), Evicted(0), (), "X2"),
        (Fault("free_state", 2), Evicted(4, states=3), (*state(2), freed(1, 2, 3, 4)), "X2"),
        (Fault("free_state", 3), Evicted(4, states=2), (*state(2, 3), freed(1, 2, 3, 4)), "X2"),
        (Fault("free_state", 3), Evicted(4, states=2), (*state(2), freed(1, 2, 3, 4)), "M7"),
        (Fault("free"), Evicted(4, states=3), state(2, 3, 4), "X2"),
        (Fault("free"), Evicted(0, states=3), state(2, 3, 4), "X2"),
        (Fault("free", 2), Evicted(4, states=3), state(2, 3, 4), "R5"),
    ],
)
def test_a_refused_call_that_is_swallowed_is_named_before_its_consequences(
    fault: Fault, result: Evicted, effects: tuple[Effect, ...], law: str
) -> None:
    """X2, and not R5, M5, M6 or M7: what the pools took is less than was told, or had to go."""
    told = three_leaves()
    told(fault)
    assert told.law(told(Evict(9)), result=result, effects=effects) == law


def test_an_eviction_of_nothing_swallows_nothing() -> None:
    """M6: no call had to be made."""
    told = three_leaves()
    told(Fault("free_state"))
    assert told.law(told(Evict(0)), result=Evicted(0, states=1)) == "M6"


def test_a_callback_that_raised_hides_the_result() -> None:
    """X2: what was taken is read off the effects and the sizes."""
    told = three_leaves()
    told(Fault("callback"))
    told(Evict(9))
    told.sound()
    for step in told.steps:
        del told.outcome(step.number).sizes["total_size"]
    told.sound()


def test_everything_that_is_locked_stays() -> None:
    """M4: nothing can be taken, and that is enough."""
    told = ToldProgram("mamba", **HYBRID)
    told(Lock(told.put_state(7)))
    told(Evict(1, 1))
    told(AllocTrack())
    assert told.sound().reached["every state is locked and an eviction is asked for"] == 1
