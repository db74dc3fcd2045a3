"""The tree under the caches: filing, splitting, hashing."""

from __future__ import annotations

import gc
import hashlib
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.mem_cache.base_prefix_cache import RadixKey, hash_token_ids
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from pymllm.mem_cache.tree.node import BaseTreeNode
from pymllm.mem_cache.tree.radix_tree import namespace_prior


def put(cache: RadixCache, tokens: list[int], extra_key: str | int | None = None) -> TreeNode:
    return cache.insert(RadixKey(tokens, extra_key)).last_node


class TestStructure:
    def test_path_longer_than_the_recursion_limit_is_walked(self) -> None:
        """R2: one conversation of thousands of turns is one path of thousands of nodes."""
        cache = RadixCache()
        tokens = list(range(3000))
        for length in range(1, 3001, 2):
            put(cache, tokens[:length])
        match = cache.match_prefix(RadixKey(tokens))
        assert match.prefix_len == 2999
        assert len(cache.compute_node_hash(match.last_node)) == 2
        cache.pretty_print()
        assert cache.evict(3000).full_evicted == 2999


class TestOutline:
    def test_deep_tree_is_written_in_linear_space(self) -> None:
        """Down to level 32 by indentation alone, from there with a number, branches too."""
        cache, depth = RadixCache(), 500
        nodes = [put(cache, list(range(1, end + 1))) for end in range(1, depth + 1)]
        put(cache, [*range(1, depth), 7])
        lines = list(cache._tree.outline())
        assert [len(line) - len(line.lstrip()) for line in lines[:34]] == [*range(2, 66, 2), 64, 64]
        assert lines[31].startswith("  " * 32 + f"#{nodes[31].id} ")
        assert [line[64:].split(" #")[0] for line in lines[32:]] == [
            *(f"[{level}]" for level in range(33, depth + 1)),
            f"[{depth}]",
        ]
        assert max(map(len, lines)) < 64 + 120


class TestSplit:
    @pytest.mark.notices("B07")
    def test_halves_do_not_keep_the_whole_alive(self) -> None:
        """X5: each half owns memory for its own slots and tokens, and no more."""
        for page_size in (1, 2):  # an array of slots in the nodes, and tensors
            cache = RadixCache(page_size)
            node = put(cache, list(range(1000)))
            raw_bytes = len(node._raw)
            upper = cache.match_prefix(RadixKey([0, 1])).last_node
            for half, slots in ((upper, 2), (node, 998)):
                assert half.value.untyped_storage().nbytes() == slots * 8
                assert half._starts is None or half._starts.base is None
            assert len(upper._raw) + len(node._raw) == raw_bytes

    @pytest.mark.notices("B146")
    def test_split_divides_the_hashes(self) -> None:
        """H2: never recomputes them, and by pages, not by tokens."""
        cache = RadixCache(2)
        node = put(cache, [1, 1, 2, 2, 3, 3])
        hashes = cache.compute_node_hash(node)
        upper = cache.match_prefix(RadixKey([1, 1])).last_node
        assert (upper.hash_values, node.hash_values) == (hashes[:1], hashes[1:])


