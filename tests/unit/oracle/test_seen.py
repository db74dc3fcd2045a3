"""Effects, callbacks and victims that were seen: what is wrong with them breaks its law."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from told_program import HYBRID, ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.operations import Evict, Fault, Inspect
from pymllm.history.outcomes import Effect
from pymllm.oracle.models.prefix_model import Path, Space
from pymllm.oracle.models.prefix_seen import sort_effects, tokens_of

# -- Wrong callbacks of an eviction are refused by the law that they break -----------------------------------


def evicted(*claims_left_out: str, **config: Any) -> tuple[ToldProgram, list[Effect], list[Effect]]:
    """Evict two leaves; return the program, what went before the callbacks, and those."""
    told = ToldProgram(without=claims_left_out, **config)
    told.put(7)
    told.put(8)
    if "inspect" not in claims_left_out:
        told(Inspect())
    effects = told.effects(told(Evict(2)))
    calls = [effect for effect in effects if effect.call != "callback"]
    return told, calls, [effect for effect in effects if effect.call == "callback"]


@pytest.mark.parametrize(
    ("choose", "law"),
    [
        (lambda one, two: (one, two), None),
        (lambda one, two: (two, one), "X2"),
        (lambda one, two: (one,), "R5"),
        (lambda one, two: (one, one), "R5"),
        (lambda one, two: (one, dataclasses.replace(two, node=None)), "R5"),
        (lambda one, two: (one, dataclasses.replace(two, sizes={"total_size": 1})), "X6"),
    ],
)
def test_each_node_is_called_back_once_and_in_order(choose: Any, law: str | None) -> None:
    """R5, X2, X6: on updated trackers."""
    told, calls, callbacks = evicted()
    assert told.law(len(told.steps), effects=(*calls, *choose(*callbacks))) == law


@pytest.mark.parametrize(("at_the_end", "law"), [(1, "R7"), (0, "X6")])
def test_written_books_that_are_wrong_are_no_fault_of_the_order(at_the_end: int, law: str) -> None:
    """R7, X6: what the callback saw is what is told at the end, or it was called too early."""
    told, calls, (one, two) = evicted()
    sizes = {**told.steps[-1].outcome.sizes, "total_size": at_the_end}
    effects = (*calls, one, dataclasses.replace(two, sizes={"total_size": 1}))
    assert told.law(len(told.steps), effects=effects, sizes=sizes) == law


@pytest.mark.parametrize(("count", "law"), [(1, None), (2, None), (0, "R5"), (3, "R5")])
def test_nodes_that_nobody_has_seen_are_counted(count: int, law: str | None) -> None:
    """R5: one at least, and no more than there were pages."""
    told, calls, callbacks = evicted("inspect", "call_order")
    more = [*callbacks, dataclasses.replace(callbacks[0], node=99)]
    assert told.law(len(told.steps), effects=(*calls, *more[:count])) == law


def test_no_id_is_called_back_twice() -> None:
    """X3: ids are never used again, neither in this eviction nor in a later one."""
    told, calls, (one, _) = evicted("inspect", "call_order")
    assert told.law(len(told.steps), effects=(*calls, one, one)) == "X3"
    assert told.law(len(told.steps), effects=(*calls, Effect("callback"))) == "X3"
    told.put(8)
    again = told(Evict(1))
    assert told.law(again, effects=(told.effects(again)[0], one)) == "X3"


def test_without_callbacks_nothing_is_said_of_them() -> None:
    """R5: they are not claimed."""
    told, calls, callbacks = evicted("callbacks", "call_order")
    assert told.law(len(told.steps), effects=(*calls, *callbacks[:1])) is None


@pytest.mark.parametrize(("nth", "count"), [(1, 1), (2, 0)])
def test_a_callback_that_raises_before_others_is_noticed(nth: int, count: int) -> None:
    """X2: they run all the same."""
    told = ToldProgram()
    told.put(7)
    told.put(8)
    told(Fault("callback", nth))
    told(Evict(2))
    evidence = told.sound()
    assert evidence.reached["a callback raises"] == 1
    assert evidence.reached["a callback raises and others follow"] == count


@pytest.mark.parametrize("hybrid", [False, True])
def test_callbacks_that_fail_are_noticed(hybrid: bool) -> None:
    """X2, X6: the error of the first is raised, a call from inside is refused."""
    told = ToldProgram(*(["mamba"] if hybrid else []), **(HYBRID if hybrid else {}))
    for call in ("callback", "reenter"):
        told.put(7)
        told(Fault(call))
        told(Evict(1))
    evidence = told.sound()
    assert evidence.reached["a callback raises"] == evidence.reached["a callback re-enters"] == 1
    removal, callback = told.effects(len(told.steps))
    for note in ("", "ValueError"):
        effects = (removal, dataclasses.replace(callback, note=note))
        assert told.law(len(told.steps), effects=effects) == "X6"


# -- Effects, sorted by what was called ----------------------------------------------------------------------


def test_effects_are_sorted_and_their_order_kept() -> None:
    """X2: what was called, in order, and the slots of all calls together."""
    callback = Effect("callback", node=3)
    effects = (
        Effect("move_swa", (1, 2), (3, 4)),
        Effect("free", (5,)),
        Effect("free", (6,)),
        Effect("free_swa", (7,)),
        Effect("free_state", (8,)),
        callback,
    )
    seen = sort_effects(effects)
    assert seen.names == ["move_swa", "free", "free", "free_swa", "free_state", "callback"]
    assert (seen.freed, seen.halves, seen.moves) == ([5, 6], [7], {1: 3, 2: 4})
    assert (seen.states, seen.callbacks) == ([8], [callback])


@pytest.mark.parametrize("effect", [Effect("fry", (1,)), Effect("move_swa", (1, 2), (3,))])
def test_what_is_no_effect_has_no_meaning(effect: Effect) -> None:
    """X2: an adapter's mistake is not the implementation's."""
    with pytest.raises(ProgramError, match="no effect"):
        sort_effects((effect,))


def test_pages_are_named_in_one_order_whatever_their_tokens_are() -> None:
    """X3: numbers and tuples have no order among each other, and a set has none at all."""
    paths = {Path(Space(), (9,)), Path(Space(), (10,)), Path(Space(width=2), ((1, 2),))}
    assert tokens_of(paths) == [((1, 2),), (10,), (9,)]
