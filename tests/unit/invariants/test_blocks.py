"""The checks of block contexts and their allocators notice every kind of damage that they look for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.live_request import Region
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.core.inference.contexts.snapshot_offsets import Snapshots
from pymllm.errors import InvariantViolation
from pymllm.invariants import check_dynamic_context, check_kv_block_allocator, check_mamba_slot_allocator
from tests.unit.invariants.damage import law_of

LRU, REF_ZERO = PrefixCachingEvictionPolicy.LRU, PrefixCachingEvictionPolicy.REF_ZERO


def request(*tokens: int) -> SimpleNamespace:
    return SimpleNamespace(prompt_tokens=list(tokens), finished_chunk_token_count=0)


def make_context(mamba_slots: int = 4) -> DynamicInferenceContext:
    """Row 0 is paused, 1 decodes, 2 has a chunk, 3 waits, 4 is empty; 0 and 1 share their first block."""
    context = DynamicInferenceContext(
        max_requests=5,
        num_blocks=13,
        max_blocks_per_request=4,
        block_size_tokens=4,
        mamba_chunk_size=2,
        mamba_slots=mamba_slots,
        num_mamba_layers=1 if mamba_slots else 0,
        paused_limit=2,
    )

    def compute(batch: Any) -> list[int]:
        return [9] * len(batch)

    for prompt in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [7, 8, 9, 10, 11, 12]):
        context.add_request(request(*prompt), 5)
        context.step(compute)
    context.pause(context.requests[0])
    context.add_request(request(20, 21, 22), 2)
    return context


@pytest.mark.parametrize("mamba_slots", [0, 4])
def test_a_sound_context_passes(mamba_slots: int) -> None:
    """C1, C3, E2, E3: with requests in every region, and in a step."""
    context = make_context(mamba_slots)
    assert [live.region for live in context._rows] == list(Region)
    assert len(set(context.request_to_kv_block_ids[:2, 0].tolist())) == 1
    check_dynamic_context(context)
    context.begin_step()
    check_dynamic_context(context)


def make_pool(policy: PrefixCachingEvictionPolicy = LRU) -> KVBlockAllocator:
    """Blocks 0, 1: a cached chain; 2: registered and held; 3: held; 4 to 7: free; 8: the dummy."""
    allocator = KVBlockAllocator(
        SimpleNamespace(prefix_cache_lru_clock=3), 9, prefix_caching_eviction_policy=policy
    )
    allocator.allocate_memory_blocks(4)
    allocator.register_kv_block_hashes([0, 1, 2], [10, 11, 12], [0, 10, 0])
    if policy is LRU:
        allocator.release_memory_blocks([0, 1])
    return allocator


@pytest.mark.parametrize("policy", [LRU, REF_ZERO])
def test_sound_blocks_pass(policy: PrefixCachingEvictionPolicy) -> None:
    """C1, C3: with blocks in every place."""
    allocator = make_pool(policy)
    check_kv_block_allocator(allocator)
    assert allocator.pool_avail == 4


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


NAMED = {"Region": Region, "REF_ZERO": REF_ZERO, "Snapshots": Snapshots, "np": np}
OF_A_CONTEXT = [
    ("it.kv_block_allocator.pool_avail -= 1", "C1", "not free, referenced or cached"),
    ("it.mamba_slot_allocator._tracker.free_count -= 1", "C2", "not free, mapped or in hand"),
    ("it._rows._requests[1].row = 2", "E2", "in row 1 believes to be in row 2"),
    ("it.request_to_kv_block_ids[1, 1] = 0", "E2", r"rows \[1\] of the table"),
    ("it.request_to_kv_block_ids[4, 0] = 1", "E2", r"rows \[4\] of the table"),
    (
        "it.kv_block_allocator.block_timestamps[1] = it.prefix_cache_lru_clock + 1",
        "X3",
        r"blocks \[1\] have stamps",
    ),
    ("it.mamba_metadata.request_to_mamba_state_idx[1] = 0", "E2", "live states are not free or held"),
    ("it._rows._free_states.clear()", "E3", "live states .* are lost"),
    ("it.mamba_metadata.request_to_mamba_state_idx[1] = -1", "E3", r"live states \[1\] are lost"),
    ("it.mamba_metadata.request_to_mamba_state_idx[4] = 1", "E2", "without a request have live states"),
    ("del it._live_by_id[id(it._rows._requests[2].req)]", "E3", "not those that were added"),
    ("it._rows._swap(*it._rows._requests[:2])", "E2", "out of order"),
    ("it._rows._counts[Region.WAITING] += 1", "E2", "counts are"),
    ("it._rows._requests[1].computed = 4", "E2", "row 1 is in DECODE, not WAITING"),
    ("it._rows._requests[3].chunk = 1", "E2", "row 3 is in WAITING, not PREFILL"),
    ("it.kv_block_allocator.paused_limit = 1", "C1", "keep 2 blocks, the limit is 1"),
    ("it.kv_block_allocator.retain_memory_blocks([0])", "E3", r"blocks \[0\] are referenced"),
    (
        "it._rows._requests[1].blocks[1] = 0; it.request_to_kv_block_ids[1, 1] = 0",
        "E2",
        "row 1 has a block twice",
    ),
    ("it._rows._requests[1].computed = 9", "C1", "has room for 8 tokens and needs 9"),
    ("it._rows._requests[2].matched = 1", "C3", "not registered below -1"),
    ("it._index._tokens[0, 0] = 99", "C3", "block 0 holds tokens of hash"),
]
OF_BLOCKS = [
    ("it.pool_avail -= 1", "C1", "not free, referenced or cached"),
    ("it._free[it.pool_avail] = it._free[0]; it.pool_avail += 1", "C1", "not free, referenced or cached"),
    ("it._free[it.pool_avail] = 1; it.pool_avail += 1", "C1", "not free, referenced or cached"),
    ("it._ref_counts[8] = 1", "C1", "not free, referenced or cached"),
    ("it._ref_counts[5] = -1", "C1", "block 5 has -1 references"),
    ("it._is_free[7] = False", "C1", "are marked free"),
    ("it.prefix_caching_eviction_policy = REF_ZERO", "C1", "are cached without a reference"),
    ("it.enable_prefix_caching = False", "C1", "a block is registered"),
    ("del it.kv_hash_to_block_id[12]", "C3", "but the index has"),
    ("it.kv_hash_to_block_id[12] = 3", "C3", "but the index has"),
    (
        "it._known.of_block[2] = -12; it.kv_hash_to_block_id.pop(12); it.kv_hash_to_block_id[-12] = 2",
        "C3",
        "are not positive",
    ),
    ("del it._forest._children[2]", "C1", "the forest differs"),
    ("it._forest.parents[1] = 3", "C1", r"\[1\] have parents that are not registered"),
    ("it._forest._children[0].clear()", "C1", "disagree"),
    ("it._forest.parents[3] = 2", "C1", "not registered has a parent"),
    ("it._forest.parents[0] = 1; it._forest._children[1][0] = None", "C1", "its own ancestor"),
    ("it._forest._active_children[0] = 1", "C1", "has 0 active children and counts 1"),
    ("it._forest._idle.remove(0)", "C1", "are kept as such"),
    ("it._forest._queued_at.clear()", "C1", "may be evicted, set"),
    ("it._forest._queued_at[0] = 3", "C1", "may be evicted"),
    ("it._forest._heap.clear()", "C1", "not in the heap"),
    ("it._timestamps[1] = 1", "C1", "later than its stamp 1"),
]
OF_SLOTS = [
    ("it._tracker.free_count -= 1", "C2", "not free, mapped or in hand"),
    (
        "it._tracker._free[2] = it.get_slot(0); it._tracker.free_count += 1",
        "C2",
        "not free, mapped or in hand",
    ),
    ("it._tracker._free[1] = it._tracker._free[0]", "C2", "not free, mapped or in hand"),
    ("it._tracker.slot_of[3] = it.get_slot(2)", "C2", "slots the blocks"),
    ("it._tracker.block_of[it.get_slot(2)] = -1", "C2", "slots the blocks"),
    ("del it.hash_to_block_id[10]", "C4", "the index has"),
    ("it._tracker.name(3, 13)", "C4", "which has no slot"),
    ("it._tracker.name(2, 12)", "C4", "registered under -1"),
    (
        "one = np.array([5]); it._tracker.give(it._tracker.claim(1, one[:0]), one, one)",
        "C6",
        r"free blocks \[5\] have slots",
    ),
    (
        "it._offsets.of_request[1] = Snapshots((4, 2), (8, 6), (1, 0), -1, 9)",
        "C8",
        "not ascending and positive",
    ),
    (
        "it._offsets.of_request[1] = Snapshots((0, 2), (4, 6), (0, 1), -1, 9)",
        "C8",
        "not ascending and positive",
    ),
    ("it._offsets.of_request[1] = Snapshots((2, 4), (6, 8), (0,), -1, 9)", "C8", r"for blocks \(0,\)"),
]


@pytest.mark.parametrize(
    ("make", "check", "damage", "law", "message"),
    [
        *((make_context, check_dynamic_context, *case) for case in OF_A_CONTEXT),
        *((make_pool, check_kv_block_allocator, *case) for case in OF_BLOCKS),
        *((make_slots, check_mamba_slot_allocator, *case) for case in OF_SLOTS),
    ],
)
def test_damage_is_noticed(
    make: Callable[[], Any], check: Callable[[Any], None], damage: str, law: str, message: str
) -> None:
    """Each check is seen to fail, and names its law."""
    it = make()
    exec(damage, {**NAMED, "it": it})
    assert law_of(check, it, message) == law


def test_a_slot_that_is_not_in_hand_is_noticed() -> None:
    """C2: the caller says what it has."""
    with pytest.raises(InvariantViolation, match=r"in hand \[4\]"):
        check_mamba_slot_allocator(make_slots(), in_hands=[4])
