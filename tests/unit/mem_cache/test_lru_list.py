"""`LRUList` on its own: order, membership and misuse, through both kinds of links."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from pymllm.mem_cache import LRUList, MambaTreeNode


def make_nodes(count: int) -> list[MambaTreeNode]:
    nodes = [MambaTreeNode() for _ in range(count)]
    for number, node in enumerate(nodes):
        node.id = number
    return nodes


def make_chain(count: int) -> list[MambaTreeNode]:
    """Nodes that hang below each other, the first being the root."""
    nodes = make_nodes(count)
    for parent, node in pairwise(nodes):
        node.parent = parent
        parent.children[node.id] = node
    return nodes


def fill(lru: LRUList, nodes: list[MambaTreeNode]) -> None:
    """Insert nodes, the least recent first."""
    for node in nodes:
        lru.insert_mru(node)


def links(lru: LRUList, node: MambaTreeNode) -> tuple[Any, Any]:
    """What a node names as its more and its less recent neighbour."""
    return (node.mamba_prev, node.mamba_next) if lru.mamba else (node.prev, node.next)


def ids(lru: LRUList) -> list[int]:
    """The members by id, most recent first, after a look from both ends and at every neighbour."""
    members = list(lru)
    assert list(reversed(lru)) == members[::-1]
    assert len(lru) == len(members)
    chain = [lru.head, *members, lru.tail]
    for newer, node, older in zip(chain, chain[1:], chain[2:], strict=False):
        assert links(lru, node) == (newer, older)
        assert node in lru
    assert links(lru, lru.head) == (None, chain[1])
    assert links(lru, lru.tail) == (chain[-2], None)
    return [node.id for node in members]


@pytest.fixture(params=[False, True], ids=["full", "mamba"])
def lru(request: pytest.FixtureRequest) -> LRUList:
    return LRUList(mamba=request.param)


def lock(lru: LRUList, node: MambaTreeNode) -> None:
    """Set the lock that the list's mode looks at, and the other one off."""
    node.mamba_lock_ref, node.full_lock_ref = (1, 0) if lru.mamba else (0, 1)


def hold_otherwise(lru: LRUList, node: MambaTreeNode) -> None:
    """Set the lock that the list's mode does not look at."""
    node.mamba_lock_ref, node.full_lock_ref = (0, 1) if lru.mamba else (1, 0)


class TestOrder:
    def test_default_list_links_all_nodes(self) -> None:
        """M8: the mode of states is asked for."""
        assert LRUList().mamba is False
        assert LRUList(True).mamba is True

    def test_empty_list_has_sentinels_only(self, lru: LRUList) -> None:
        """M8: head and tail are no members."""
        assert ids(lru) == []
        assert lru.head is not lru.tail
        assert lru.head not in lru
        assert lru.tail not in lru

    def test_inserted_node_is_the_most_recent(self, lru: LRUList) -> None:
        """M8: the last one in follows the head."""
        fill(lru, make_nodes(3))
        assert ids(lru) == [2, 1, 0]

    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_removed_node_leaves_no_trace(self, lru: LRUList, number: int) -> None:
        """M8: at either end or between, its neighbours close up and it may enter again."""
        nodes = make_nodes(3)
        fill(lru, nodes)
        lru.remove(nodes[number])
        assert links(lru, nodes[number]) == (None, None)
        assert nodes[number] not in lru
        assert ids(lru) == [kept for kept in (2, 1, 0) if kept != number]
        lru.insert_mru(nodes[number])
        assert ids(lru)[0] == number

    @pytest.mark.parametrize(("number", "order"), [(0, [0, 2, 1]), (1, [1, 2, 0]), (2, [2, 1, 0])])
    def test_touched_node_becomes_the_most_recent(self, lru: LRUList, number: int, order: list[int]) -> None:
        """M8: the others keep their order."""
        nodes = make_nodes(3)
        fill(lru, nodes)
        lru.touch_mru(nodes[number])
        assert ids(lru) == order

    def test_cleared_list_lets_its_members_go(self, lru: LRUList) -> None:
        """X7: what was a member names no neighbour, and the list serves again."""
        nodes = make_nodes(3)
        fill(lru, nodes)
        lru.clear()
        assert ids(lru) == []
        assert [links(lru, node) for node in nodes] == [(None, None)] * 3
        fill(lru, nodes)
        assert ids(lru) == [2, 1, 0]

    def test_node_may_be_in_one_list_of_each_mode(self) -> None:
        """M8: full_lru and mamba_lru share their nodes and nothing else."""
        full, mamba, nodes = LRUList(), LRUList(mamba=True), make_nodes(2)
        fill(full, nodes)
        fill(mamba, nodes[::-1])
        full.remove(nodes[0])
        assert (ids(full), ids(mamba)) == ([1], [0, 1])

    def test_membership_is_by_identity(self, lru: LRUList) -> None:
        """M8: neither a node of the same recency nor something that is no node is a member."""
        one, other = make_nodes(2)
        lru.insert_mru(one)
        assert one in lru
        assert other not in lru
        assert None not in lru
        assert [] not in lru


