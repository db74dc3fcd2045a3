"""Each node waits in the order where it belongs, and in no other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pymllm.mem_cache.victim_order import VictimOrder
from pymllm.mem_cache.victims import InnerVictims, Victims


@dataclass(eq=False)
class Node:
    """A node as far as its eviction is concerned; it has something to lose while ``keeps``."""

    last_access_time: float
    _depth: int
    keeps: bool = True
    lock_ref: int = 0
    children: dict[Any, Any] = field(default_factory=dict)
    _order: VictimOrder[Any] | None = None
    _older: Any = None
    _younger: Any = None


class Keepers(InnerVictims[Node]):
    """Inner nodes that keep something may lose it, whatever is held below."""

    def order_of(self, node: Node) -> VictimOrder[Node] | None:
        if node.children:
            return self.inner if node.keeps else None
        return super().order_of(node)


def make_path(victims: Victims[Node], length: int, number: float) -> list[Node]:
    """A path of nodes of one access, each but the last with the next one as its child."""
    path = [Node(number, depth) for depth in range(1, length + 1)]
    for node, child in pairwise(path):
        node.children = {"child": child}
    for node in path:
        victims.place(node)
    return path


def use(victims: Victims[Node], path: list[Node], number: float) -> None:
    """Touch a path, and stamp it as the caller has to."""
    victims.touch(path)
    for node in path:
        node.last_access_time = number


def recencies(nodes: Iterable[Node]) -> list[tuple[float, int]]:
    return [(node.last_access_time, node._depth) for node in nodes]


def test_only_unlocked_leaves_wait_in_a_plain_tree() -> None:
    """R5: inner nodes, and what is held, are no victims."""
    victims: Victims[Node] = Victims()
    inner, leaf = make_path(victims, 2, 1.0)
    assert (inner._order, leaf._order) == (None, victims.leaves)
    leaf.lock_ref = 1
    victims.place(leaf)
    assert leaf._order is None
    assert victims.oldest_leaf() is None
    leaf.lock_ref = 0
    victims.place(leaf)
    victims.place(leaf)
    assert list(victims.leaves) == [leaf]
    assert victims.oldest_leaf() is leaf


def test_parent_waits_as_a_leaf_before_its_last_child_is_gone() -> None:
    """R5, X2: a plan looks at the tree as it will be."""
    victims = Keepers()
    inner, leaf = make_path(victims, 2, 1.0)
    victims.leaves.discard(leaf)
    victims.promote(inner)
    assert (list(victims.leaves), list(victims.inner)) == ([inner], [])
    victims.place(inner)
    assert (list(victims.leaves), list(victims.inner)) == ([], [inner])


def test_held_path_is_touched_without_a_place() -> None:
    """R8: what waits nowhere is stamped and that is all."""
    for victims in (Victims[Node](), Keepers()):
        held = Node(1.0, 4, lock_ref=1)
        use(victims, [held], 2.0)
        assert held._order is None


def test_oldest_of_all_is_a_leaf_or_an_inner_node() -> None:
    """S3, M5: whichever was used longer ago; of one access, what is shallower."""
    victims = Keepers()
    assert victims.oldest_of_all() is None
    inner, leaf = make_path(victims, 2, 3.0)
    assert victims.oldest_of_all() is inner
    (lone,) = make_path(victims, 1, 2.0)
    assert victims.oldest_of_all() is lone
    victims.inner.discard(inner)
    victims.leaves.discard(lone)
    assert victims.oldest_of_all() is leaf


def test_path_is_touched_in_both_orders() -> None:
    """R8: its leaf among the leaves, its inner nodes among the inner ones, and others keep their places."""
    victims = Keepers()
    path, other = make_path(victims, 4, 1.0), make_path(victims, 3, 2.0)
    path[1].keeps = False
    victims.place(path[1])
    use(victims, path, 3.0)
    assert recencies(victims.leaves) == [(2.0, 3), (3.0, 4)]
    assert recencies(victims.inner) == [(2.0, 1), (2.0, 2), (3.0, 1), (3.0, 3)]
    use(victims, other[:2], 4.0)
    assert recencies(victims.leaves) == [(2.0, 3), (3.0, 4)]
    assert recencies(victims.inner) == [(3.0, 1), (3.0, 3), (4.0, 1), (4.0, 2)]


def test_ends_of_a_path_need_not_wait() -> None:
    """R8: nodes without anything to lose are passed over at either end, and in between."""
    victims = Keepers()
    path = make_path(victims, 6, 1.0)
    for node in (path[0], path[3], path[4]):
        node.keeps = False
        victims.place(node)
    make_path(victims, 2, 2.0)
    use(victims, path[:5], 3.0)
    assert recencies(victims.inner) == [(2.0, 1), (3.0, 2), (3.0, 3)]
    for node in path[1:3]:
        node.keeps = False
        victims.place(node)
    use(victims, path[:5], 4.0)
    assert recencies(victims.inner) == [(2.0, 1)]
    assert recencies(victims.leaves) == [(1.0, 6), (2.0, 2)]


def test_cleared_victims_are_none() -> None:
    """X7: an emptied tree has nobody to evict."""
    victims = Keepers()
    make_path(victims, 3, 1.0)
    victims.clear()
    assert (len(victims.leaves), len(victims.inner), victims.oldest_of_all()) == (0, 0, None)
