"""What keeps books is neither copied nor pickled; plain data is both."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pymllm.core.inference.contexts
import pymllm.mem_cache
from pymllm.core.inference.contexts import (
    DynamicInferenceContext,
    ForwardBatch,
    KVBlockAllocator,
    MambaSlotAllocator,
    MambaSlotCapacityError,
    PrefixCachingEvictionPolicy,
    RequestStep,
)
from pymllm.mem_cache import (
    ChunkCache,
    EvictResult,
    GDNPool,
    InsertResult,
    KVPool,
    LRUList,
    MambaRadixCache,
    MambaTreeNode,
    MatchResult,
    RadixCache,
    RadixKey,
    ReqToTokenPool,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
    TreeNode,
)

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda it, protocol=protocol: pickle.loads(pickle.dumps(it, protocol))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
}
each_way = pytest.mark.parametrize("way", WAYS)


def make_context() -> DynamicInferenceContext:
    return DynamicInferenceContext(
        max_requests=2,
        num_blocks=9,
        max_blocks_per_request=4,
        block_size_tokens=2,
        mamba_slots=2,
        num_mamba_layers=1,
        conv_states_shape=(2,),
        ssm_states_shape=(2,),
    )


def filled(cache: Any) -> Any:
    cache.insert(RadixKey([1, 2]), torch.tensor([3, 4]))
    return cache


ANEW = "build a new one with the same arguments"
OWNERS: dict[type, tuple[Callable[[], Any], str]] = {
    RadixCache: (lambda: filled(RadixCache()), f"{ANEW}, and insert again"),
    MambaRadixCache: (lambda: filled(MambaRadixCache()), f"{ANEW}, and insert again"),
    TreeNode: (
        lambda: filled(RadixCache()).match_prefix(RadixKey([1, 2])).last_node,
        "keep its id, or match its prompt again",
    ),
    MambaTreeNode: (
        lambda: filled(MambaRadixCache()).insert(RadixKey([1, 2]), torch.tensor([3, 4])).last_node,
        "keep its id, or match its prompt again",
    ),
    LRUList: (LRUList, "list() of it has its members"),
    TokenToKVPoolAllocator: (lambda: TokenToKVPoolAllocator(8, "cpu"), ANEW),
    SWATokenToKVPoolAllocator: (lambda: SWATokenToKVPoolAllocator(8, 8, "cpu", 1, False), ANEW),
    ReqToTokenPool: (lambda: ReqToTokenPool(2, 8, "cpu"), ANEW),
    KVPool: (lambda: KVPool(8, 1, 1, 2, device="cpu"), ANEW),
    GDNPool: (lambda: GDNPool(1, 1, 1, 2, 2, 4, 2, device="cpu", max_track_slots=2), ANEW),
    KVBlockAllocator: (lambda: KVBlockAllocator(SimpleNamespace(prefix_cache_lru_clock=0), 4), ANEW),
    MambaSlotAllocator: (lambda: make_context().mamba_slot_allocator, ANEW),
    DynamicInferenceContext: (make_context, f"{ANEW}, and add the requests there"),
}
"""Every public class that keeps books, and what its user is told to do."""

DATA: dict[type, Callable[[], Any]] = {
    RadixKey: lambda: RadixKey([1, 2], "lora"),
    EvictResult: lambda: EvictResult(1, 2, 3),
    MatchResult: lambda: ChunkCache().match_prefix(RadixKey([1])),
    InsertResult: lambda: InsertResult(4, None, True, ((0, 4),)),
    ChunkCache: ChunkCache,
    ForwardBatch: lambda: ForwardBatch(
        (RequestStep("r", 0, 0, np.arange(2, dtype=np.uint32), 0, (1,), np.arange(2), (), 0, True),)
    ),
    RequestStep: lambda: RequestStep("r", 0, 0, np.arange(2), 0, (1,), np.arange(2), (1,), 0, True),
    MambaSlotCapacityError: lambda: MambaSlotCapacityError("2 slots are needed"),
    PrefixCachingEvictionPolicy: lambda: PrefixCachingEvictionPolicy.LRU,
}
"""Every public class that is plain data; `ChunkCache` keeps nothing."""


def test_every_public_class_is_one_or_the_other() -> None:
    """X5: nobody is left to be copied by accident."""
    public = {
        found
        for room in (pymllm.mem_cache, pymllm.core.inference.contexts)
        for found in (getattr(room, name) for name in room.__all__)
        if isinstance(found, type) and not getattr(found, "__abstractmethods__", None)
    }
    assert public == set(OWNERS) | set(DATA)


@each_way
@pytest.mark.parametrize("kind", OWNERS)
def test_what_keeps_books_is_refused(kind: type, way: str) -> None:
    """X1, X5: a shallow copy would hand out what the original does; the sentence says what to do."""
    make, instead = OWNERS[kind]
    owner = make()
    assert type(owner) is kind
    with pytest.raises(TypeError) as caught:
        WAYS[way](owner)
    assert str(caught.value) == (
        f"{kind.__name__} cannot be copied or pickled, what it owns has one owner: {instead}"
    )


def plain(thing: Any) -> Any:
    """Return all that a thing says, for comparing."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return (str(thing.dtype), thing.tolist())
    if isinstance(thing, (list, tuple)):
        return [plain(each) for each in thing]
    if isinstance(thing, ChunkCache):
        return vars(thing)
    slots = [name for each in type(thing).__mro__ for name in getattr(each, "__slots__", ())]
    return {name: plain(getattr(thing, name)) for name in slots} or repr(thing)


