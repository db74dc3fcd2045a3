"""Each node waits in the order where it belongs, and each order knows its least recent member."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from pymllm.mem_cache.tree.victims import VictimOrder, older_of


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
    """Use nodes again; at odd times, a lone member as the leaf of a path."""
    if len(nodes) == 1 and nodes[0] in order and now % 2:
        order.move_one(nodes[0])
    else:
        order.move(nodes)
    for node in nodes:
        node.last_access_time = now


@pytest.mark.parametrize("seed", range(4))
def test_order_agrees_with_sorting_however_it_is_used(seed: int) -> None:
    """R5, R8: paths that are used again, holds that come and go, and accesses far apart that come late."""
    draw = random.Random(seed)
    order: VictimOrder[Aged] = VictimOrder()
    paths: list[list[Aged]] = []
    now = 0
    for _ in range(1500):
        now += draw.choice((1, 1, 700))
        act = draw.random()
        nodes = draw.choice(paths) if paths else []
        waiting = [node for node in nodes if node in order]
        if not nodes or act < 0.15:
            late = draw.random() < 0.5
            length = 1 if late else draw.randrange(1, 5)
            access = draw.randrange(now) + 0.0 if late else float(now)
            if not any(path[0].last_access_time == access for path in paths):
                paths.append([Aged(access, depth) for depth in range(1, length + 1)])
                for node in paths[-1]:
                    order.add(node)
        elif act < 0.4 and waiting:
            order.discard(draw.choice(waiting))
        elif act < 0.7 and len(waiting) < len(nodes):
            order.add(draw.choice([node for node in nodes if node not in waiting]))
        elif waiting:
            used = nodes[nodes.index(waiting[0]) : nodes.index(draw.choice(waiting)) + 1]
            move(order, used, float(now))
            for node in nodes[: nodes.index(used[0])]:
                node.last_access_time = float(now)
        members = sorted(
            (node.last_access_time, node._depth) for path in paths for node in path if node in order
        )
        assert len(order) == len(members)
        found = order.oldest()
        assert (None if found is None else (found.last_access_time, found._depth)) == next(
            iter(members), None
        )
        if draw.random() < 0.05:
            assert sorted((node.last_access_time, node._depth) for node in order) == members
    assert drain(order) == members


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
        patch.setattr("pymllm.mem_cache.tree.victims.heappush", fail)
        order.add(late)
    assert late in order
    assert [id(node) for node in order] == [
        id(node) for node in sorted([*members, late], key=lambda it: (it.last_access_time, it._depth))
    ]
    move(order, [late], 4.0)
    assert drain(order) == [(1.0, 0), (1.0, 2), (3.0, 1), (3.0, 2), (4.0, age[1])]
