"""Caches and pools are made by name, and can be looked into."""

from __future__ import annotations

import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.memory_pool import GDNPool, SWATokenToKVPoolAllocator, TokenToKVPoolAllocator
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_pools import check_allocator, make_engine_pools


def test_names_make_caches_over_one_allocator() -> None:
    """Without a window there is no SWA half."""
    radix = make_engine_pools(EngineConfig(capacity=8, max_context=8).rounded())
    assert isinstance(radix.kind.cache, RadixCache)
    assert isinstance(radix.allocator, TokenToKVPoolAllocator)
    assert radix.kind.cache.pool is radix.allocator
    assert radix.swa_allocator is None
    assert radix.full_available_size() == 8
    chunk = make_engine_pools(EngineConfig(cache="chunk", capacity=8, max_context=8).rounded())
    assert isinstance(chunk.kind.cache, ChunkCache)
    chunk.kind.check()
    assert chunk.kind.cached_slots() == chunk.kind.path_slots(None) == []


def test_window_makes_both_halves() -> None:
    """A7: with a window every slot has an SWA half, of a pool of its own size."""
    config = EngineConfig(capacity=16, page_size=4, sliding_window_size=4, swa_capacity=8, max_context=8)
    pools = make_engine_pools(config.rounded())
    assert isinstance(pools.swa_allocator, SWATokenToKVPoolAllocator)
    assert pools.swa_allocator is pools.allocator
    assert (pools.full_available_size(), pools.allocator.available_size()) == (16, 8)


def test_cache_of_states_comes_with_a_pool_of_them() -> None:
    """P1, M7: one working state per row, track slots behind them, and nodes that say which they have."""
    pools = make_engine_pools(
        EngineConfig(cache="mamba", capacity=8, max_context=8, max_running=3, track_slots=2).rounded()
    )
    kind, states = pools.kind, pools.kind.state_pool
    assert isinstance(kind.cache, MambaRadixCache)
    assert isinstance(states, GDNPool)
    assert kind.cache.mamba_pool is states
    assert (states.max_reqs, states.max_track_slots) == (pools.rows.size, 2) == (3, 2)
    slots, track_slot = pools.allocator.alloc(3), states.alloc_track_slot()
    assert slots is not None
    assert track_slot == 4
    last = kind.cache.insert(RadixKey([1, 2, 3]), slots, mamba_value=torch.tensor([track_slot])).last_node
    upper = kind.cache.insert(RadixKey([1, 2]), slots[:2]).last_node
    assert kind.cached_states() == [kind.state_of(last)] == [4]
    assert kind.state_of(upper) is None
    assert torch.cat(kind.path_slots(last)).tolist() == slots.tolist()
    assert sorted(torch.cat(kind.cached_slots()).tolist()) == sorted(slots.tolist())
    kind.check()
    states._held_track_slots.clear()
    with pytest.raises(InvariantViolation):
        kind.check()


def test_other_caches_keep_no_states() -> None:
    """A cache without states needs no pool of them."""
    kind = make_engine_pools(EngineConfig(capacity=8, max_context=8).rounded()).kind
    assert (kind.state_pool, kind.cached_states(), kind.state_of(kind.cache)) == (None, [], None)


def test_unknown_cache_is_refused_with_the_known_names() -> None:
    """X1: the message says what to choose from."""
    with pytest.raises(ValueError, match="'lru'; choose one of chunk, mamba, radix"):
        make_engine_pools(EngineConfig(cache="lru"))


def test_tree_can_be_looked_into() -> None:
    """E2: who owns what is read from the nodes and not from counters."""
    pools = make_engine_pools(EngineConfig(capacity=8, max_context=8).rounded())
    cache, slots = pools.kind.cache, pools.allocator.alloc(5)
    assert slots is not None
    cache.insert(RadixKey([1, 2, 3]), slots[:3])
    last = cache.insert(RadixKey([1, 2, 4]), torch.cat([slots[:2], slots[4:]])).last_node
    assert sorted(torch.cat(pools.kind.cached_slots()).tolist()) == [1, 2, 3, 5]
    assert torch.cat(pools.kind.path_slots(last)).tolist() == [1, 2, 5]
    pools.kind.check()


@pytest.mark.parametrize("window", [None, 4])
def test_damaged_allocator_is_noticed(window: int | None) -> None:
    """A2: the check that an engine runs can fail."""
    pools = make_engine_pools(EngineConfig(capacity=8, max_context=8, sliding_window_size=window).rounded())
    check_allocator(pools.allocator)
    store = pools.swa_allocator._swa if pools.swa_allocator else pools.allocator._store  # type: ignore[union-attr]
    store.free_pages -= 1
    with pytest.raises(InvariantViolation):
        check_allocator(pools.allocator)
