"""The slots of a node, whether it keeps all of them or the first of each page."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.invariants import check_mamba_radix_cache, check_radix_cache
from pymllm.mem_cache import (
    MambaRadixCache,
    MambaTreeNode,
    RadixCache,
    RadixKey,
    TokenToKVPoolAllocator,
    TreeNode,
)
from pymllm.mem_cache.edge_slots import expand_pages

CHECKS = {RadixCache: check_radix_cache, MambaRadixCache: check_mamba_radix_cache}


@pytest.fixture
def pool() -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(1024, "cpu", 4)


@pytest.fixture(params=[RadixCache, MambaRadixCache], ids=["plain", "mamba"])
def cache(request: pytest.FixtureRequest, pool: TokenToKVPoolAllocator) -> RadixCache | MambaRadixCache:
    kind: type[RadixCache | MambaRadixCache] = request.param
    return kind(4, token_to_kv_pool_allocator=pool)


@pytest.mark.parametrize("pages", [1, 7, 64, 65, 300])
@pytest.mark.parametrize("page_size", [2, 3, 16])
def test_pages_are_expanded_in_order(pages: int, page_size: int) -> None:
    """R1: each page is its first slot and those that follow on, int64, in memory of its own."""
    starts = np.random.default_rng(pages).permutation(pages + 9)[:pages] * page_size
    slots = expand_pages(starts, page_size)
    assert slots.tolist() == [start + at for start in starts.tolist() for at in range(page_size)]
    assert slots.dtype is torch.int64
    slots.zero_()
    assert starts.any()


def test_node_over_a_pool_of_pages_keeps_pages(
    cache: RadixCache | MambaRadixCache, pool: TokenToKVPoolAllocator
) -> None:
    """R1, R2: its value and what a match returns are the slots that were inserted."""
    slots = pool.alloc(16)
    assert slots is not None
    node = cache.insert(RadixKey(range_of(16)), slots).last_node
    assert node._starts.tolist() == slots[::4].tolist()
    assert node.value.tolist() == slots.tolist()
    assert not node.evicted
    if isinstance(cache, RadixCache):
        assert cache.match_prefix(RadixKey(range_of(16))).indices.tolist() == slots.tolist()


def test_split_divides_the_pages(cache: RadixCache | MambaRadixCache, pool: TokenToKVPoolAllocator) -> None:
    """R10, X5: each half has its own copy, and a path of both has all slots."""
    slots = pool.alloc(20)
    assert slots is not None
    lower = cache.insert(RadixKey(range_of(16)), slots[:16]).last_node
    side = cache.insert(RadixKey([*range(8), 90, 91, 92, 93]), slots[[*range(8), *range(16, 20)]]).last_node
    assert side.parent.value.tolist() + lower.value.tolist() == slots[:16].tolist()
    assert cache._tree.gather([side.parent, side]).tolist() == slots[[*range(8), *range(16, 20)]].tolist()
    CHECKS[type(cache)](cache)
    cache.evict(20)
    assert (lower.value, lower.evicted, pool.available_size()) == (None, True, 1024)


def test_value_that_was_set_counts(cache: RadixCache | MambaRadixCache, pool: TokenToKVPoolAllocator) -> None:
    """R2, X2: a node whose value somebody has set is matched and evicted with those slots."""
    slots = pool.alloc(12)
    assert slots is not None
    node = cache.insert(RadixKey(range_of(4)), slots[:4]).last_node
    below = cache.insert(RadixKey(range_of(8)), slots[:8]).last_node
    pool.free(slots[:4])
    node.value = slots[8:].long()
    assert cache._tree.gather([node, below]).tolist() == slots[8:].tolist() + slots[4:8].tolist()
    cache.evict(8)
    assert pool.available_size() == 1024


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [0, 1, 2, 4], [0, 1, 2, 3, 4, 6, 5, 7]])
def test_slots_in_an_order_of_their_own_are_kept_as_they_came(order: list[int]) -> None:
    """R1: pages are the caller's duty where ownership is not checked; nobody reorders them."""
    pool = TokenToKVPoolAllocator(64, "cpu", 4, check_ownership=False)
    cache = RadixCache(4, token_to_kv_pool_allocator=pool)
    key, slots = RadixKey(range_of(len(order))), pool.alloc(8)
    assert slots is not None
    cache.insert(key, slots[order])
    expected = slots[order].tolist()
    if order[4:]:  # what is wrong inside a page that begins and ends as one is not seen
        expected = slots.tolist()
    assert cache.match_prefix(key).indices.tolist() == expected


@pytest.mark.parametrize("kind", [TreeNode, MambaTreeNode])
def test_node_in_no_tree_has_no_slots(kind: type[TreeNode | MambaTreeNode]) -> None:
    """R9: neither pages nor slots."""
    node = kind()
    assert node.value is None
    assert node.evicted


def range_of(tokens: int) -> list[int]:
    return list(range(tokens))
