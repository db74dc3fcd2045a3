"""Laws of `RadixCache` as algebra: what must be equal, whatever the keys."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from pymllm.adapters.key_forms import make_radix_key
from pymllm.conformance.prefix_caller import SPACES
from pymllm.history.operations import KEY_FORMS, Key
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from pymllm.oracle.prefix_pages import Space

tokens = st.lists(st.integers(0, 2), max_size=20)
programs = st.lists(tokens, min_size=1, max_size=8)
page_sizes = st.sampled_from([1, 2, 4])
spaces = st.sampled_from(sorted(set(SPACES), key=str))


def fill(cache: RadixCache, keys: list[list[int]], extra_key: Any = None) -> None:
    """Insert keys, each with slots of its own."""
    for number, key in enumerate(keys):
        cache.insert(RadixKey(key, extra_key), torch.arange(len(key)) + 1000 * (number + 1))


def found(cache: RadixCache, key: list[int], extra_key: Any = None) -> list[int]:
    """Match a key and return the slots."""
    return cache.match_prefix(RadixKey(key, extra_key)).indices.tolist()


def tree(node: TreeNode) -> Any:
    """Return a node and all below it as plain data, without ids and recency."""
    children = sorted((tree(child) for child in node.children.values()), key=str)
    return list(node.key), node.value.tolist(), node.lock_ref, children


@given(keys=programs, page_size=page_sizes)
def test_a_match_is_idempotent(keys: list[list[int]], page_size: int) -> None:
    """R2: matching twice returns the same and leaves the tree as the first match did."""
    cache = RadixCache(page_size)
    fill(cache, keys)
    first = found(cache, keys[0])
    shape = tree(cache.root_node)
    assert found(cache, keys[0]) == first
    assert tree(cache.root_node) == shape


@given(keys=programs, page_size=page_sizes)
def test_what_was_inserted_is_found_whole(keys: list[list[int]], page_size: int) -> None:
    """R3: after an insert, the whole pages of its key are cached."""
    cache = RadixCache(page_size)
    for key in keys:
        fill(cache, [key])
        assert cache.match_prefix(RadixKey(key)).prefix_len == len(key) // page_size * page_size


@given(keys=programs, page_size=page_sizes)
def test_a_second_insert_adopts_nothing(keys: list[list[int]], page_size: int) -> None:
    """R3, R4: slots already cached are not overwritten, and the duplicates stay the caller's."""
    cache = RadixCache(page_size)
    fill(cache, keys)
    shape = tree(cache.root_node)
    again = cache.insert(RadixKey(keys[-1]), torch.zeros(len(keys[-1]), dtype=torch.int64))
    assert again.adopted == ()
    assert tree(cache.root_node) == shape


@given(keys=programs, page_size=page_sizes, cut=st.integers(0, 20))
def test_a_shorter_key_finds_a_prefix_of_what_the_longer_finds(
    keys: list[list[int]], page_size: int, cut: int
) -> None:
    """R2: slots depend on the tokens before them only, wherever nodes were split."""
    cache = RadixCache(page_size)
    fill(cache, keys)
    short = found(cache, keys[-1][:cut])
    assert short == found(cache, keys[-1])[: len(short)]
    assert len(short) == min(cut, len(keys[-1])) // page_size * page_size


@given(key=tokens, space=spaces, page_size=page_sizes)
def test_the_container_of_a_key_does_not_matter(key: list[int], space: Space, page_size: int) -> None:
    """K1: lists, tuples, arrays and tensors of the same tokens are the same key."""
    ids = tuple(key) if space.width == 1 else tuple((token, 1) for token in key)
    cache = RadixCache(page_size)
    cache.insert(RadixKey(list(ids), space.extra_key), torch.arange(len(key)))
    for form in KEY_FORMS:
        result = cache.match_prefix(make_radix_key(Key(ids, space.extra_key, form)))
        assert result.prefix_len == len(key) // page_size * page_size


@given(keys=programs, others=programs, page_size=page_sizes)
def test_namespaces_do_not_see_each_other(
    keys: list[list[int]], others: list[list[int]], page_size: int
) -> None:
    """K1: what another namespace caches changes no match."""
    alone, shared = RadixCache(page_size), RadixCache(page_size)
    fill(alone, keys, "a")
    fill(shared, others, 1)
    fill(shared, keys, "a")
    fill(shared, others)
    for key in (*keys, *others):
        assert found(shared, key, "a") == found(alone, key, "a")


@given(keys=programs, first=st.integers(0, 20), second=st.integers(1, 20), page_size=page_sizes)
def test_two_evictions_take_what_one_would_have(
    keys: list[list[int]], first: int, second: int, page_size: int
) -> None:
    """R5: an eviction looks at nothing but the order of the leaves, so evictions add up."""
    twice, once = RadixCache(page_size), RadixCache(page_size)
    fill(twice, keys)
    fill(once, keys)
    gone = twice.evict(first).full_evicted
    total = gone + twice.evict(second).full_evicted
    assert once.evict(gone + second).full_evicted == total
    assert tree(once.root_node) == tree(twice.root_node)


@given(keys=programs, pick=st.integers(0, 7), tokens=st.integers(0, 30), page_size=page_sizes)
def test_a_released_hold_leaves_no_trace(
    keys: list[list[int]], pick: int, tokens: int, page_size: int
) -> None:
    """R6, R8: a hold moves no recency, so what is evicted after its release is what would have been."""
    held, free = RadixCache(page_size), RadixCache(page_size)
    fill(held, keys)
    fill(free, keys)
    key = RadixKey(keys[pick % len(keys)])
    nodes = [cache.match_prefix(key).last_node for cache in (held, free)]
    held.dec_lock_ref(nodes[0], held.inc_lock_ref(nodes[0]))
    assert held.evict(tokens) == free.evict(tokens)
    assert tree(held.root_node) == tree(free.root_node)


@given(keys=programs, tokens=st.integers(0, 30), page_size=page_sizes)
def test_a_window_that_nobody_evicts_from_changes_nothing(
    keys: list[list[int]], tokens: int, page_size: int
) -> None:
    """S1, S3: without tombstones every prefix is usable, and a windowed cache is a plain one."""
    plain, windowed = RadixCache(page_size), RadixCache(page_size, sliding_window_size=3)
    fill(plain, keys)
    fill(windowed, keys)
    assert plain.evict(tokens).full_evicted == windowed.evict(tokens).full_evicted
    for key in keys:
        assert found(plain, key) == found(windowed, key)
    assert tree(plain.root_node) == tree(windowed.root_node)


@given(keys=programs, page_size=page_sizes, extra_key=st.sampled_from([None, "1", 1]))
def test_hashes_depend_on_the_path_only(
    keys: list[list[int]], page_size: int, extra_key: str | int | None
) -> None:
    """H2: the order of inserts, splits before and after hashing, and what was hashed first do not matter."""
    one, two = RadixCache(page_size), RadixCache(page_size)
    fill(one, keys, extra_key)
    for key in reversed(keys):
        fill(two, [key], extra_key)
        two.compute_node_hash(two.match_prefix(RadixKey(key, extra_key)).last_node)
    for key in keys:
        assert _path_hashes(one, key, extra_key) == _path_hashes(two, key, extra_key)


def _path_hashes(cache: RadixCache, key: list[int], extra_key: str | int | None) -> list[str]:
    node = cache.match_prefix(RadixKey(key, extra_key)).last_node
    hashes: list[str] = []
    while node is not cache.root_node:
        hashes = cache.compute_node_hash(node) + hashes
        node = node.parent
    return hashes
