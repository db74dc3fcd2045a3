"""Tests of outcomes that are compared only with an adapter that claims their subject."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from told_program import HYBRID, ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.operations import Evict, Hash, Insert, Inspect, Key, Lock, Match, Unlock
from pymllm.history.outcomes import Effect, Evicted, Hashes, Inspected
from pymllm.oracle.judge import judge_steps


def looked_at(told: ToldProgram, **changes: Any) -> tuple[int, Inspected]:
    """Look at one node; return the step, and what it would be with some fields changed."""
    told.put(7, 7)
    step = told(Inspect())
    result = told.outcome(step).result
    assert isinstance(result, Inspected)
    return step, dataclasses.replace(result, nodes=(dataclasses.replace(result.nodes[0], **changes),))


@pytest.mark.parametrize(
    ("claim", "changes", "law"),
    [("hit_counts", {"hit_count": 5}, "R10"), ("node_ids", {"id": -5}, "X3")],
    ids=["hits", "ids"],
)
def test_what_nodes_show_is_compared_by_claim(claim: str, changes: dict[str, Any], law: str) -> None:
    """R10, X3: a node that was used five times, and one that is numbered downwards."""
    for without, expected in (((), law), ((claim,), None)):
        told = ToldProgram(without=without)
        step, shown = looked_at(told, **changes)
        assert told.law(step, result=shown) == expected


def test_hits_that_are_not_compared_hide_nothing() -> None:
    """R6: the locks of a node are wrong, and the hits of the one before it are of another sort."""
    told = ToldProgram(without=("hit_counts",))
    told.put(8)
    step, shown = looked_at(told)
    result = told.outcome(step).result
    assert isinstance(result, Inspected)
    one, other = result.nodes
    nodes = (dataclasses.replace(one, hit_count=5), dataclasses.replace(other, lock_ref=3))
    assert told.law(step, result=dataclasses.replace(shown, nodes=nodes)) == "R6"


def test_a_token_of_a_hold_is_compared_by_claim() -> None:
    """S5: a window ends inside the path, and no token names its edge; nothing else tests that law."""
    for without, expected in (((), "S5"), (("hold_tokens",), None)):
        told = ToldProgram("radix-window", window=2, without=without)
        held = told(Lock(told.put(7, 7, 7, 7)))
        assert told.law(held, token=None) == expected
        told(Unlock(held))
        told(Inspect())
        assert ("S5" in told.sound().left_out) is bool(without)


def test_a_match_tells_where_kv_goes_on_by_claim() -> None:
    """M2: KV of two tokens, and a state after one."""
    for without, expected in (((), "M2"), (("branching",), None)):
        told = ToldProgram("mamba", without=without, **HYBRID)
        told.put_state(7)
        told.put(7, 7)
        assert told.law(told(Match(Key((7, 7)))), branching=None) == expected


def test_a_state_that_nobody_passed_exists_by_claim() -> None:
    """M1: the empty key, of which an adapter says that there is a state."""
    for without, expected in (((), "M1"), (("bare_inserts",), None)):
        told = ToldProgram("mamba", without=without, **HYBRID)
        assert told.law(told(Insert(Key(()), ())), state_exists=True) == expected


def test_a_hold_without_a_state_has_no_meaning_but_by_claim() -> None:
    """M4, R6: who does not claim it is not asked."""
    told = ToldProgram("mamba", without=("bare_holds",), **HYBRID)
    told(Lock(told.put(7)))
    with pytest.raises(ProgramError, match="bare_holds is not claimed"):
        judge_steps(told.header, told.steps)


def test_a_bare_leaf_goes_or_stays_without_its_claim_and_more_is_too_much() -> None:
    """M5: three tokens with one state at the end; one more leaf is not needed."""
    told = ToldProgram("mamba", without=("state_leaves", "inspect", "callbacks", "call_order"), **HYBRID)
    told.put_state(7, 7, 7)
    told.put_state(8)
    step = told(Evict(1))
    for gone, law in (((3,), None), ((2, 3), None), ((1, 2, 3), None), ((1, 2, 3, 4), "R5")):
        effects = (Effect("free_state", (2,)), Effect("free", gone))
        states = 1 if gone[-1] < 4 else 2
        effects = effects if states == 1 else (Effect("free_state", (3,)), *effects)
        sizes = {"evictable_size": 4 - len(gone), "total_size": 4 - len(gone)}
        sizes |= {"available_size": 8 + len(gone), "mamba_evictable_size": 2 - states}
        sizes["available_track_slots"] = 1 + states
        result = Evicted(len(gone), 0, states)
        assert told.law(step, effects=effects, result=result, sizes=sizes) == law


@pytest.mark.parametrize(
    ("short", "long", "law"),
    [
        (("a",), ("a", "b"), None),
        (("a",), ("c", "b"), "H2"),
        (("a",), ("a", "a"), "H2"),
        (("a",), ("a",), "H2"),
        (("a", "b"), None, "H2"),
        (None, ("a", "a"), "H2"),
        (None, ("b",), "H2"),
        (None, ("a", "b"), None),
    ],
    ids=[
        *("a chain", "another beginning", "one digest for two pages", "too few", "too many"),
        *("in one answer", "too few at once", "a chain at once"),
    ],
)
def test_digests_of_ones_own_chain(
    short: tuple[str, ...] | None, long: tuple[str, ...] | None, law: str | None
) -> None:
    """H2: one page has one digest, and no other page of its namespace has it."""
    told = ToldProgram(without=("digests",), pool="none")
    steps = [told(Hash(told.put(7)))] if short else []
    steps.append(told(Hash(told.put(7, 7))))
    root = told(Hash(told(Match(Key((9,))))))
    told(Inspect())
    changed = []
    for step, digests in zip(steps, filter(None, (short, long or ("a", "b"))), strict=True):
        outcome = dataclasses.replace(told.outcome(step), result=Hashes(digests))
        changed.append(dataclasses.replace(told.step(step), outcome=outcome))
    told.steps = [step for step in told.steps if not isinstance(step.operation, Inspect)]
    assert isinstance(told.outcome(root).result, Hashes)
    _, found = judge_steps(
        told.header, [next((it for it in changed if it.number == step.number), step) for step in told.steps]
    )
    assert (found and found[1].law) == law


def test_hashes_that_nodes_show_are_those_that_were_told() -> None:
    """H2: a node of two pages shows its own."""
    told = ToldProgram(without=("digests",))
    hashed = told(Hash(told.put(7, 7)))
    step = told(Inspect())
    result = told.outcome(step).result
    assert isinstance(result, Inspected)
    assert told.sound().exercised["H2"] == 3
    node = dataclasses.replace(result.nodes[0], page_hashes=("a", "b"))
    assert told.law(step, result=dataclasses.replace(result, nodes=(node,))) == "H2"
    assert isinstance(told.outcome(hashed).result, Hashes)


def test_two_nodes_of_one_look_have_digests_of_their_own() -> None:
    """H2: whether anybody has asked for them before or not."""
    told = ToldProgram(without=("digests",))
    hashed = [told(Hash(told.put(7))), told(Hash(told.put(8)))]
    step = told(Inspect())
    told.steps = [it for it in told.steps if it.number not in hashed]
    result = told.outcome(step).result
    assert isinstance(result, Inspected)
    first = result.nodes[0].page_hashes
    nodes = tuple(dataclasses.replace(node, page_hashes=first) for node in result.nodes)
    assert told.law(step, result=dataclasses.replace(result, nodes=nodes)) == "H2"
    told.sound()
