"""Tests of `LRUList` as caches use it; the rest is played against a plain list in tests/properties."""

from __future__ import annotations

import pytest

from pymllm.mem_cache import LRUList, MambaTreeNode


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
def test_the_most_recent_one_stays_where_it_is(mamba: bool) -> None:
    """M8: and another one comes before it."""
    lru, (older, newer) = LRUList(mamba), [MambaTreeNode() for _ in range(2)]
    for node in (older, newer):
        lru.insert_mru(node)
    for touched, expected in ((newer, [newer, older]), (older, [older, newer])):
        lru.touch_mru(touched)
        assert list(lru) == expected


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


@pytest.mark.parametrize("mamba", [False, True])
def test_a_path_passes_over_those_who_are_no_members(mamba: bool) -> None:
    """M8: nodes without a state have no place among the states."""
    lru, (first, missing, last, other) = LRUList(mamba), [MambaTreeNode() for _ in range(4)]
    for node in (last, first, other):
        lru.insert_mru(node)
    lru.touch_path_mru([first, missing, last])
    assert list(lru) == [last, first, other]
    assert list(reversed(lru)) == [other, first, last]
    assert missing not in lru


@pytest.mark.parametrize("mamba", [False, True])
def test_what_is_no_node_is_no_member(mamba: bool) -> None:
    """M8: whatever it is; the mode of states is asked for."""
    lru = LRUList(mamba)
    lru.insert_mru(MambaTreeNode())
    assert not any(it in lru for it in (None, [], "1", MambaTreeNode()))
    assert (LRUList().mamba, lru.mamba) == (False, mamba)
