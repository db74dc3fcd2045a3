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
    check_hashes,
    check_leaf_order,
    check_locks,
    check_order,
    check_recency,
    check_sizes,
    check_slots,
    check_structure,
    check_waiting,
    fail,
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


def test_failure_carries_law_and_message() -> None:
    """R9: what is reported can be read by a program and by a person."""
    with pytest.raises(InvariantViolation, match="R9: lost") as caught:
        fail("R9", "lost")
    assert caught.value.law == "R9"


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
    ],
)
def test_edge_that_contradicts_itself_is_reported(tree: Tree, field: str, value: Any) -> None:
    """R9: length, depth, place and key of an edge each have to agree with the others."""
    check_structure(tree)
    setattr(leaves_of(tree)[0], field, value)
    assert broken_law(lambda: check_structure(tree)) == "R9"


def test_page_that_is_not_whole_is_reported(tree: Tree) -> None:
    """R9: a tree of pages of two tokens has no edge of one."""
    tree.page_size = 2
    assert broken_law(lambda: check_structure(tree)) == "R9"


def test_holds_are_counted_from_below(tree: Tree) -> None:
    """R6: a hold at a leaf counts at its trunk, once."""
    tree.hold(leaves_of(tree)[0])
    tree.hold(trunk_of(tree))
    nodes = check_structure(tree)
    check_locks(nodes)
    trunk_of(tree).lock_ref = 1
    assert broken_law(lambda: check_locks(nodes)) == "R6"


def test_recency_of_a_branch_never_exceeds_its_trunk(tree: Tree) -> None:
    """R8: what was used last was reached through its parent."""
    nodes = check_structure(tree)
    check_recency(tree, nodes)
    trunk_of(tree).last_access_time -= 1
    assert broken_law(lambda: check_recency(tree, nodes)) == "R8"


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


def test_node_that_says_it_waits_is_in_an_order(tree: Tree) -> None:
    """R5: a trunk that calls itself a member, which no order has."""
    nodes, orders = check_structure(tree), [tree.victims.leaves]
    check_waiting("R5", nodes, orders)
    trunk_of(tree)._order = tree.victims.leaves
    assert broken_law(lambda: check_waiting("R5", nodes, orders)) == "R5"


def test_leaf_that_may_go_is_in_the_order(tree: Tree) -> None:
    """R5: neither trunks nor held leaves are."""
    tree.hold(leaves_of(tree)[0])
    check_leaf_order(tree, check_structure(tree))
    tree.victims.leaves.discard(leaves_of(tree)[1])
    assert broken_law(lambda: check_leaf_order(tree, check_structure(tree))) == "R5"


def test_size_is_compared_under_the_law_given() -> None:
    """R7, M6: the same comparison serves tokens and states."""

    class Sized:
        def states(self) -> int:
            return 3

    check_sizes(Sized(), {"states": ("M6", 3)})
    assert broken_law(lambda: check_sizes(Sized(), {"states": ("M6", 4)})) == "M6"


def test_hashes_are_one_a_page(tree: Tree) -> None:
    """H2: none at all is fine, since they are computed when asked for."""
    trunk_of(tree).hash_values = ["a", "b"]
    check_hashes(tree, check_structure(tree))
    trunk_of(tree).hash_values = ["a"]
    assert broken_law(lambda: check_hashes(tree, check_structure(tree))) == "H2"


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
