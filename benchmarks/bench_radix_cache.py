"""The times of match, insert and evict in a `RadixCache` of realistic shape.

T1a: a full hit of 131,072 tokens cached as one node; T1b: the same cached in 256 inserts of growing
prefixes; T1c: T1a with the key as a Python list; T2: an insert of 131,072 tokens whose first half is
cached, duplicates freed; T4: one eviction, and evicting everything, in trees of many leaves below the root.
Allocators do not check ownership here. Each round asserts its result.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.notes import note
from pymllm.mem_cache import RadixCache, RadixKey, TokenToKVPoolAllocator

TOKENS = 131_072
PIECES = 256
LEAF = 16
PAGES = pytest.mark.parametrize("page_size", [1, 16, 64], ids=lambda size: f"p{size}")


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out: its pauses over hundreds of thousands of nodes are not the cache's."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make_cache(page_size: int, capacity: int) -> tuple[RadixCache, TokenToKVPoolAllocator]:
    pool = TokenToKVPoolAllocator(capacity, "cpu", page_size, check_ownership=False)
    return RadixCache(page_size, token_to_kv_pool_allocator=pool), pool


def tokens_of(seed: int, length: int = TOKENS) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 128_000, length).astype(np.int64)


def alloc(pool: TokenToKVPoolAllocator, tokens: int) -> torch.Tensor:
    slots = pool.alloc(tokens)
    assert slots is not None
    return slots


@PAGES
@pytest.mark.parametrize("pieces", [1, PIECES], ids=["T1a", "T1b"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_full_hit(benchmark: BenchmarkFixture, page_size: int, pieces: int, dtype: str) -> None:
    """T1a, T1b: match everything, indices included, with the key in a buffer."""
    cache, pool = make_cache(page_size, 2 * TOKENS)
    tokens = tokens_of(1).astype(dtype)
    slots = alloc(pool, TOKENS)
    for length in range(TOKENS // pieces, TOKENS + 1, TOKENS // pieces):
        cache.insert(RadixKey(tokens[:length]), slots[:length])
    hit = benchmark.pedantic(lambda: cache.match_prefix(RadixKey(tokens)), rounds=200, warmup_rounds=5)
    assert torch.equal(hit.indices, slots.to(torch.int64))
    note(benchmark, hit_tokens=hit.prefix_len, nodes=pieces)


@PAGES
def test_full_hit_of_a_list(benchmark: BenchmarkFixture, page_size: int) -> None:
    """T1c: T1a, where the key is a list of Python integers."""
    cache, pool = make_cache(page_size, 2 * TOKENS)
    tokens = tokens_of(1)
    slots = alloc(pool, TOKENS)
    cache.insert(RadixKey(tokens), slots)
    listed = tokens.tolist()
    hit = benchmark.pedantic(lambda: cache.match_prefix(RadixKey(listed)), rounds=100, warmup_rounds=3)
    assert torch.equal(hit.indices, slots.to(torch.int64))
    note(benchmark, hit_tokens=hit.prefix_len)


@PAGES
def test_insert_with_half_cached(benchmark: BenchmarkFixture, page_size: int) -> None:
    """T2: insert a key whose first half is there, without a match before, and free the duplicates."""
    cache, pool = make_cache(page_size, 4 * TOKENS)
    tokens = tokens_of(1)

    def set_up() -> tuple[tuple[torch.Tensor], dict[str, Any]]:
        cache.reset()
        half = TOKENS // 2
        cache.insert(RadixKey(tokens[:half]), alloc(pool, half))
        return (alloc(pool, TOKENS),), {}

    def insert(slots: torch.Tensor) -> None:
        result = cache.insert(RadixKey(tokens), slots)
        pool.free(slots[: result.prefix_len])
        assert result.adopted == ((TOKENS // 2, TOKENS),)

    benchmark.pedantic(insert, setup=set_up, rounds=50, warmup_rounds=3)
    assert cache.total_size() + pool.available_size() == 4 * TOKENS
    note(benchmark, adopted_tokens=TOKENS // 2)


def make_leaves(leaves: int) -> tuple[RadixCache, TokenToKVPoolAllocator]:
    cache, pool = make_cache(1, leaves * LEAF)
    tokens = np.arange(leaves * LEAF, dtype=np.uint32).reshape(leaves, LEAF)
    for row in tokens:
        cache.insert(RadixKey(row), alloc(pool, LEAF))
    return cache, pool


@pytest.mark.parametrize("leaves", [2_000, 20_000, 200_000])
def test_evict_one(benchmark: BenchmarkFixture, leaves: int) -> None:
    """T4: evict one of many unlocked leaves of 16 tokens below the root."""
    cache, pool = make_leaves(leaves)
    rounds = 500
    result = benchmark.pedantic(cache.evict, args=(1,), rounds=rounds, warmup_rounds=5)
    assert result.full_evicted == LEAF
    assert cache.total_size() + pool.available_size() == leaves * LEAF
    note(benchmark, leaves=leaves)


@pytest.mark.parametrize("leaves", [20_000, 200_000])
def test_evict_everything(benchmark: BenchmarkFixture, leaves: int) -> None:
    """T4: evict all leaves in one call."""

    def set_up() -> tuple[tuple[RadixCache], dict[str, Any]]:
        return (make_leaves(leaves)[0],), {}

    def evict(cache: RadixCache) -> None:
        assert cache.evict(leaves * LEAF).full_evicted == leaves * LEAF
        assert cache.total_size() == 0

    benchmark.pedantic(evict, setup=set_up, rounds=3)
    note(benchmark, leaves=leaves)


@pytest.mark.parametrize("listens", [False, True], ids=["unheard", "heard"])
@pytest.mark.parametrize("page_size", [1, 16], ids=lambda size: f"p{size}")
def test_events(benchmark: BenchmarkFixture, page_size: int, listens: bool) -> None:
    """T5: insert and evict 1,000 leaves of 16 tokens, with somebody who takes the events, and without."""
    cache, pool = make_cache(page_size, 1000 * LEAF)
    if listens:
        cache.keep_events()
        assert len(cache.take_events()) == 1  # that nothing is cached
    keys = [RadixKey(tokens_of(seed, LEAF)) for seed in range(1000)]

    def turn() -> int:
        for key in keys:
            cache.insert(key, alloc(pool, LEAF))
        assert cache.evict(1000 * LEAF).full_evicted == 1000 * LEAF
        return len(cache.take_events())

    told = benchmark.pedantic(turn, rounds=30, warmup_rounds=2)
    assert told == (2000 if listens else 0)
    note(benchmark, events=told)
