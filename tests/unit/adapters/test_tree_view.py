"""What is seen of the nodes of a tree."""

from __future__ import annotations

import pytest
import torch

from pymllm.adapters.own_caches import ASTRAY, path_length, view_hybrid_node, view_node, view_tree
from pymllm.history.operations import Key
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.radix_cache import RadixCache


@pytest.fixture
def cache() -> RadixCache:
    cache = RadixCache(sliding_window_size=2)
    cache.insert(RadixKey([1, 2, 3, 4], "a"), torch.tensor([11, 12, 13, 14]))
    cache.insert(RadixKey([1, 2, 5, 6], "a"), torch.tensor([0, 0, 15, 16]))
    return cache


def test_every_attribute_is_shown(cache: RadixCache) -> None:
    """R10, S5: ids, counts, flags and the boundary are read off the node."""
    node = cache.match_prefix(RadixKey([1, 2, 3, 4], "a")).last_node
    token = cache.inc_lock_ref(node)
    cache.compute_node_hash(node)
    cache.match_prefix(RadixKey([1, 2, 5, 6], "a"))
    cache.evict(0, 2)
    upper, lower, other = view_tree(cache.root_node, view_node)
    assert (upper.parent, upper.tokens, upper.slots, upper.is_alive) == (None, (1, 2), (11, 12), False)
    assert (lower.id, lower.parent, lower.tokens, lower.extra_key) == (node.id, upper.id, (3, 4), "a")
    assert (lower.lock_ref, lower.swa_lock_ref, lower.boundary, lower.hit_count) == (1, 1, token, 1)
    assert (upper.lock_ref, upper.swa_lock_ref, upper.boundary, upper.hit_count) == (1, 0, None, 2)
    assert lower.page_hashes == tuple(node.hash_values)
    assert other.page_hashes is None
    assert other.last_access == upper.last_access > lower.last_access
    assert {view.kept_bytes for view in (upper, lower, other)} == {16}


def test_every_attribute_of_a_hybrid_node_is_shown() -> None:
    """M3, M4: states and their locks are read off the node, where it has them."""
    cache = MambaRadixCache()
    lower = cache.insert(
        RadixKey([1, 2, 3]), torch.tensor([11, 12, 13]), mamba_value=torch.tensor([5])
    ).last_node
    cache.inc_lock_ref(lower)
    cache.compute_node_hash(lower)
    cache.insert(RadixKey([1, 2]))
    views = view_tree(cache.root_node, view_hybrid_node)
    assert [(view.tokens, view.slots, view.state) for view in views] == [
        ((1, 2), (11, 12), None),
        ((3,), (13,), 5),
    ]
    assert [(view.lock_ref, view.state_lock_ref, view.hit_count) for view in views] == [(1, 0, 0), (1, 1, 0)]
    assert [view.swa_lock_ref for view in views] == [None, None]
    assert [len(view.page_hashes or ()) for view in views] == [2, 1]
    assert [view.kept_bytes for view in views] == [16, 8]
    assert views[0].last_access == views[1].last_access + 1


def test_parents_come_before_their_children(cache: RadixCache) -> None:
    """R9: a reader can spell every path while reading."""
    views = view_tree(cache.root_node, view_node)
    ids = [view.id for view in views]
    assert all(view.parent is None or view.parent in ids[:at] for at, view in enumerate(views))


def test_a_path_is_as_long_as_the_key_it_spells(cache: RadixCache) -> None:
    """R2: the node that a match returns spells the prefix."""
    key = Key((1, 2, 5, 9), "a")
    match = cache.match_prefix(RadixKey([*key.tokens], "a"))
    assert path_length(cache.root_node, match.last_node, key) == 3
    assert path_length(cache.root_node, cache.root_node, key) == 0


@pytest.mark.parametrize("key", [Key((1, 2, 5), "a"), Key((1, 2, 3, 9), "a"), Key((1, 2, 3), "a")])
def test_a_path_that_spells_something_else_is_astray(cache: RadixCache, key: Key) -> None:
    """R2: other tokens at once, other tokens later, more tokens than the key has."""
    node = cache.match_prefix(RadixKey([1, 2, 3, 4], "a")).last_node
    assert path_length(cache.root_node, node, key) == ASTRAY


def test_a_path_to_another_root_is_astray(cache: RadixCache) -> None:
    """R2: a node of another cache, one that left, and no node at all lead nowhere."""
    key = Key((1, 2, 3, 4), "a")
    node = cache.match_prefix(RadixKey([*key.tokens], "a")).last_node
    assert path_length(RadixCache().root_node, node, key) == ASTRAY
    assert path_length(cache.root_node, None, key) == ASTRAY
    cache.reset()
    assert path_length(cache.root_node, node, key) == ASTRAY
