"""Blocks as the specification has them."""

from __future__ import annotations

import pytest

from pymllm.oracle.block_model import BlockModel


@pytest.fixture
def model() -> BlockModel:
    """Six blocks: a chain 0 - 1 - 2 under 11, 22, 33, and block 3 alone under 44; all held once."""
    made = BlockModel(6, is_lru=True, is_caching=True)
    made.take([0, 1, 2, 3])
    made.register([0, 1, 2], [11, 22, 33], None)
    made.register([3], [44], [0])
    return made


def why_not(model: BlockModel, blocks: list[int], hashes: list[int], parents: list[int] | None) -> list[str]:
    return [entry.why_not for entry in model.register(blocks, hashes, parents)]


def test_a_chain_is_registered_each_below_the_one_before(model: BlockModel) -> None:
    """C3: without parents each entry follows the last."""
    assert model.parent_of == {0: None, 1: 0, 2: 1, 3: None}
    assert (model.path(2), model.subtree(0), model.children(0)) == ([2, 1, 0], [0, 1, 2], [1])


def test_the_first_registration_of_a_hash_wins(model: BlockModel) -> None:
    """C3: and what follows such a block has no registered parent, whoever has its parent's hash."""
    model.take([4, 5])
    assert why_not(model, [4, 5], [11, 55], None) == ["taken", "usurped"]
    assert why_not(model, [4, 5], [11, 55], [0, 11]) == ["taken", "usurped"]
    assert set(model.hash_of) == {0, 1, 2, 3}


def test_a_parent_in_another_call_is_found_by_its_hash(model: BlockModel) -> None:
    """C3: 0 stands for none, and an unknown one leaves the block unregistered."""
    model.take([4, 5])
    assert why_not(model, [4, 5], [55, 66], [99, 33]) == ["orphan", ""]
    assert why_not(model, [4], [55], [0]) == [""]
    assert (model.parent_of[5], model.parent_of[4]) == (2, None)


def test_what_is_registered_may_be_registered_again(model: BlockModel) -> None:
    """C3: nothing changes, and what follows it finds it."""
    model.take([4])
    assert why_not(model, [2, 4], [33, 55], None) == ["known", ""]
    assert (model.parent_of[2], model.parent_of[4]) == (1, 2)


def test_nothing_is_registered_without_caching() -> None:
    """C1: such a block is free once nobody references it."""
    model = BlockModel(2, is_lru=True, is_caching=False)
    model.take([0])
    assert why_not(model, [0], [11], None) == ["off"]
    assert (model.release([0]), model.free) == ([0], {0, 1})


def test_a_block_is_evictable_once_nothing_at_or_below_it_is_held(model: BlockModel) -> None:
    """C1: the leaves among these go first."""
    assert model.release([0, 1, 3]) == []
    assert (model.cached, model.evictable(), model.leaves()) == ([0, 1, 3], {3}, {3})
    model.release([2])
    assert (model.evictable(), model.leaves(), model.held) == ({0, 1, 2, 3}, {2, 3}, [])
    model.drop([2])
    assert (model.leaves(), model.free, model.block_of) == ({1, 3}, {2, 4, 5}, {11: 0, 22: 1, 44: 3})


def test_a_block_takes_its_descendants_with_it_under_ref_zero(model: BlockModel) -> None:
    """C1: the held ones are deregistered, and free only when they are released."""
    model.is_lru = False
    assert model.release([0]) == [0, 1, 2]
    assert (model.hash_of, model.free, model.occupied) == ({3: 44}, {0, 4, 5}, [1, 2, 3])
    assert model.release([2, 1]) == [2, 1]


def test_a_block_that_goes_with_its_parent_goes_once(model: BlockModel) -> None:
    """C1: whichever of them is named first."""
    model.is_lru = False
    assert sorted(model.release([2, 0, 1])) == [0, 1, 2]
    assert model.free == {0, 1, 2, 4, 5}


def test_references_are_counted_each_time(model: BlockModel) -> None:
    """C1: a block that is named twice counts twice."""
    model.retain([0, 0, 1])
    assert model.release([0, 0]) == []
    assert [model.refs[block] for block in range(6)] == [1, 2, 1, 1, 0, 0]


def test_stamps_are_the_clock(model: BlockModel) -> None:
    """X3: of what is taken and of what is stamped, at that time."""
    model.clock = 5
    model.stamp([1])
    model.take([4])
    assert [model.stamps[block] for block in range(6)] == [0, 5, 0, 0, 5, 0]
    model.reset()
    assert (dict(model.stamps), model.clock, model.free) == ({}, 0, {0, 1, 2, 3, 4, 5})


def test_what_is_wrong_with_naming_a_block_is_said(model: BlockModel) -> None:
    """C1: nobody has the dummy, a free block, or one outside."""
    assert model.faults_of([0, 6, 4, 7, -1]) == [
        "the dummy is refused",
        "a free block is refused",
        "a block outside is refused",
        "a block outside is refused",
    ]
