"""The key of a node: read from its edge when somebody asks, and the same from then on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.mem_cache import MambaRadixCache, MambaTreeNode, RadixCache, RadixKey, TreeNode

Node = TreeNode | MambaTreeNode


@pytest.fixture(params=[RadixCache, MambaRadixCache], ids=["plain", "mamba"])
def cache(request: pytest.FixtureRequest) -> RadixCache | MambaRadixCache:
    kind: type[RadixCache | MambaRadixCache] = request.param
    return kind()


def put(cache: RadixCache | MambaRadixCache, key: RadixKey) -> Node:
    node: Node = cache.insert(key, torch.arange(len(key))).last_node
    return node


@pytest.mark.parametrize("kind", [TreeNode, MambaTreeNode])
def test_node_without_an_edge_has_no_key(kind: type[Node]) -> None:
    """R9: a node that is in no tree spells nothing."""
    assert kind().key is None


@pytest.mark.parametrize("tokens", [[5, 6, 7], [(1, 2), (3, 4)]])
def test_key_spells_the_edge(cache: RadixCache | MambaRadixCache, tokens: list[object]) -> None:
    """K1: tokens, width and namespace are those of the insert."""
    key = put(cache, RadixKey(tokens, "lora")).key
    assert key is not None
    assert (list(key), key.extra_key) == (tokens, "lora")


def test_key_is_made_once(cache: RadixCache | MambaRadixCache) -> None:
    """X5: who asks twice gets the same key, whose tokens cannot be written."""
    node = put(cache, RadixKey([1, 2, 3]))
    key = node.key
    assert node.key is key
    assert key is not None
    with pytest.raises(ValueError, match="read-only"):
        key.token_ids[0] = 9


def test_key_of_wide_tokens_finds_its_node(cache: RadixCache | MambaRadixCache) -> None:
    """K1: what a node spells is a key of the same width, and cannot be written either."""
    node = put(cache, RadixKey([(1, 2), (3, 4)], "lora"))
    key = node.key
    assert key is not None
    assert key.token_ids == ((1, 2), (3, 4))
    assert cache.insert(key, torch.arange(2)).last_node is node
    assert cache.insert(key, torch.arange(2)).adopted == ()


def test_key_follows_a_split(cache: RadixCache | MambaRadixCache) -> None:
    """R10: both halves spell their own part, also where the whole was asked for before."""
    lower = put(cache, RadixKey(np.arange(4), 7))
    assert list(lower.key or ()) == [0, 1, 2, 3]
    put(cache, RadixKey([0, 1, 9], 7))
    upper = lower.parent
    assert upper is not None
    for node, tokens in ((upper, [0, 1]), (lower, [2, 3])):
        assert node.key is not None
        assert (list(node.key), node.key.extra_key) == (tokens, 7)


def test_evicted_node_keeps_its_key(cache: RadixCache | MambaRadixCache) -> None:
    """X2: a callback that kept the node can still tell what it was."""
    node = put(cache, RadixKey([1, 2, 3]))
    cache.evict(3)
    assert node.evicted
    assert list(node.key or ()) == [1, 2, 3]


def test_key_can_be_replaced() -> None:
    """A node's user may give it a key of his own."""
    node = TreeNode()
    node.key = RadixKey([4])
    assert list(node.key) == [4]
