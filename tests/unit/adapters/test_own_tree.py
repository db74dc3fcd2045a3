"""What the adapters of all trees of ours share."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.own_caches import Mamba, OwnTree, Radix
from pymllm.errors import InvariantViolation
from pymllm.history.operations import (
    Evict,
    Hash,
    Insert,
    Inspect,
    Key,
    Lock,
    Malformed,
    Match,
    Reset,
    Span,
    Unlock,
)
from pymllm.history.outcomes import Done, Hashes, Inspected, Locked, Unsupported

CONFIG = {"page_size": 2, "window": None, "pool": "none", "slots": 8, "swa_slots": 8, "track_slots": 3}

each_tree = pytest.mark.parametrize("kind", [Radix, Mamba])


def fill(kind: type[OwnTree]) -> OwnTree:
    """Cache one key of two pages; the step is 1."""
    made = kind("tree", CONFIG)
    made.apply(1, Insert(Key((7,) * 4), (Span(0, 10, 14),)))
    return made


@each_tree
def test_a_node_of_another_cache_is_one_of_the_same_class(kind: type[OwnTree]) -> None:
    """X1: it is refused because it is elsewhere, and for nothing else."""
    made = kind("tree", CONFIG)
    assert type(made.foreign_node) is type(made.cache.root_node)
    assert type(made.build(2)) is type(made.cache)
    refused = made.apply(1, Malformed("lock", "a node of another cache"))
    assert refused.result.error == "StaleNodeError"


@each_tree
def test_holds_are_known_until_they_are_released(kind: type[OwnTree]) -> None:
    """R6: the last one that is outstanding, and none after a reset."""
    made = fill(kind)
    assert isinstance(made.apply(2, Malformed("unlock", "a bool for a token")).result, Unsupported)
    assert made.apply(3, Lock(1)).result == Locked()
    assert made.some_held_node() is made.node_of(1)
    assert made.apply(4, Unlock(3)).result == Done()
    made.apply(5, Lock(1))
    made.apply(6, Reset())
    for step, operation in enumerate((Lock(1), Unlock(5), Hash(1)), 7):
        assert made.apply(step, operation).result.error == "StaleNodeError"
    assert isinstance(made.apply(10, Malformed("unlock", "a bool for a token")).result, Unsupported)


@each_tree
def test_roots_have_neither_hashes_nor_holds(kind: type[OwnTree]) -> None:
    """R6: by the node and by None."""
    made = fill(kind)
    made.apply(2, Match(Key((9, 9))))
    assert [made.apply(step, Lock(2)).result for step in (3, 4)] == [Locked(), Locked()]
    assert made.apply(5, Hash(2)).result == Hashes(())


@each_tree
def test_hashes_and_nodes_are_those_of_the_whole_path(kind: type[OwnTree]) -> None:
    """H2, R9: one hash per page, from the root."""
    made = fill(kind)
    made.apply(2, Insert(Key((7, 7)), (Span(0, 10, 12),)))
    hashes: Any = made.apply(3, Hash(1)).result
    assert len(hashes.digests) == 2
    shown = made.apply(4, Inspect()).result
    assert isinstance(shown, Inspected)
    assert [view.slots for view in shown.nodes] == [(10, 11), (12, 13)]
    assert [len(view.page_hashes or ()) for view in shown.nodes] == [1, 1]


@each_tree
def test_what_every_tree_can_is_claimed(kind: type[OwnTree]) -> None:
    """R8, X1, X6: by its class, and what is about slots only over a pool."""
    claimed = kind("tree", CONFIG).capabilities
    assert {"exact_lru", "refusals", "callbacks", "inspect", "hashes"} < claimed
    assert "pool" not in claimed


def test_an_adapter_that_builds_no_other_tree_cannot_be_made() -> None:
    """X1: a forgotten method is an error when the adapter is made, not at the first foreign node."""
    unfinished = type("Unfinished", (OwnTree,), {"make_cache": Radix.make_cache})
    with pytest.raises(TypeError, match=r"abstract method '?build"):
        unfinished("tree", CONFIG)


@each_tree
def test_a_node_that_left_is_looked_at_once(kind: type[OwnTree]) -> None:
    """X5: what was handed out and evicted names no other node; roots of before a reset neither."""
    made = fill(kind)
    made.apply(2, Match(Key((9, 9))))
    assert "X5" not in made.audit()
    node, other = made.node_of(1), made.foreign_node
    made.apply(3, Evict(100))
    node._older = other
    with pytest.raises(
        InvariantViolation, match=rf"X5: node {node.id} has left the tree and keeps node \d+ alive"
    ):
        made.audit()
    assert "X5" not in made.audit()
    made.apply(4, Reset())
    assert "X5" in made.audit()
