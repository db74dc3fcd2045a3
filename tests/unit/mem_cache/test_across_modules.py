"""Promises that no test of a single module makes, but whose breach is a known bug."""

from __future__ import annotations

import pytest
import torch

from pymllm.mem_cache import EvictResult, KVPool, RadixCache, RadixKey, SWATokenToKVPoolAllocator
from pymllm.workloads.engine import Engine, EngineConfig
from pymllm.workloads.request import Request
from pymllm.workloads.source import TraceSource

WINDOW = 2


def windowed_cache(*keys: list[int]) -> RadixCache:
    """Make a cache whose slots are the tokens themselves, and insert keys in order."""
    cache = RadixCache(sliding_window_size=WINDOW)
    for key in keys:
        cache.insert(RadixKey(key))
    return cache


def cached(cache: RadixCache, *tokens: int) -> list[int]:
    """Match, and list the slots of what was found."""
    return cache.match_prefix(RadixKey(list(tokens))).indices.tolist()


@pytest.mark.notices("B05")
def test_windowed_branch_grows_from_the_common_prefix() -> None:
    """S7, R9: a key that leaves the path inside a node hangs below the part that it shares."""
    cache = windowed_cache([1, 2, 3, 4, 5, 6])
    cache.insert(RadixKey([1, 2, 3, 7, 8, 9]), torch.tensor([11, 12, 13, 17, 18, 19]))
    assert cached(cache, 1, 2, 3, 7, 8, 9) == [1, 2, 3, 17, 18, 19]
    assert cached(cache, 1, 2, 3, 4, 5, 6, 7, 8, 9) == [1, 2, 3, 4, 5, 6]


@pytest.mark.notices("B43")
def test_windowed_match_refreshes_what_it_returns() -> None:
    """R8: with a window as without one, a hit makes young."""
    cache = windowed_cache([1, 2, 3], [4, 5, 6])
    cached(cache, 1, 2, 3)
    assert cache.evict(1) == EvictResult(3, 3)
    assert cached(cache, 1, 2, 3) == [1, 2, 3]


@pytest.mark.notices("B41", "B53")
def test_window_of_a_path_dies_from_its_beginning() -> None:
    """S3, R8: of one access the shallow nodes go first, so that the path stays usable while any of it can."""
    cache = windowed_cache([1, 2, 3, 4, 5, 6])
    cached(cache, 1, 2)
    cached(cache, 1, 2, 3, 4)
    cached(cache, 1, 2, 3, 4, 5, 6)
    for _ in range(2):
        assert cache.evict(0, 1) == EvictResult(0, 2)
        assert cached(cache, 1, 2, 3, 4, 5, 6) == [1, 2, 3, 4, 5, 6]


@pytest.mark.notices("B61")
def test_node_above_tombstones_only_is_no_leaf() -> None:
    """S3, R9: what hangs below a dead child is alive, so the node above keeps its full slots."""
    cache = windowed_cache([1, 2, 3, 4, 5, 6])
    cached(cache, 1, 2, 3, 4)
    cache.inc_lock_ref(cache.match_prefix(RadixKey([1, 2, 3, 4, 5, 6])).last_node)
    cached(cache, 1, 2)
    assert cache.evict(0, 2) == EvictResult(0, 2)
    assert cache.evict(0, 2) == EvictResult(0, 2)
    assert cached(cache, 1, 2, 3, 4, 5, 6) == [1, 2, 3, 4, 5, 6]


@pytest.mark.notices("B79")
def test_an_idle_engine_keeps_what_is_cached() -> None:
    """R3: what was inserted is cached until it is evicted, also after hours in which nothing happens."""
    prompt = tuple(range(20))
    asked = [Request(n, n * 3_600_000.0, 20, 2, prompt, 1) for n in range(2)]
    report = Engine(EngineConfig(capacity=64), TraceSource(asked)).run()
    assert report.hit_tokens == 19


@pytest.mark.notices("B166")
def test_a_half_given_back_in_a_group_is_the_one_of_then() -> None:
    """A7: a half that comes to the slot later in the group is not given back with it."""
    allocator = SWATokenToKVPoolAllocator(4, 4, device="cpu", check_ownership=False)
    slots = allocator.alloc(2)
    assert slots is not None
    half = allocator.translate_to_swa(slots[1:])
    allocator.free_group_begin()
    allocator.free_swa(slots[:1])
    allocator.move_swa(slots[1:], slots[:1])
    allocator.free_group_end()
    assert allocator.translate_to_swa(slots).tolist() == [int(half), 0]
    assert allocator.swa_available_size() == 3


@pytest.mark.notices("B181")
def test_a_page_has_its_tokens_in_their_places() -> None:
    """P3: with pages of several slots, too, each row is where its slot says."""
    pool = KVPool(8, 1, 1, 1, device="cpu", dtype=torch.float32, page_size=4)
    rows = torch.arange(1.0, 5.0).view(4, 1, 1)
    pool.set_kv_buffer(0, torch.arange(4, 8), rows, rows)
    assert pool.get_key_buffer(0).flatten().tolist() == [0.0] * 4 + [1.0, 2.0, 3.0, 4.0] + [0.0] * 4


@pytest.mark.notices("B205")
def test_windowed_insert_is_no_hit() -> None:
    """R10: hits are matches; an insert is none, whether it is taken or refused."""
    cache = windowed_cache([1, 2, 3])
    node = cache.match_prefix(RadixKey([1, 2, 3])).last_node
    cache.insert(RadixKey([1, 2, 3]))
    assert node.hit_count == 1
    with pytest.raises(ValueError, match="prev_prefix_len is 4"):
        cache.insert(RadixKey([1, 2, 3, 4]), prev_prefix_len=4)
    assert node.hit_count == 1
