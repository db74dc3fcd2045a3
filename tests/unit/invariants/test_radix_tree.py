"""The walk that the checks of all prefix caches share, on a bare tree; with a cache, see their own tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants.radix_cache import (
    check_distinct,
    check_leaf_order,
    check_order,
    check_slots,
    check_structure,
)
from pymllm.mem_cache import MambaTreeNode, RadixKey, TokenToKVPoolAllocator, TreeNode
from pymllm.mem_cache.radix_tree import PagedKey, RadixTree
from pymllm.mem_cache.victim_order import VictimOrder

Tree = RadixTree[Any]


@pytest.fixture(params=[TreeNode, MambaTreeNode], ids=["plain", "mamba"])
def tree(request: pytest.FixtureRequest) -> Tree:
    """A trunk of two tokens with two leaves of one token each, all of different accesses."""
    made: Tree = RadixTree(request.param, 1, torch.device("cpu"))
    made.tick()
    trunk = made.make_leaf(made.root, PagedKey.of(RadixKey([1, 2]), 1), torch.tensor([10, 11]))
    made.append(trunk)
    for token in (3, 4):
        made.tick()
        leaf = made.make_leaf(trunk, PagedKey.of(RadixKey([1, 2, token]), 1), torch.tensor([10 + token]))
        made.append(leaf)
        made.victims.place(leaf)
    trunk.last_access_time = made.clock
    return made


def trunk_of(tree: Tree) -> Any:
    return next(iter(tree.root.children.values()))


def leaves_of(tree: Tree) -> list[Any]:
    return list(trunk_of(tree).children.values())


def broken_law(check: Callable[[], object]) -> str:
    with pytest.raises(InvariantViolation) as caught:
        check()
    return caught.value.law


def test_structure_lists_parents_before_children(tree: Tree) -> None:
    """R9: every node but the root, so that a reversed walk meets children first."""
    assert check_structure(tree) == [trunk_of(tree), *leaves_of(tree)]


def test_empty_tree_passes() -> None:
    """R9: a root alone is a tree."""
    tree: Tree = RadixTree(TreeNode, 4, torch.device("cpu"))
    assert check_structure(tree) == []
    check_leaf_order(tree, [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("_length", 0),
        ("_length", 2),
        ("_depth", 4),
        ("_filed_under", b""),
        ("_raw", b"\0" * 4),
        ("key", RadixKey([])),
        ("page_size", 2),
    ],
)
def test_edge_that_contradicts_itself_is_reported(tree: Tree, field: str, value: Any) -> None:
    """R9: length, depth, place, key and pages of an edge each have to agree with the others."""
    check_structure(tree)
    setattr(tree if field == "page_size" else leaves_of(tree)[0], field, value)
    assert broken_law(lambda: check_structure(tree)) == "R9"


def test_order_is_compared_with_its_members_and_with_a_scan(tree: Tree) -> None:
    """R5, M5: too few, another one, or a wrong oldest."""
    first, second = leaves_of(tree)
    for leaf in (first, second):
        tree.victims.leaves.discard(leaf)
    order: VictimOrder[Any] = VictimOrder()
    order.add(second)
    check_order("M5", "states", order, [second])
    assert broken_law(lambda: check_order("M5", "states", order, [first, second])) == "M5"
    assert broken_law(lambda: check_order("M5", "states", order, [first])) == "M5"
    order.add(first)
    check_order("M5", "states", order, [second, first])
    order._late.at.clear()
    assert broken_law(lambda: check_order("M5", "states", order, [second, first])) == "M5"
    order.discard(second)
    order.add(second)
    order._size += 1
    assert broken_law(lambda: check_order("M5", "states", order, [second, first])) == "M5"


def test_slots_are_compared_with_the_pool() -> None:
    """R1, R9: padding, a slot twice, a broken page, and a slot that is free."""
    pool = TokenToKVPoolAllocator(8, "cpu", 2, True)
    taken = pool.alloc(4)
    assert taken is not None
    assert check_slots(pool, 2, taken).tolist() == taken.tolist()
    wrong = {"R9": ([1, 2], [2, 2], [6, 7]), "R1": ([3, 2], [2, 4])}
    for law, cases in wrong.items():
        for slots in cases:
            assert broken_law(lambda slots=slots: check_slots(pool, 2, torch.tensor(slots))) == law


def test_numbers_stand_once() -> None:
    """R9, A7: the numbers that repeat are named; none is no repetition."""
    check_distinct("A7", "half", np.array([], dtype=np.int64))
    check_distinct("A7", "half", np.array([3, 1, 2]))
    with pytest.raises(InvariantViolation, match=r"A7: halfs \[1, 3\] stand"):
        check_distinct("A7", "half", np.array([3, 1, 2, 1, 3]))
