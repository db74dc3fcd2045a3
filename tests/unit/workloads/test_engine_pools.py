"""Configurations refuse what cannot run; caches and pools are made by name, and can be looked into."""

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


def test_capacities_are_cut_down_to_whole_pages() -> None:
    """The rounded sizes are what the engine uses and reports."""
    config = EngineConfig(page_size=16, capacity=1000, sliding_window_size=64, swa_capacity=500).rounded()
    assert (config.capacity, config.swa_capacity, config.max_context) == (992, 496, 992)


def test_window_half_is_as_large_as_the_other_by_default() -> None:
    """A window without its own capacity takes the full one; without a window there is none."""
    windowed = EngineConfig(page_size=16, capacity=1000, sliding_window_size=64).rounded()
    assert windowed.swa_capacity == 992
    assert EngineConfig().rounded().swa_capacity is None


def test_states_are_four_per_running_request_by_default() -> None:
    """Only a cache of states has track slots, and none of them is a number that may be asked for."""
    assert EngineConfig(cache="mamba", max_running=8).rounded().track_slots == 32
    assert EngineConfig(cache="mamba", track_slots=0).rounded().track_slots == 0
    assert EngineConfig().rounded().track_slots is None


def test_cache_of_states_has_no_window() -> None:
    """X1: nor have the other caches any states."""
    with pytest.raises(ValueError, match="sliding_window_size is 8; cache 'mamba' has no window"):
        EngineConfig(cache="mamba", sliding_window_size=8)
    with pytest.raises(ValueError, match="track_slots is for caches 'blocks' and 'mamba'; cache 'radix'"):
        EngineConfig(track_slots=8)
    with pytest.raises(ValueError, match="track_slots is -1"):
        EngineConfig(cache="mamba", track_slots=-1)


def test_blocks_have_sizes_of_their_own() -> None:
    """Paused requests may keep whole blocks of the pool, and other caches have no such options."""
    config = EngineConfig(cache="blocks", page_size=16, capacity=1000, max_running=8).rounded()
    assert (config.track_slots, config.mamba_chunk_size, config.eviction_policy) == (32, 128, "lru")
    assert config.paused_capacity == 240
    given = EngineConfig(cache="blocks", page_size=16, capacity=1000, paused_capacity=9999).rounded()
    assert given.paused_capacity == 992
    plain = EngineConfig().rounded()
    assert plain.mamba_chunk_size is plain.eviction_policy is plain.paused_capacity is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mamba_chunk_size": 2}, "mamba_chunk_size is for cache 'blocks'; cache 'mamba' has no blocks"),
        (
            {"cache": "chunk", "eviction_policy": "lru"},
            "eviction_policy is 'lru'; cache 'chunk' evicts nothing",
        ),
        ({"paused_capacity": 0}, "paused_capacity is for cache 'blocks'"),
        ({"cache": "blocks", "mamba_chunk_size": 0}, "mamba_chunk_size is 0; it must be above 0"),
        ({"cache": "blocks", "eviction_policy": "fifo"}, "'fifo'; it must be one of .'lru', 'ref_zero'"),
        ({"cache": "blocks", "paused_capacity": -1}, "paused_capacity is -1; it must be 0 or more"),
        ({"cache": "blocks", "sliding_window_size": 4}, "cache 'blocks' has no window"),
    ],
)
def test_what_blocks_cannot_have_is_refused(changes: dict[str, object], words: str) -> None:
    """X1: nor may anything else have what is theirs."""
    with pytest.raises(ValueError, match=words):
        EngineConfig(**({"cache": "mamba"} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"page_size": 0},
        {"capacity": 0},
        {"capacity": 15, "page_size": 16},
        {"max_running": 0},
        {"max_context": 0},
        {"chunk_tokens": 0},
        {"iteration_ms": 0.0},
        {"iteration_ms": float("nan")},
        {"sliding_window_size": 0},
        {"sliding_window_size": 8, "swa_capacity": 0},
        {"sliding_window_size": 8, "swa_capacity": 15, "page_size": 16},
        {"swa_capacity": 8},
        {"decode_headroom": -1},
        {"check_every": -1},
    ],
)
def test_impossible_configuration_is_refused(changes: dict[str, float]) -> None:
    """X1: the message names the field that is out of bounds."""
    with pytest.raises(
        ValueError, match=next(reversed(changes)) if len(changes) == 1 else "must hold|above 0"
    ):
        EngineConfig(**changes)  # type: ignore[arg-type]


def test_names_make_caches_over_one_allocator() -> None:
    """Without a window there is no SWA half."""
    radix = make_engine_pools(EngineConfig(capacity=8, max_context=8).rounded())
    assert isinstance(radix.kind.cache, RadixCache)
    assert isinstance(radix.allocator, TokenToKVPoolAllocator)
    assert radix.kind.cache.pool is radix.allocator
    assert radix.swa_allocator is None
    assert radix.full_available_size() == 8
    kind = radix.kind
    assert (kind.state_pool, kind.cached_states(), kind.state_of(kind.cache)) == (None, [], None)
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
