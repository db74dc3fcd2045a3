"""Slots of cached states as the specification has them."""

from __future__ import annotations

import pytest

from pymllm.oracle.block_model import BlockModel
from pymllm.oracle.block_slot_model import BlockSlotModel


@pytest.fixture
def blocks() -> BlockModel:
    """Blocks 0 to 3 cached, 0 the most recent, and 4 held."""
    made = BlockModel(6, is_lru=True, is_caching=True)
    made.take(range(5))
    made.register([0, 1, 2, 3], [11, 22, 33, 44], [0] * 4)
    made.release([0, 1, 2, 3])
    made.clock = 1
    made.stamp([0])
    return made


@pytest.fixture
def slots(blocks: BlockModel) -> BlockSlotModel:
    """Four slots: one each for 0, 2, 1 and 4."""
    made = BlockSlotModel(4, blocks)
    made.give([0, 2, 1, 4], [3, 1, 0, 2])
    made.named.update({0: 11, 2: 33})
    return made


def test_the_oldest_unreferenced_block_loses_its_slot_first(slots: BlockSlotModel) -> None:
    """C6: the lowest id among equals; what is kept is left out."""
    assert slots.victims() == [1, 2, 0]
    assert slots.victims(keep=[1, 4]) == [2, 0]


def test_the_lowest_block_goes_first_under_ref_zero(slots: BlockSlotModel, blocks: BlockModel) -> None:
    """C6: however old it is."""
    blocks.is_lru = False
    assert slots.victims() == [0, 1, 2]


def test_a_slot_is_free_mapped_or_in_hand(slots: BlockSlotModel) -> None:
    """C2: what is dropped is free, unless its caller takes it; the hash goes with it."""
    assert slots.free == set()
    slots.in_hand.update(slots.drop([2, 5, 2]))
    assert slots.drop([0]) == [3]
    assert (slots.free, slots.in_hand, slots.usable) == ({3}, {1}, [0, 1, 2])
    assert slots.named == {}
    slots.reset()
    assert (slots.free, slots.slot_of) == ({0, 1, 2, 3}, {})


def test_a_newcomer_is_named_once(slots: BlockSlotModel) -> None:
    """C5: only blocks without a slot need one."""
    assert slots.newcomers([3, 0, 5, 3]) == [3, 5]
