"""The white-box check of slots notices every kind of damage that it looks for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.core.inference.contexts.snapshot_offsets import Snapshots
from pymllm.errors import InvariantViolation
from pymllm.invariants.blocks import check_mamba_slot_allocator


def make_slots() -> MambaSlotAllocator:
    """Blocks 0 and 1 have slots and hashes, 2 has a slot, 3 and 4 have none, 5 is free; 2 slots are free."""
    context = SimpleNamespace(prefix_cache_lru_clock=0, prefix_caching_eviction_policy="lru", max_requests=2)
    context.kv_block_allocator = KVBlockAllocator(context, 7)
    context.kv_block_allocator.allocate_memory_blocks(5)
    slots = MambaSlotAllocator(context, 5, 1, (), (), torch.float32, torch.float32)
    slots.allocate_slots_batch([0, 1, 2])
    context.kv_block_allocator.register_kv_block_hashes([0, 1, 3], [10, 11, 13])
    slots.register_block_hashes_batch([0, 1], [10, 11])
    slots._offsets.of_request[1] = Snapshots((2, 4), (6, 8), (0, 1), -1, 9)
    return slots


def test_sound_slots_pass() -> None:
    """C2, C4, C6: also with slots in a caller's hands, or a block allocator that tells nothing."""
    slots = make_slots()
    check_mamba_slot_allocator(slots)
    slots.context.kv_block_allocator.release_memory_blocks([0])
    check_mamba_slot_allocator(slots, slots._evict_lru_slots_batch(1))
    plain = SimpleNamespace(block_hashes=[-1] * 7)
    slots = make_slots()
    plain.block_hashes[:2] = 10, 11
    slots.context.kv_block_allocator = plain
    check_mamba_slot_allocator(slots)


def keep_a_slot_in_hand(slots: Any) -> None:
    slots._books.free_count -= 1


def free_a_mapped_slot(slots: Any) -> None:
    slots._books._free[2] = slots.get_slot(0)
    slots._books.free_count += 1


def free_a_slot_twice(slots: Any) -> None:
    slots._books._free[1] = slots._books._free[0]


def give_two_blocks_one_slot(slots: Any) -> None:
    slots._books.slot_of[3] = slots.get_slot(2)


def forget_a_block(slots: Any) -> None:
    slots._books.block_of[slots.get_slot(2)] = -1


def lose_a_hash(slots: Any) -> None:
    del slots.hash_to_block_id[10]


def name_a_block_without_a_slot(slots: Any) -> None:
    slots._books.name(3, 13)


def name_a_block_as_another(slots: Any) -> None:
    slots._books.name(2, 12)


def give_a_free_block_a_slot(slots: Any) -> None:
    one = np.array([5])
    slots._books.give(slots._books.claim(1, one[:0]), one, one)


def turn_offsets_around(slots: Any) -> None:
    slots._offsets.of_request[1] = Snapshots((4, 2), (8, 6), (1, 0), -1, 9)


def keep_an_offset_of_nothing(slots: Any) -> None:
    slots._offsets.of_request[1] = Snapshots((0, 2), (4, 6), (0, 1), -1, 9)


def lose_a_block_of_an_offset(slots: Any) -> None:
    slots._offsets.of_request[1] = Snapshots((2, 4), (6, 8), (0,), -1, 9)


DAMAGE: list[tuple[Callable[[Any], None], str, str]] = [
    (keep_a_slot_in_hand, "C2", "not free, mapped or in hand once each"),
    (free_a_mapped_slot, "C2", "not free, mapped or in hand once each"),
    (free_a_slot_twice, "C2", "not free, mapped or in hand once each"),
    (give_two_blocks_one_slot, "C2", "slots the blocks"),
    (forget_a_block, "C2", "slots the blocks"),
    (lose_a_hash, "C4", "the index has"),
    (name_a_block_without_a_slot, "C4", "which has no slot"),
    (name_a_block_as_another, "C4", "registered under -1"),
    (give_a_free_block_a_slot, "C6", r"free blocks \[5\] have slots"),
    (turn_offsets_around, "C8", "not ascending and positive"),
    (keep_an_offset_of_nothing, "C8", "not ascending and positive"),
    (lose_a_block_of_an_offset, "C8", r"for blocks \(0,\)"),
]


@pytest.mark.parametrize(("damage", "law", "message"), DAMAGE, ids=[d.__name__ for d, _, _ in DAMAGE])
def test_damage_is_noticed(damage: Callable[[Any], None], law: str, message: str) -> None:
    """Each check is seen to fail, and names its law."""
    slots = make_slots()
    damage(slots)
    with pytest.raises(InvariantViolation, match=message) as caught:
        check_mamba_slot_allocator(slots)
    assert caught.value.law == law


def test_a_slot_that_is_not_in_hand_is_noticed() -> None:
    """C2: the caller says what it has."""
    slots = make_slots()
    with pytest.raises(InvariantViolation, match=r"in hand \[4\]"):
        check_mamba_slot_allocator(slots, in_hands=[4])
