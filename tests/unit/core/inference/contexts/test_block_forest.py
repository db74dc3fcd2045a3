"""The forest of registered blocks: activity, leaves and their order."""

from __future__ import annotations

import numpy as np
import pytest

from pymllm.core.inference.contexts.block_forest import BlockForest


class Grove:
    """A forest with the counts and stamps that its owner keeps."""

    def __init__(self, parents: dict[int, int], stamps: list[int]) -> None:
        self.refs = np.ones(len(stamps), np.int32)
        self.stamps = np.array(stamps)
        self.forest = BlockForest(self.refs, self.stamps)
        for block, parent in parents.items():
            self.forest.add(block, parent)

    def drop(self, *blocks: int) -> None:
        self.refs[list(blocks)] = 0
        for block in blocks:
            self.forest.deactivate(block)

    def take(self, *blocks: int) -> None:
        self.refs[list(blocks)] = 1
        for block in blocks:
            self.forest.activate(block)


CHAIN = {0: -1, 1: 0, 2: 1}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_path_given_back_in_any_order_is_evictable_once(order: tuple[int, ...]) -> None:
    """C1: each block counts once, and the end of the path goes first."""
    grove = Grove(CHAIN, [1, 2, 3])
    grove.drop(*order)
    assert grove.forest.evictable == 3
    assert [grove.forest.pop_oldest() for _ in range(3)] == [2, 1, 0]
    assert (len(grove.forest), grove.forest.evictable) == (0, 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_path_taken_up_in_any_order_is_not_evictable(order: tuple[int, ...]) -> None:
    """C1: and giving it back makes all of it evictable again."""
    grove = Grove(CHAIN, [1, 2, 3])
    grove.drop(0, 1, 2)
    grove.take(*order)
    assert grove.forest.evictable == 0
    grove.drop(0, 1, 2)
    assert grove.forest.evictable == 3


def test_a_reference_below_keeps_what_is_above() -> None:
    """C1: a block is active while a registered block below it is referenced."""
    grove = Grove({**CHAIN, 3: 0}, [1, 2, 3, 4])
    grove.drop(0, 1, 3)
    assert grove.forest.evictable == 1, "block 3 alone"
    grove.drop(2)
    grove.take(1)
    assert grove.forest.evictable == 2, "2 and 3"
    assert [grove.forest.pop_oldest() for _ in range(2)] == [2, 3]


def test_a_block_registered_below_a_waiting_one_ends_its_wait() -> None:
    """C1: the parent is no leaf any more."""
    grove = Grove({0: -1}, [1, 2])
    grove.drop(0)
    grove.forest.add(1, 0)
    assert grove.forest.evictable == 0
    grove.drop(1)
    assert [grove.forest.pop_oldest() for _ in range(2)] == [1, 0]


def test_stamps_are_those_of_now() -> None:
    """X3: a stamp that rose while its block waited is read again, one that fell is told."""
    grove = Grove({0: -1, 1: -1, 2: -1}, [1, 2, 3])
    grove.drop(0, 1, 2)
    grove.stamps[0] = 9
    grove.stamps[2] = 0
    grove.forest.restamp(2)
    assert [grove.forest.pop_oldest() for _ in range(3)] == [2, 1, 0]
    grove.forest.restamp(2)
    assert not grove.forest._queued_at, "who is not waiting does not begin to"


def test_an_entry_that_was_overtaken_is_passed_over() -> None:
    """X3: of several stamps that a block waited at, the present one counts."""
    grove = Grove({0: -1, 1: -1}, [5, 4])
    grove.drop(0, 1)
    for stamp in (3, 9):
        grove.stamps[0] = stamp
        grove.forest.restamp(0)
    assert [grove.forest.pop_oldest() for _ in range(2)] == [1, 0]


def test_a_subtree_goes_parents_first() -> None:
    """C1: REF_ZERO removes a block with everything below it, referenced or not."""
    grove = Grove({**CHAIN, 3: 1, 4: 0}, [1] * 5)
    grove.drop(1)
    assert grove.forest.remove_subtree(1) == [1, 2, 3]
    assert sorted(grove.forest._children) == [0, 4]
    grove.drop(4)
    assert grove.forest.remove_subtree(4) == [4]
    grove.drop(0)
    assert grove.forest.evictable == 1, "nothing below it is active any more"


def test_a_parent_whose_last_child_was_removed_waits() -> None:
    """C1: also where nothing of the subtree was active."""
    grove = Grove({0: -1, 1: 0}, [1, 2])
    grove.drop(0, 1)
    assert grove.forest.remove_subtree(1) == [1]
    assert grove.forest.pop_oldest() == 0


def test_removing_an_active_subtree_frees_what_is_above() -> None:
    """C1: the last active child that goes makes its parent evictable."""
    grove = Grove({0: -1, 1: 0}, [1, 2])
    grove.drop(0)
    assert grove.forest.evictable == 0
    grove.forest.remove_subtree(1)
    assert grove.forest.pop_oldest() == 0
    assert 0 not in grove.forest