class TestHashes:
    @pytest.mark.notices("B175")
    def test_pages_chain_to_their_ancestors(self) -> None:
        """H2: page i is seeded with page i-1, across nodes, whichever is hashed first."""
        cache = RadixCache(2)
        leaf = put(cache, [1, 2, 3, 4, 5, 6])
        upper = cache.match_prefix(RadixKey([1, 2])).last_node
        first = hash_token_ids([1, 2])
        second = hash_token_ids([3, 4], first)
        assert cache.compute_node_hash(leaf) == [second, hash_token_ids([5, 6], second)]
        assert cache.compute_node_hash(upper) == [first]

    @pytest.mark.notices("B143")
    def test_equal_pages_at_different_places_hash_differently(self) -> None:
        """H2: a block is never its own parent."""
        cache = RadixCache()
        hashes = cache.compute_node_hash(put(cache, [7, 7, 7]))
        assert len(set(hashes)) == 3

    def test_hashes_are_kept_on_the_node(self) -> None:
        """H2: computed once; the returned list is the caller's to change."""
        cache = RadixCache()
        node = put(cache, [1, 2])
        hashes = cache.compute_node_hash(node)
        assert node.hash_values == hashes
        hashes.clear()
        assert len(cache.compute_node_hash(node)) == 2

    def test_root_has_no_pages(self) -> None:
        """H2: the empty prefix has no hash."""
        cache = RadixCache()
        assert cache.compute_node_hash(cache.root_node) == []

    @pytest.mark.notices("B145")
    @pytest.mark.parametrize(
        ("name", "tag"),
        [("lora", b"s:lora"), ("1", b"s:1"), (1, b"i:1"), (-5, b"i:-5"), ("ключ", "s:ключ".encode())],
    )
    def test_namespace_seeds_the_first_page(self, name: str | int, tag: bytes) -> None:
        """H3: byte 0 and the digest of the tagged name: 33 bytes, which no token sequence is."""
        digest = hashlib.sha256(b"\x00" + hashlib.sha256(tag).digest()).hexdigest()
        assert namespace_prior(name) == digest
        cache = RadixCache()
        assert cache.compute_node_hash(put(cache, [1, 2], name))[0] == hash_token_ids([1], digest)

    def test_each_value_seeds_the_first_page(self) -> None:
        """H3: by the digest of its own name; a missing value has the digest of nothing."""
        digests = [hashlib.sha256(name).digest() for name in (b"s:a", b"", b"i:2")]
        named = hashlib.sha256(b"t:" + b"".join(digests)).digest()
        assert namespace_prior(("a", None, 2)) == hashlib.sha256(b"\x00" + named).hexdigest()

    def test_plain_namespace_has_no_prior(self) -> None:
        """H3: without a namespace the first page is hashed as documented."""
        assert namespace_prior(None) is None


CACHES: dict[str, Callable[[], Any]] = {
    "plain": RadixCache,
    "window": lambda: RadixCache(1, 4),
    "mamba": MambaRadixCache,
}


@pytest.mark.parametrize("shape", ["chain", "flat"])
@pytest.mark.parametrize("way", ["evict", "hold and evict", "reset"])
@pytest.mark.parametrize("kind", CACHES)
def test_a_kept_node_keeps_no_other_alive(kind: str, way: str, shape: str) -> None:
    """X5: of 200 nodes that left there is the one that somebody kept, and the root of before the reset."""
    tokens = range(200)
    gc.collect()
    gc.disable()
    try:
        known = {id(found) for found in gc.get_objects() if issubclass(type(found), BaseTreeNode)}
        cache, kept = CACHES[kind](), []
        for token in tokens:
            key = list(tokens[: token + 1]) if shape == "chain" else [token]
            state = {} if kind != "mamba" or token % 2 else {"mamba_value": torch.tensor([token + 1])}
            node = cache.insert(RadixKey(key), **state).last_node
            kept = kept or [node]
            if way == "hold and evict" and not token % 3:
                token_of_hold = cache.inc_lock_ref(node)
                cache.dec_lock_ref(node, swa_boundary_id=token_of_hold)
        del node
        if way == "reset":
            kept.append(cache.root_node)
            cache.reset()
        while cache.total_size():
            cache.evict(1, 1)
        now = [found for found in gc.get_objects() if issubclass(type(found), BaseTreeNode)]
        lists = [cache.full_lru, cache.mamba_lru] if kind == "mamba" else []
        own = [cache.root_node, *(end for order in lists for end in (order.head, order.tail))]
        known |= {id(node) for node in own}
        left = [found for found in now if id(found) not in known]
        del now
    finally:
        gc.enable()
    assert {id(node) for node in left} == {id(node) for node in kept}


def test_an_old_root_keeps_no_cache_alive() -> None:
    """X5, X7: what a match of nothing handed out is a root without a tree."""
    cache = RadixCache()
    cache.insert(RadixKey([1]))
    root, tree = cache.match_prefix(RadixKey([2])).last_node, weakref.ref(cache._tree)
    cache.reset()
    cache.dec_lock_ref(root)
    del cache
    gc.collect()
    assert (tree(), root.children, root._only_child) == (None, {}, None)
