"""The views of blocks and slots beside what they must say."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pymllm.history.outcomes import BlockBooks
from pymllm.oracle.block_model import BlockModel
from pymllm.oracle.block_slot_model import BlockSlotModel
from pymllm.oracle.block_views import find_wrong_view

# Blocks 0 (held, under 11, with slot 1) and 1 (free), and the dummy.
BOOKS = BlockBooks(
    refs=(1, 0, 9),
    hashes=(11, -1, 9),
    stamps=(4, 9, 9),
    block_of_hash=((11, 0),),
    slot_of_block=(1, -1, -1),
    block_of_slot=(-1, 0, -1),
    free_slots=(2, 0),
    block_of_state=((11, 0),),
)


@pytest.fixture
def blocks() -> BlockModel:
    made = BlockModel(2, is_lru=True, is_caching=True)
    made.clock = 4
    made.take([0])
    made.register([0], [11], None)
    return made


@pytest.fixture
def slots(blocks: BlockModel) -> BlockSlotModel:
    made = BlockSlotModel(3, blocks)
    made.give([0], [1])
    made.named[0] = 11
    return made


def test_what_is_told_of_the_dummy_and_of_free_blocks_is_open(
    blocks: BlockModel, slots: BlockSlotModel
) -> None:
    """C1, C2: stamps of what nobody has, and the order of free slots."""
    assert find_wrong_view(blocks, slots, BOOKS) is None


@pytest.mark.parametrize(
    ("wrong", "law", "name"),
    [
        ({"refs": (1, 0)}, "C1", "sizes of the views"),
        ({"refs": (1, 1, 0)}, "C1", "block_ref_counts"),
        ({"hashes": (11, 12, 0)}, "C3", "block_hashes"),
        ({"block_of_hash": ()}, "C3", "kv_hash_to_block_id"),
        ({"stamps": (5, 0, 0)}, "C1", "block_timestamps"),
        ({"slot_of_block": (1, -1)}, "C2", "block_to_slot"),
        ({"block_of_slot": (0, 0, -1)}, "C2", "slot_to_block"),
        ({"free_slots": (0, 0)}, "C2", "free_slots"),
        ({"block_of_state": ()}, "C4", "hash_to_block_id"),
    ],
)
def test_a_wrong_view_is_named_with_its_law(
    blocks: BlockModel, slots: BlockSlotModel, wrong: dict[str, Any], law: str, name: str
) -> None:
    """C1 to C4: the first that differs."""
    found = find_wrong_view(blocks, slots, dataclasses.replace(BOOKS, **wrong))
    assert found is not None
    assert found[:2] == (law, name)


def test_slots_are_not_looked_at_where_there_are_none(blocks: BlockModel) -> None:
    """C2: an attention model has blocks alone."""
    assert find_wrong_view(blocks, None, BOOKS) is None