class TestPaths:
    def test_child_is_more_recent_than_its_parent(self, lru: LRUList) -> None:
        """M8: a whole path moves to the front, its end first."""
        chain = make_chain(4)
        (other,) = make_nodes(1)
        other.id = 9
        fill(lru, [*chain[1:], other])
        lru.touch_node_and_parents_mru(chain[3], chain[0])
        assert ids(lru) == [3, 2, 1, 9]

    def test_touched_path_moves_only_itself(self, lru: LRUList) -> None:
        """M8: the rest keeps its order, whether the path stood together before or not."""
        chain, others = make_chain(4), make_nodes(2)
        others[0].id, others[1].id = 8, 9
        fill(lru, [chain[2], others[0], chain[3], others[1], chain[1]])
        for _ in range(2):
            lru.touch_node_and_parents_mru(chain[2], chain[0])
            assert ids(lru) == [2, 1, 9, 3, 8]

    def test_root_is_not_touched(self, lru: LRUList) -> None:
        """M8: the walk stops before it, member or not."""
        chain = make_chain(3)
        fill(lru, chain)
        lru.touch_node_and_parents_mru(chain[1], chain[0])
        assert ids(lru) == [1, 2, 0]
        lru.touch_node_and_parents_mru(chain[2], chain[1])
        assert ids(lru) == [2, 1, 0]

    def test_root_alone_is_no_path(self, lru: LRUList) -> None:
        """M8: nothing lies between the root and itself."""
        chain = make_chain(2)
        fill(lru, [chain[1]])
        lru.touch_node_and_parents_mru(chain[0], chain[0])
        assert ids(lru) == [1]

    def test_path_passes_over_those_who_are_no_members(self, lru: LRUList) -> None:
        """M8: ancestors without a state have no place among the states; `touch_path_mru` skips any."""
        chain, (other,) = make_chain(5), make_nodes(1)
        other.id = 9
        fill(lru, [chain[3], chain[1], other])
        lru.touch_node_and_parents_mru(chain[3], chain[0])
        assert ids(lru) == [3, 1, 9]
        lru.touch_mru(other)
        lru.touch_path_mru(chain[1:])
        assert ids(lru) == [3, 1, 9]
        assert [links(lru, chain[number]) for number in (2, 4)] == [(None, None)] * 2


class TestVictims:
    def test_oldest_unlocked_member_is_found(self, lru: LRUList) -> None:
        """M8: unlocked means by the lock of the list's mode, and by no other."""
        nodes = make_nodes(3)
        fill(lru, nodes)
        hold_otherwise(lru, nodes[0])
        assert lru.get_lru_unlocked() is nodes[0]
        lock(lru, nodes[0])
        assert lru.get_lru_unlocked() is nodes[1]
        for node in nodes:
            lock(lru, node)
        assert lru.get_lru_unlocked() is None

    def test_oldest_unlocked_leaf_is_found(self, lru: LRUList) -> None:
        """M8: a node with children is no leaf, however old."""
        root, parent, child = make_chain(3)
        (other,) = make_nodes(1)
        fill(lru, [parent, child, other])
        assert lru.get_lru_leaf_unlocked() is child
        lock(lru, child)
        assert lru.get_lru_leaf_unlocked() is other
        lock(lru, other)
        assert lru.get_lru_leaf_unlocked() is None
        assert root not in lru

    def test_empty_list_has_no_victim(self, lru: LRUList) -> None:
        """M8: None, not a sentinel."""
        assert lru.get_lru_unlocked() is None
        assert lru.get_lru_leaf_unlocked() is None


@pytest.mark.parametrize("mamba", [False, True])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 2), (1, 1), (1, 3), (2, 4), (4, 4), (0, 4)])
def test_stretch_of_neighbours_moves_as_it_is(mamba: bool, first: int, last: int) -> None:
    """M8: to the recent end, in its order; the others close ranks, both ways."""
    lru, nodes = LRUList(mamba), [MambaTreeNode() for _ in range(5)]
    for node in reversed(nodes):
        lru.insert_mru(node)
    lru.touch_stretch_mru(nodes[first], nodes[last])
    expected = nodes[first : last + 1] + nodes[:first] + nodes[last + 1 :]
    assert list(lru) == expected
    assert list(reversed(lru)) == expected[::-1]


@pytest.mark.parametrize("mamba", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_node_is_inserted_behind_a_member(mamba: bool, place: int) -> None:
    """M8: as the next older one, also at the old end."""
    lru, nodes, new = LRUList(mamba), [MambaTreeNode() for _ in range(3)], MambaTreeNode()
    for node in reversed(nodes):
        lru.insert_mru(node)
    lru.insert_behind(new, nodes[place])
    expected = [*nodes[: place + 1], new, *nodes[place + 1 :]]
    assert list(lru) == expected
    assert list(reversed(lru)) == expected[::-1]
    assert new in lru
