"""`ChunkCache` answers everything and caches nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pymllm.mem_cache.base_prefix_cache import BasePrefixCache, EvictResult, RadixKey
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.memory_pool import TokenToKVPoolAllocator


@pytest.fixture
def pool() -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(8, "cpu", 1, True)


@pytest.mark.notices("B103")
def test_insert_adopts_nothing_and_frees_nothing(pool: TokenToKVPoolAllocator) -> None:
    """R4: every slot stays the caller's, who frees them all."""
    cache = ChunkCache(pool)
    slots = pool.alloc(3)
    result = cache.insert(RadixKey([1, 2, 3]), slots, prev_prefix_len=1, swa_evicted_seqlen=2)
    assert (result.prefix_len, result.adopted, result.mamba_exist) == (0, (), False)
    cache.reset()
    assert pool.available_size() == 5
    pool.free(slots)
    assert pool.available_size() == 8


def test_evictions_and_holds_do_nothing(pool: TokenToKVPoolAllocator) -> None:
    """An engine need not know that caching is off."""
    cache = ChunkCache(pool)
    node = cache.match_prefix(RadixKey([1])).last_node
    token = cache.inc_lock_ref(node)
    assert token is None
    cache.dec_lock_ref(node, swa_boundary_id=token)
    assert cache.evict(100, 100) == EvictResult(0, 0, 0)


def test_cache_works_without_a_pool() -> None:
    """Both constructor arguments may be left out."""
    cache = ChunkCache()
    assert isinstance(cache, BasePrefixCache)
    assert cache.insert(RadixKey([1]), torch.tensor([1])).adopted == ()
    assert cache.match_prefix(RadixKey([1])).indices.device == torch.device("cpu")


def test_device_of_empty_matches_is_the_pools() -> None:
    """Indices live on the allocator's device, and on ``device`` without one."""
    pool = SimpleNamespace(device=torch.device("meta"), free=len)
    assert ChunkCache(pool).match_prefix(RadixKey([1])).indices.device.type == "meta"
    assert ChunkCache(device="meta").match_prefix(RadixKey([1])).indices.device.type == "meta"
