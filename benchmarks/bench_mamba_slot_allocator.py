"""The time to give slots to blocks, to take them back, and to evict for them.

T7: 16,384 blocks, 4,096 slots, LRU, batches of 1, 64 and 1,024 blocks. `named` says whether cached states are
known under hashes, which evicting and invalidating have to forget.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from pymllm.core.inference.contexts import KVBlockAllocator, MambaSlotAllocator
from pymllm.invariants.blocks import check_mamba_slot_allocator

BLOCKS, SLOTS, SEED, ROUNDS = 16_384, 4_096, 7, 300
BATCHES = [1, 64, 1024]


def make_slots(draw: random.Random) -> MambaSlotAllocator:
    """Return slots over blocks that are all cached, stamped in random order."""
    context = SimpleNamespace(prefix_cache_lru_clock=0, prefix_caching_eviction_policy="lru", max_requests=8)
    blocks = context.kv_block_allocator = KVBlockAllocator(context, BLOCKS + 1)
    ids = blocks.allocate_memory_blocks(BLOCKS)
    assert ids is not None
    blocks.register_kv_block_hashes(ids, ids + 1, torch.zeros_like(ids))
    for clock, block in enumerate(draw.sample(range(BLOCKS), BLOCKS)):
        context.prefix_cache_lru_clock = clock
        blocks.update_timestamps([block])
    blocks.release_memory_blocks(ids)
    return MambaSlotAllocator(context, SLOTS, 1, (1,), (1,), torch.float32, torch.float32)


def name(slots: MambaSlotAllocator, blocks: list[int], named: bool) -> None:
    """Make the states of blocks known under the hashes that the blocks have."""
    if named:
        slots.register_block_hashes_batch(blocks, [block + 1 for block in blocks])


def time_batches(
    benchmark: BenchmarkFixture,
    act: Callable[[list[int]], object],
    before: Callable[[], list[int]],
) -> None:
    """Time ``act`` on one batch after the other; what comes before each is not timed."""
    benchmark.pedantic(act, setup=lambda: ((before(),), {}), rounds=ROUNDS, warmup_rounds=20)


@pytest.mark.parametrize("batch", BATCHES)
def test_allocate(benchmark: BenchmarkFixture, batch: int) -> None:
    """T7: 10, 30 and 250 us, free slots being there."""
    draw = random.Random(SEED)
    slots = make_slots(draw)
    last: list[int] = []

    def next_batch() -> list[int]:
        slots._invalidate_blocks_batch(last)
        last[:] = draw.sample(range(BLOCKS), batch)
        return last

    time_batches(benchmark, slots.allocate_slots_batch, next_batch)
    assert slots.free_count == SLOTS - batch
    check_mamba_slot_allocator(slots)


@pytest.mark.parametrize("named", [False, True], ids=["plain", "named"])
@pytest.mark.parametrize("batch", BATCHES)
def test_invalidate(benchmark: BenchmarkFixture, batch: int, named: bool) -> None:
    """T7: 10, 20 and 60 us."""
    draw = random.Random(SEED)
    slots = make_slots(draw)

    def next_batch() -> list[int]:
        given = draw.sample(range(BLOCKS), batch)
        slots.allocate_slots_batch(given)
        name(slots, given, named)
        return given

    time_batches(benchmark, slots._invalidate_blocks_batch, next_batch)
    assert slots.free_count == SLOTS
    assert slots.hash_to_block_id == {}
    check_mamba_slot_allocator(slots)


@pytest.mark.parametrize("named", [False, True], ids=["plain", "named"])
@pytest.mark.parametrize("batch", BATCHES)
def test_allocate_with_eviction(benchmark: BenchmarkFixture, batch: int, named: bool) -> None:
    """T7: 40, 80 and 300 us, no slot being free."""
    draw = random.Random(SEED)
    slots = make_slots(draw)
    numbers = np.random.default_rng(SEED)
    last = draw.sample(range(BLOCKS), SLOTS)
    slots.allocate_slots_batch(last)

    def next_batch() -> list[int]:
        name(slots, last, named)
        # With NumPy, so that choosing leaves the processor's caches as a server would.
        without = np.flatnonzero(slots.block_to_slot.numpy()[:-1] < 0)
        last[:] = numbers.choice(without, batch, replace=False, shuffle=False).tolist()
        return last

    time_batches(benchmark, slots.allocate_slots_batch, next_batch)
    assert slots.free_count == 0
    assert all(slots.has_state(block) for block in last)
    check_mamba_slot_allocator(slots)
