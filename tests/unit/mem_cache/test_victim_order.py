"""`VictimOrder` always knows its least recent member."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from pymllm.mem_cache.victim_order import VictimOrder, older_of


@dataclass(eq=False)
class Aged:
    """A node as far as an order is concerned."""

    last_access_time: float
    _depth: int
    _order: VictimOrder[Any] | None = None
    _older: Any = None
    _younger: Any = None


def drain(order: VictimOrder[Aged]) -> list[tuple[float, int]]:
    """Take the oldest member again and again."""
    taken = []
    while (oldest := order.oldest()) is not None:
        order.discard(oldest)
        taken.append((oldest.last_access_time, oldest._depth))
    return taken


def move(order: VictimOrder[Aged], nodes: list[Aged], now: float) -> None:
    """Use nodes again."""
    order.move(nodes)
    for node in nodes:
        node.last_access_time = now


def test_empty_order_has_no_oldest() -> None:
    """R5: nothing can be evicted where nothing is."""
    order: VictimOrder[Aged] = VictimOrder()
    assert order.oldest() is None
    assert len(order) == 0


def test_members_leave_by_access_then_depth() -> None:
    """R8: of one access, the shallowest is the oldest."""
    order: VictimOrder[Aged] = VictimOrder()
    for access, depth in [(5.0, 8), (2.0, 4), (5.0, 4), (2.0, 16), (9.0, 1), (2.0, 8)]:
        order.add(Aged(access, depth))
    assert drain(order) == [(2.0, 4), (2.0, 8), (2.0, 16), (5.0, 4), (5.0, 8), (9.0, 1)]
    assert len(order) == 0


def test_membership_is_by_identity() -> None:
    """R5: a node with the recency of a member is not that member."""
    order: VictimOrder[Aged] = VictimOrder()
    one, twin, deeper = Aged(3.0, 4), Aged(3.0, 4), Aged(3.0, 8)
    order.add(one)
    assert one in order
    assert twin not in order
    order.add(deeper)
    assert one in order
    assert deeper in order
    assert twin not in order
    order.discard(one)
    assert one not in order
    assert deeper in order


def test_member_removed_from_the_middle_of_one_access_is_gone() -> None:
    """R5: members of one access are found and removed one by one, in any order."""
    order: VictimOrder[Aged] = VictimOrder()
    nodes = [Aged(1.0, depth) for depth in (4, 8, 12)]
    for node in nodes:
        order.add(node)
    order.discard(nodes[0])
    assert order.oldest() is nodes[1]
    order.discard(nodes[2])
    assert order.oldest() is nodes[1]
    order.add(nodes[0])
    assert drain(order) == [(1.0, 4), (1.0, 8)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_moved_members_are_the_youngest(count: int) -> None:
    """R8: a path that is used again leaves its old places together, and the shallowest stays the oldest."""
    order: VictimOrder[Aged] = VictimOrder()
    path = [Aged(float(access), depth) for depth, access in enumerate((9, 9, 4, 3, 3)[:count], start=1)]
    other = Aged(5.0, 7)
    for node in [*path, other]:
        order.add(node)
    move(order, path, 10.0)
    assert len(order) == count + 1
    assert all(node in order for node in path)
    assert drain(order) == [(5.0, 7), *((10.0, depth) for depth in range(1, count + 1))]


def test_member_of_a_moved_access_comes_and_goes() -> None:
    """R5: nodes enter and leave the container of a path like any other."""
    order: VictimOrder[Aged] = VictimOrder()
    path = [Aged(float(depth), depth) for depth in (4, 8)]
    for node in path:
        order.add(node)
    move(order, path, 20.0)
    order.discard(path[0])
    order.add(Aged(20.0, 2))
    assert drain(order) == [(20.0, 2), (20.0, 8)]


def test_member_that_comes_and_goes_leaves_nothing_behind() -> None:
    """R5: holds that come and go between two accesses do not make the order grow."""
    order: VictimOrder[Aged] = VictimOrder()
    fickle, other = Aged(3.0, 8), Aged(3.0, 4)
    order.add(Aged(9.0, 1))
    order.add(fickle)
    order.add(other)
    for _ in range(1000):
        order.discard(fickle)
        order.add(fickle)
    assert len(order._late.at[3.0]._heap) < 200
    assert drain(order) == [(3.0, 4), (3.0, 8), (9.0, 1)]


def test_old_accesses_may_return_at_any_time() -> None:
    """R5: a leaf that a hold kept out of the order comes back with its old recency."""
    order: VictimOrder[Aged] = VictimOrder()
    old = Aged(3.0, 1)
    order.add(old)
    order.add(Aged(5000.0, 1))
    order.discard(old)
    assert order.oldest().last_access_time == 5000.0
    order.add(old)
    assert order.oldest() is old


def test_order_agrees_with_sorting_however_it_is_used() -> None:
    """R5, R8: over many accesses far apart, added and discarded at random, the oldest is the minimum."""
    source = random.Random(7)
    order: VictimOrder[Aged] = VictimOrder()
    members: dict[tuple[float, int], Aged] = {}
    for _ in range(6000):
        if members and source.random() < 0.48:
            node = members.pop(source.choice(list(members)))
            order.discard(node)
        else:
            recency = float(source.randrange(1, 400_000)), source.randrange(4)
            if recency not in members:
                members[recency] = Aged(*recency)
                order.add(members[recency])
        assert len(order) == len(members)
        if members and source.random() < 0.1:
            assert order.oldest() is members[min(members)]
    assert drain(order) == sorted(members)


@pytest.mark.parametrize("used", [1, 2, 4])
@pytest.mark.parametrize("others", [0, 1])
def test_path_that_is_used_again_as_a_whole_or_in_part(used: int, others: int) -> None:
    """R8: the part that is used gets the new access; what is below it, and other paths, keep theirs."""
    order: VictimOrder[Aged] = VictimOrder()
    path, aside = [Aged(3.0, depth) for depth in (4, 8, 12, 16)], [Aged(5.0, 4)] * others
    for node in [*path, *aside]:
        order.add(node)
    move(order, path[:used], 6.0)
    move(order, path[:used], 7.0)
    assert len(order) == 4 + others
    assert all(node in order for node in [*path, *aside])
    rest = [(3.0, depth) for depth in (4, 8, 12, 16)[used:]]
    assert drain(order) == [*rest, *[(5.0, 4)] * others, *((7.0, depth) for depth in (4, 8, 12, 16)[:used])]


def test_numbers_may_come_in_any_order() -> None:
    """R5: what comes in turn queues up, what comes late is sorted in, and both leave as they should."""
    order: VictimOrder[Aged] = VictimOrder()
    nodes = {number: Aged(float(number), 1) for number in (5, 2, 9, 700, 3, 701, 600)}
    for node in nodes.values():
        order.add(node)
    for number in (700, 3):
        order.discard(nodes[number])
    order.add(nodes[700])
    assert [access for access, _ in drain(order)] == [2.0, 5.0, 9.0, 600.0, 700.0, 701.0]


def test_late_numbers_that_come_and_go_leave_nothing_behind() -> None:
    """R5: a block that empties again and again does not make the heap of blocks grow."""
    order: VictimOrder[Aged] = VictimOrder()
    order.add(Aged(1e6, 1))
    for number in range(0, 500_000, 500):
        late = Aged(float(number), 1)
        order.add(late)
        order.discard(late)
    assert len(order._late._heap) < 200
    assert drain(order) == [(1e6, 1)]


def test_members_are_visited_once_each() -> None:
    """R5: those that came in turn by recency, then those that came late, of one access or several."""
    order: VictimOrder[Aged] = VictimOrder()
    recencies = [(5.0, 4), (7.0, 1), (7.0, 2), (5.0, 3), (5.0, 2), (6.0, 1)]
    for recency in recencies:
        order.add(Aged(*recency))
    visited = [(node.last_access_time, node._depth) for node in order]
    assert visited[:3] == [(5.0, 4), (7.0, 1), (7.0, 2)]
    assert sorted(visited) == sorted(recencies)


def test_late_member_of_a_path_moves_with_it() -> None:
    """R8: whoever came back by a release stands apart from the rest of its access until the next one."""
    order: VictimOrder[Aged] = VictimOrder()
    path, aside = [Aged(3.0, depth) for depth in (4, 8, 12)], Aged(5.0, 4)
    for node in [*path, aside]:
        order.add(node)
    order.discard(path[1])
    order.add(path[1])
    assert order.oldest() is path[0]
    move(order, path, 6.0)
    assert [node._depth for node in order] == [4, 4, 8, 12]
    assert drain(order) == [(5.0, 4), (6.0, 4), (6.0, 8), (6.0, 12)]


@pytest.mark.parametrize("apart", [False, True])
def test_nodes_of_a_path_that_wait_elsewhere_stay_there(apart: bool) -> None:
    """R8: a path is moved as a whole; who is held, or in another order, is passed over."""
    order: VictimOrder[Aged] = VictimOrder()
    other: VictimOrder[Aged] = VictimOrder()
    path = [Aged(4.0 if apart and depth == 4 else 3.0, depth) for depth in (4, 8, 12, 16)]
    for node, place in zip(path, (order, other, None, order), strict=True):
        if place is not None:
            place.add(node)
    aside = Aged(5.0, 1)
    order.add(aside)
    move(order, path, 9.0)
    assert [node._order for node in path] == [order, other, None, order]
    assert list(other) == [path[1]]
    assert len(order) == 3
    assert list(order) == [aside, path[0], path[3]]


def test_lone_stretch_at_the_end_stays_as_it_is() -> None:
    """R8: the path that was used last may be used again, any number of times."""
    order: VictimOrder[Aged] = VictimOrder()
    path = [Aged(3.0, depth) for depth in (4, 8)]
    for node in path:
        order.add(node)
    for now in (4.0, 5.0):
        move(order, path, now)
        assert list(order) == path
    assert drain(order) == [(5.0, 4), (5.0, 8)]


def test_older_of_two_is_the_less_recent() -> None:
    """R8: by access, then by depth; either may be missing."""
    old, deeper, young = Aged(1.0, 8), Aged(2.0, 9), Aged(2.0, 4)
    assert older_of(old, young) is older_of(young, old) is old
    assert older_of(deeper, young) is older_of(young, deeper) is young
    assert older_of(None, old) is older_of(old, None) is old
    assert older_of(None, None) is None


@pytest.mark.parametrize("age", [(0.0, 9), (1.0, 1), (1.0, 3), (2.0, 0)])
def test_who_cannot_be_filed_is_linked_where_its_age_belongs(
    monkeypatch: pytest.MonkeyPatch, age: tuple[float, int]
) -> None:
    """X2: a hold that was taken back has nobody to tell that there was no memory for the order."""
    order: VictimOrder[Aged] = VictimOrder()
    members = [Aged(1.0, 0), Aged(1.0, 2), Aged(3.0, 1), Aged(3.0, 2)]
    for member in members:
        order.add(member)

    def fail(*args: object) -> None:
        raise MemoryError

    late = Aged(*age)
    with monkeypatch.context() as patch:
        patch.setattr("pymllm.mem_cache.victim_order.heappush", fail)
        order.add(late)
    assert late in order
    assert [id(node) for node in order] == [
        id(node) for node in sorted([*members, late], key=lambda it: (it.last_access_time, it._depth))
    ]
    move(order, [late], 4.0)
    assert drain(order) == [(1.0, 0), (1.0, 2), (3.0, 1), (3.0, 2), (4.0, age[1])]
