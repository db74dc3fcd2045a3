"""Nodes and lists that do not show the states there are are refused by the law that they break."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pagewise_states import PagewiseStates
from told_program import HYBRID, ToldProgram

from pymllm.history.operations import Inspect, Lock
from pymllm.history.outcomes import Inspected, NodeView
from pymllm.oracle.laws import find_law, laws_of
from pymllm.oracle.situations import expected_names


@pytest.fixture
def told() -> ToldProgram:
    """Cache (7, 7) with a state in track slot 2, held, and above it (7,) without one; the last step looks."""
    made = ToldProgram("mamba", **HYBRID)
    made(Lock(made.put_state(7, 7)))
    made(Inspect())
    made.put(7)
    made(Inspect())
    return made


def shown(told: ToldProgram, upper: dict[str, Any], lower: dict[str, Any]) -> tuple[NodeView, ...]:
    """Change the two nodes of the last look."""
    inspected = told.outcome(len(told.steps)).result
    assert isinstance(inspected, Inspected)
    return tuple(
        dataclasses.replace(node, **changes)
        for node, changes in zip(inspected.nodes, (upper, lower), strict=True)
    )


@pytest.mark.parametrize(
    ("upper", "lower", "law"),
    [
        ({}, {}, None),
        ({"state": 2}, {}, "M3"),
        ({"state": 2}, {"state": None}, "M3"),
        ({}, {"state": None}, "M1"),
        ({"state": 3}, {}, "M1"),
        ({}, {"state": 3}, "M1"),
        ({"state_lock_ref": 1}, {}, "M4"),
        ({}, {"state_lock_ref": 0}, "M4"),
        ({}, {"state_lock_ref": 2}, "M4"),
        ({"state_lock_ref": None}, {"state_lock_ref": None}, None),
    ],
)
def test_a_wrong_state_is_refused(
    told: ToldProgram, upper: dict[str, Any], lower: dict[str, Any], law: str | None
) -> None:
    """M1, M3, M4: where it is, and what locks it."""
    assert told.law(len(told.steps), nodes=shown(told, upper, lower)) == law


def test_a_split_that_leaves_the_state_is_noticed(told: ToldProgram) -> None:
    """M3: once, at the look after it."""
    told(Inspect())
    evidence, law = told.judged()
    assert law is None
    assert evidence.exercised["M3"] == 1
    assert evidence.reached["a split of a held node leaves its state"] == 1
    assert evidence.exercised["M4"]


def test_a_split_that_nobody_holds_is_no_split_under_a_hold() -> None:
    """M3: it tests the law all the same."""
    made = ToldProgram("mamba", **HYBRID)
    made.put_state(7, 7)
    made(Inspect())
    made.put(7)
    made(Inspect())
    evidence, law = made.judged()
    assert law is None
    assert evidence.exercised["M3"] == 1
    assert evidence.reached["a split of a held node leaves its state"] == 0


def test_who_shows_page_by_page_claims_no_law_of_splits() -> None:
    """M3: our nodes are split behind it, and nobody could see where the state went but by M1."""
    made = ToldProgram("pagewise_states:PagewiseStates", **PagewiseStates.CONFIGURATIONS[0])
    made(Lock(made.put_state(7, 7, 8, 8)))
    made(Inspect())
    made.put(7, 7, 9, 9)
    look = made(Inspect())
    evidence, law = made.judged()
    assert law is None
    assert evidence.exercised["M4"]
    assert not evidence.exercised["M3"]
    inspected = made.outcome(look).result
    assert isinstance(inspected, Inspected)
    assert [len(node.tokens) for node in inspected.nodes] == [2, 2, 2]
    config, claims = made.header.config, made.header.capabilities
    applying = {law.id for law in laws_of("prefix") if law.applies_to(config, claims)}
    assert "M3" not in applying
    assert {"M1", "M2", "M4"} <= applying
    assert "a split of a held node leaves its state" not in expected_names("prefix", config, claims)
    assert find_law("M3").applies_to({**config, "splits": True}, claims)


@pytest.mark.parametrize(
    ("lists", "law"),
    [
        ({"full_lru": None, "mamba_lru": None}, None),
        ({"full_lru": ()}, "M8"),
        ({"mamba_lru": ()}, "M8"),
    ],
)
def test_a_list_lacks_nobody(told: ToldProgram, lists: dict[str, Any], law: str | None) -> None:
    """M8: each has exactly its members."""
    assert told.law(len(told.steps), **lists) == law


def test_a_list_is_in_order(told: ToldProgram) -> None:
    """M8: the most recent first, a parent behind its child of the same access."""
    look = told(Inspect())
    inspected = told.outcome(look).result
    assert isinstance(inspected, Inspected)
    upper, lower = (node.id for node in inspected.nodes)
    assert (inspected.full_lru, inspected.mamba_lru) == ((upper, lower), (lower,))
    assert told.law(look, full_lru=(lower, upper)) == "M8"
    assert told.law(look, full_lru=(upper, lower, upper)) == "M8"


def test_only_lists_of_several_nodes_are_evidence(told: ToldProgram) -> None:
    """M8: one node is in order whatever a cache does; the last look shows two, one of them with a state."""
    evidence, law = told.judged()
    assert (law, evidence.exercised["M8"]) == (None, 1)


def test_a_list_that_is_not_claimed_is_not_judged() -> None:
    """M8: whatever it says."""
    told = ToldProgram("mamba", without=("lru_lists",), **HYBRID)
    told.put(7)
    assert told.law(told(Inspect()), full_lru=()) is None


def test_a_node_ends_where_a_state_is(told: ToldProgram) -> None:
    """M1: the state of a place that no node ends at is nowhere."""
    whole = NodeView(9, None, (7, 7), None, (1, 2), lock_ref=1, hit_count=0, state=2, state_lock_ref=1)
    other = ToldProgram("mamba", without=("lru_lists",), **HYBRID)
    other.put(7, 7)
    other.put_state(7)
    look = other(Inspect())
    law = other.law(look, nodes=(dataclasses.replace(whole, id=1, state=None, lock_ref=0, state_lock_ref=0),))
    assert law == "M1"
