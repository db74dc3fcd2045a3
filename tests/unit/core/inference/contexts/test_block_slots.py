"""Slots of blocks: who gets one, who loses one, and what a refused call leaves alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.block_slots import oldest
from pymllm.core.inference.contexts.kv_block_allocator import PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotCapacityError
from pymllm.errors import CapacityError, UsageError

MakeContext = Callable[..., Any]
LRU, REF_ZERO = PrefixCachingEvictionPolicy.LRU, PrefixCachingEvictionPolicy.REF_ZERO


def cache_all(context: Any, stamps: dict[int, int]) -> None:
    """Stamp blocks and let every reference go; under LRU those that are registered stay."""
    kv = context.kv_block_allocator
    for block, stamp in stamps.items():
        context.prefix_cache_lru_clock = stamp
        kv.update_timestamps([block])
    kv.release_memory_blocks(list(stamps))


def test_the_first_slot_and_the_first_block_are_like_all_others(make_context: MakeContext) -> None:
    """C5, C6: block 0 may lose its slot, and a block with slot 0 needs no other."""
    context = make_context()
    slots = context.slots
    context.register([0, 1, 2])
    assert slots.allocate_slots_batch([1, 2, 0]) == [0, 1, 2]
    for block in (0, 1, 2):
        assert slots._which_fit([block]) == [True]
    assert slots._which_fit([1, 3]) == [True, False]
    cache_all(context, {0: 3, 1: 2, 2: 1})
    assert slots._which_fit([3, 4, 5, 6]) == [True, True, True, False]
    assert slots.allocate_slots_batch([3, 4, 5]) == [1, 0, 2]


@pytest.mark.parametrize(
    "kind",
    [
        list,
        tuple,
        np.array,
        torch.tensor,
        pytest.param(lambda b: torch.tensor(b).cuda(), marks=pytest.mark.gpu),
    ],
)
def test_blocks_may_be_any_integers(make_context: MakeContext, kind: Callable[[list[int]], Any]) -> None:
    """Specification, blocks: any integers of any dtype."""
    slots = make_context().slots
    assert slots.allocate_slots_batch(kind([1, 2])) == slots.allocate_slots_batch([1, 2])


@pytest.mark.notices("B85")
def test_an_allocation_evicts_none_of_its_own_blocks(make_context: MakeContext) -> None:
    """C5: a block of the call that has a slot keeps it, although it would be the next to go."""
    context = make_context(max_slots=2)
    context.slots.allocate_slots_batch([6, 1])
    context.register([6, 1])
    cache_all(context, {6: 1, 1: 2})
    before = context.tracker()
    with pytest.raises(MambaSlotCapacityError):
        context.slots.allocate_slots_batch([6, 2, 6, 1])
    assert context.tracker() == before
    old = context.slots.get_slot(6)
    assert context.slots.allocate_slots_batch([6, 2, 6])[0] == old
    assert not context.slots.has_state(1)


@pytest.mark.notices("B82")
@pytest.mark.parametrize("missing", [1, 2])
def test_what_cannot_be_met_takes_nothing(make_context: MakeContext, missing: int) -> None:
    """C5: free slots are not popped, nor states evicted, before it is clear that they suffice."""
    context = make_context(max_slots=3)
    context.slots.allocate_slots_batch([0, 1])
    context.register([1])
    context.slots.register_block_hashes_batch([1], [1001])
    cache_all(context, {1: 1})
    before = context.tracker()
    with pytest.raises(CapacityError):
        context.slots.allocate_slots_batch([2, 3, 4, 5][: 2 + missing])
    with pytest.raises(RuntimeError):
        context.slots._evict_lru_slots_batch(1 + missing)
    assert context.tracker() == before
    assert len(context.slots.allocate_slots_batch([2, 3])) == 2


@pytest.mark.notices("B128")
def test_a_deregistered_block_takes_only_its_own_hash(make_context: MakeContext) -> None:
    """C4: the set of hashes may name one that another block has meanwhile."""
    context = make_context()
    context.slots.allocate_slots_batch([0, 1])
    hashes = context.register([0, 1])
    context.slots.register_block_hashes_batch([0, 1], hashes)
    context.slots.on_kv_blocks_deregistered([0, 6], {hashes[0], hashes[1], 77})
    assert context.slots.hash_to_block_id == {hashes[1]: 1}
    assert not context.slots.has_state(0)
    before = context.tracker()
    with pytest.raises(IndexError):
        context.slots.on_kv_blocks_deregistered([1, 9], set())
    assert context.tracker() == before


def test_a_table_may_be_a_list(make_context: MakeContext) -> None:
    """Specification, blocks: any object that has the attributes, without a word on how it keeps them."""
    context = make_context(max_slots=2)
    context.slots.allocate_slots_batch([4, 2])
    context.kv_block_allocator = type("Lists", (), {})()
    context.kv_block_allocator.block_ref_counts = [0] * 9
    context.kv_block_allocator.block_timestamps = [9, 9, 3, 9, 2, 9, 9, 9, 9]
    context.kv_block_allocator.block_hashes = [-1] * 8 + [7]
    context.slots.allocate_slots_batch([5])
    assert [context.slots.has_state(block) for block in (2, 4, 5)] == [True, False, True]
    with pytest.raises(UsageError):
        context.slots.register_block_hashes_batch([5], [7])
    for value in (7, 8):
        context.kv_block_allocator.block_hashes[5] = value
        context.slots.register_block_hashes_batch([5], [value])
    assert context.slots.hash_to_block_id == {8: 5}


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 300, 511, 512])
@pytest.mark.parametrize("spread", [3, 10_000])
def test_the_oldest_are_found_without_sorting_all(count: int, spread: int) -> None:
    """C6: many equal stamps or few, few wanted or nearly all."""
    draw = random.Random(count * spread)
    timestamps = np.array([draw.randrange(spread) for _ in range(2000)])
    blocks = np.array(draw.sample(range(2000), 512), np.int32)
    expected = sorted(blocks.tolist(), key=lambda block: (timestamps[block], block))[:count]
    found = oldest(blocks, timestamps, count)
    assert found.tolist() == expected
    assert not np.shares_memory(found, blocks), "the trackers change while it is read"


def test_a_sample_that_misleads_costs_time_and_nothing_else() -> None:
    """C6: where every sixteenth stamp is older than all others."""
    blocks = np.arange(512, dtype=np.int32)
    timestamps = np.where(blocks % 16 == 0, blocks - 1000, blocks)
    expected = sorted(blocks.tolist(), key=lambda block: (timestamps[block], block))[:40]
    assert oldest(blocks, timestamps, 40).tolist() == expected