@each_way
@pytest.mark.parametrize("kind", DATA)
def test_plain_data_copies_right(kind: type, way: str) -> None:
    """K1: an equal thing of the same class."""
    thing = DATA[kind]()
    again = WAYS[way](thing)
    assert type(again) is kind
    assert plain(again) == plain(thing)


@pytest.mark.parametrize("kind", [RadixCache, MambaRadixCache])
@pytest.mark.parametrize("way", ["deepcopy", "pickle 5"])
def test_a_long_chain_ends_in_a_sentence(kind: Any, way: str) -> None:
    """X1: not in a RecursionError of Python's, however many nodes there are."""
    cache = kind()
    for end in range(1, 1500):
        cache.insert(RadixKey(np.arange(end)), torch.arange(end))
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        WAYS[way](cache)


@pytest.mark.parametrize("kind", [RadixCache, MambaRadixCache])
def test_a_result_is_copied_with_its_node_but_not_without(kind: Any) -> None:
    """X5: a shallow copy names the same node, and a deep one would need another."""
    cache = kind()
    added = cache.insert(RadixKey([1, 2]), torch.tensor([3, 4]), mamba_value=torch.tensor([2]))
    for result in (added, cache.match_prefix(RadixKey([1, 2]))):
        again = copy.copy(result)
        assert again.last_node is result.last_node
        assert (again.prefix_len, type(again)) == (result.prefix_len, type(result))
        cache.inc_lock_ref(again.last_node)
        cache.dec_lock_ref(result.last_node)
        for way in ("deepcopy", "pickle 5"):
            with pytest.raises(TypeError, match="TreeNode cannot be copied or pickled"):
                WAYS[way](result)


def test_a_cache_that_keeps_nothing_is_copied_unless_its_pool_would_be() -> None:
    """Section 6: whoever shares it shares the pool."""
    cache = ChunkCache(TokenToKVPoolAllocator(8, "cpu"))
    assert copy.copy(cache).pool is cache.pool
    for way in ("deepcopy", "pickle 5"):
        with pytest.raises(TypeError, match="TokenToKVPoolAllocator cannot be copied or pickled"):
            WAYS[way](cache)


@pytest.mark.parametrize(
    "tokens", [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), [(1, 2), (3, 4)]], ids=repr
)
@each_way
def test_a_copied_key_finds_what_the_key_does(way: str, tokens: Any) -> None:
    """K1: in every container; a deep copy and a pickle have tokens of their own."""
    cache = RadixCache()
    key = RadixKey(tokens, "lora")
    cache.insert(key, torch.arange(2))
    again = WAYS[way](key)
    assert cache.match_prefix(again).prefix_len == 2
    assert (again.token_ids is key.token_ids) == (
        way == "copy" or (way == "deepcopy" and isinstance(tokens, tuple))
    )


def test_the_key_of_a_node_is_plain_data() -> None:
    """X5: what a node spells can be kept, although the node cannot."""
    cache = RadixCache()
    node = cache.insert(RadixKey([1, 2], 7)).last_node
    again = pickle.loads(pickle.dumps(node.key))
    assert (list(again), again.extra_key) == ([1, 2], 7)


class _Knows(RadixCache):
    """A cache of somebody who knows how."""

    def __deepcopy__(self, memo: dict[int, Any]) -> str:
        return "a copy"


def test_a_subclass_may_know_how() -> None:
    """X5: what is refused is what would go wrong by itself."""
    assert copy.deepcopy(_Knows()) == "a copy"
