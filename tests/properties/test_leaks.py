"""A cache that serves for long keeps nothing of what is over: by slots, tensors, reserve and device."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from pymllm.instrument.leaks import Layer, LeakVerdict, Outcome
from pymllm.mem_cache import RadixCache, RadixKey, TokenToKVPoolAllocator

SIZE = 512


@pytest.mark.gpu_memory_limit("64 MiB")
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_cache_in_use_leaks_in_no_layer(
    kv_device: torch.device, page_size: int, leak_check: Callable[..., LeakVerdict]
) -> None:
    """R1, A3, X1: whatever was hit, held and evicted, each slot is free or the cache's when nothing runs."""
    pool = TokenToKVPoolAllocator(SIZE, kv_device, page_size=page_size, check_ownership=True)
    cache = RadixCache(page_size=page_size, token_to_kv_pool_allocator=pool)
    draw = random.Random(page_size)

    def serve() -> None:
        for _ in range(20):
            key = RadixKey([draw.randrange(3) for _ in range(draw.randrange(8, 64))])
            hit = cache.match_prefix(key)
            cache.inc_lock_ref(hit.last_node)
            missing = -(-(len(key) - hit.prefix_len) // page_size) * page_size
            if pool.available_size() < missing:
                cache.evict(missing - pool.available_size())
            slots = pool.alloc(missing)
            assert slots is not None
            whole = torch.cat([hit.indices.to(slots.dtype), slots])
            aligned = len(key) // page_size * page_size
            known = cache.insert(RadixKey(key[:aligned].token_ids), whole[:aligned]).prefix_len
            pool.free(torch.cat([whole[hit.prefix_len : known], whole[aligned:]]))
            cache.dec_lock_ref(hit.last_node)

    verdict = leak_check(serve, slots=lambda: SIZE - pool.available_size() - cache.evictable_size())
    assert cache.evictable_size() > 0
    assert verdict.of(Layer.SLOTS).outcome is Outcome.NO_LEAK
