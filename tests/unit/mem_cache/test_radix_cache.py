"""`RadixCache` without a window, law by law."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.adapters.failing_calls import InjectedFault, RecordingPool, record_around
from pymllm.adapters.own_caches import path_length, view_tree
from pymllm.errors import LockError, OwnershipError, StaleNodeError, UsageError
from pymllm.history.operations import Fault, Key
from pymllm.history.outcomes import Effect
from pymllm.invariants import check_radix_cache
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.memory_pool import TokenToKVPoolAllocator
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator


def slots(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def put(cache: RadixCache, tokens: list[int], first: int = 100, extra_key: Any = None) -> TreeNode:
    """Insert tokens with slots ``first, first + 1, ..`` and return the node."""
    value = torch.arange(first, first + len(tokens))
    return cache.insert(RadixKey(tokens, extra_key), value).last_node


def find(cache: RadixCache, tokens: list[int], extra_key: Any = None) -> list[int]:
    """Match tokens and return the slots."""
    return cache.match_prefix(RadixKey(tokens, extra_key)).indices.tolist()


def tokens_of(node: TreeNode) -> list[Any]:
    return list(node.key)


def state(cache: RadixCache) -> Any:
    """Everything that can be seen of a cache, as plain data."""
    return view_tree(cache.root_node), cache.evictable_size(), cache.protected_size()


@pytest.fixture
def cache() -> RadixCache:
    return RadixCache()


@pytest.fixture
def effects() -> list[Effect]:
    return []


@pytest.fixture
def pool(effects: list[Effect]) -> RecordingPool:
    return record_around(TokenToKVPoolAllocator(64, "cpu", 4, True), effects.append)


@pytest.fixture
def pooled(pool: RecordingPool) -> RadixCache:
    return RadixCache(4, token_to_kv_pool_allocator=pool)


class Shouted(str):
    """A str that does not say what it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


class TestConstructor:
    def test_documented_attributes_are_there(self, pool: RecordingPool) -> None:
        """Section 4: the arguments are kept under their documented names."""
        cache = RadixCache(4, 8, pool, print)
        assert (cache.page_size, cache.sliding_window_size, cache.pool) == (4, 8, pool)
        assert cache.on_node_evict is print
        assert cache.supports_swa
        assert not RadixCache().supports_swa

    def test_defaults_are_the_documented_ones(self, cache: RadixCache) -> None:
        """Section 4: one token per page, no window, no pool, no callback."""
        assert (cache.page_size, cache.sliding_window_size) == (1, None)
        assert (cache.pool, cache.on_node_evict) == (None, None)

    @pytest.mark.parametrize("size", [0, -1])
    def test_page_size_is_positive(self, size: int) -> None:
        """X1: the error names the value."""
        with pytest.raises(ValueError, match=f"page_size.*{size}"):
            RadixCache(size)

    @pytest.mark.parametrize("size", [0, -4])
    def test_window_is_positive(self, size: int) -> None:
        """X1: no window is None, not 0."""
        with pytest.raises(ValueError, match=f"sliding_window_size.*{size}"):
            RadixCache(1, size)

    @pytest.mark.parametrize("size", [1.0, "1", None, True])
    def test_page_size_is_an_integer(self, size: Any) -> None:
        """X1: a float page would make float slots."""
        with pytest.raises(TypeError, match="page_size"):
            RadixCache(size)

    def test_window_is_an_integer(self) -> None:
        """X1: half a token is no window."""
        with pytest.raises(TypeError, match="sliding_window_size"):
            RadixCache(1, 4.0)

    @pytest.mark.parametrize("wrong", [5, "pool", SimpleNamespace(free=5), SimpleNamespace(page_size=1)])
    def test_an_allocator_can_take_slots_back(self, wrong: Any) -> None:
        """X1: said when the cache is made, not when the first eviction wants to return something."""
        with pytest.raises(TypeError, match=r"token_to_kv_pool_allocator is .* no method free"):
            RadixCache(token_to_kv_pool_allocator=wrong)

    def test_anything_that_takes_slots_back_is_an_allocator(self) -> None:
        """Section 4: a pool is known by its ``free``; nothing else is asked for without a window."""
        freed: list[list[int]] = []
        cache = RadixCache(
            token_to_kv_pool_allocator=SimpleNamespace(free=lambda slots: freed.append(slots.tolist()))
        )
        put(cache, [1, 2], 7)
        assert cache.evict(1).full_evicted == 2
        assert freed == [[7, 8]]

    @pytest.mark.parametrize("wrong", [5, "print", [print]])
    def test_a_callback_can_be_called(self, wrong: Any) -> None:
        """X1: said when the cache is made, not after the first eviction."""
        with pytest.raises(TypeError, match="on_node_evict is"):
            RadixCache(on_node_evict=wrong)

    def test_page_size_is_the_pools(self, pool: RecordingPool) -> None:
        """R1: pages of two sizes would be freed in halves."""
        with pytest.raises(ValueError, match=r"page_size is 2.*4"):
            RadixCache(2, token_to_kv_pool_allocator=pool)


class TestMatch:
    def test_empty_cache_matches_nothing(self, cache: RadixCache) -> None:
        """R2: an empty result is an int64 tensor of length 0 and the root."""
        match = cache.match_prefix(RadixKey([1, 2, 3]))
        assert match.indices.shape == (0,)
        assert match.indices.dtype == torch.int64
        assert (match.prefix_len, match.last_node) == (0, cache.root_node)
        assert match.mamba_branching_seqlen is None

    def test_match_returns_the_stored_slots_in_order(self, cache: RadixCache) -> None:
        """R2: across nodes, one tensor."""
        put(cache, [1, 2, 3, 4], 100)
        put(cache, [1, 2, 9, 9], 200)
        assert find(cache, [1, 2, 9, 9, 5]) == [100, 101, 202, 203]

    def test_last_node_spells_the_prefix(self, cache: RadixCache) -> None:
        """R2: neither its parent nor the root, wherever the match ends."""
        put(cache, [1, 2, 3, 4])
        put(cache, [1, 2, 9, 9])
        for tokens in ([1], [1, 2], [1, 2, 3], [1, 2, 3, 4]):
            match = cache.match_prefix(RadixKey([*tokens, 77]))
            assert match.prefix_len == len(tokens)
            assert path_length(cache.root_node, match.last_node, Key(tuple(tokens))) == len(tokens)

    def test_match_splits_only_where_it_ends(self, cache: RadixCache) -> None:
        """R2: a match that ends with a node, or before any, leaves the tree's shape alone."""
        node = put(cache, [1, 2, 3, 4])
        find(cache, [1, 2, 3, 4, 5])
        find(cache, [7])
        assert tokens_of(node) == [1, 2, 3, 4]
        find(cache, [1, 2])
        assert tokens_of(node) == [3, 4]

    def test_match_ends_with_whole_pages(self) -> None:
        """R2: two keys that share half a page share nothing of it."""
        cache = RadixCache(4)
        put(cache, [1, 2, 3, 4, 5, 6, 7, 8])
        assert find(cache, [1, 2, 3, 4, 5, 6, 9, 9]) == [100, 101, 102, 103]
        assert find(cache, [1, 2, 3, 9]) == []
        assert find(cache, [1, 2, 3]) == []

    def test_pages_that_differ_in_their_last_token_are_siblings(self) -> None:
        """R9: children are filed under the whole first page."""
        cache = RadixCache(2)
        put(cache, [1, 1, 1, 2], 100)
        put(cache, [1, 1, 1, 3], 200)
        assert find(cache, [1, 1, 1, 2]) == [100, 101, 102, 103]
        assert find(cache, [1, 1, 1, 3]) == [100, 101, 202, 203]

    def test_namespaces_share_nothing(self, cache: RadixCache) -> None:
        """K1: equal tokens of another adapter are another prefix; "1" and 1 are two names."""
        for first, extra_key in ((100, None), (200, "1"), (300, 1), (400, "lora")):
            put(cache, [1, 2], first, extra_key)
        for first, extra_key in ((100, None), (200, "1"), (300, 1), (400, "lora")):
            assert find(cache, [1, 2, 3], extra_key) == [first, first + 1]
        assert find(cache, [1, 2], "2") == []

    def test_a_namespace_set_later_counts_by_its_value_too(self, cache: RadixCache) -> None:
        """K1, H3: the tree reads the attribute, whatever was in it when the key was made."""
        node = put(cache, [1, 2], 100, "lora")
        key = RadixKey([1, 2])
        key.extra_key = Shouted("lora")
        assert cache.match_prefix(key).last_node is node
        other = RadixCache()
        assert other.compute_node_hash(other.insert(key).last_node) == cache.compute_node_hash(node)
        for wrong, error in ((1.5, TypeError), ("\ud800", ValueError)):
            key.extra_key = wrong
            with pytest.raises(error, match="extra_key"):
                cache.insert(key)
        assert cache.total_size() == 2

    def test_bigrams_share_nothing_with_their_tokens(self, cache: RadixCache) -> None:
        """K1: the key [(1, 2)] is not the key [1, 2]."""
        cache.insert(RadixKey([(1, 2), (3, 4)]), slots(10, 11))
        assert find(cache, [1, 2, 3, 4]) == []
        assert find(cache, [(1, 2), (3, 5)]) == [10]

    @pytest.mark.parametrize(
        "batch", [np.arange(6)[None], torch.arange(6)[None], [[1, 2, 3]], [torch.arange(3)], [(1,), (2,)]]
    )
    def test_a_batch_is_no_key(self, cache: RadixCache, batch: Any) -> None:
        """K1: a tokenizer's batch of one prompt is refused, and not one token that nothing matches."""
        key = RadixKey(batch)
        with pytest.raises((TypeError, ValueError), match="token_ids"):
            cache.insert(key, torch.arange(len(batch)))
        with pytest.raises((TypeError, ValueError), match="token_ids"):
            cache.match_prefix(key)
        assert cache.total_size() == 0

    def test_indices_are_a_copy(self, cache: RadixCache) -> None:
        """X5: a caller that writes into its result changes nothing in the tree."""
        put(cache, [1, 2, 3])
        for _ in range(2):
            match = cache.match_prefix(RadixKey([1, 2, 3]))
            assert match.indices.tolist() == [100, 101, 102]
            match.indices.fill_(-1)

    def test_match_moves_no_ownership(
        self, pooled: RadixCache, pool: RecordingPool, effects: list[Effect]
    ) -> None:
        """R2: slots stay the tree's, and the pool hears nothing."""
        pooled.insert(RadixKey([1] * 4), pool.alloc(4))
        pooled.match_prefix(RadixKey([1] * 4))
        assert effects == []
        assert pooled.evictable_size() == 4

    def test_hits_are_counted_on_the_returned_path_only(self, cache: RadixCache) -> None:
        """R10: inserts are no hits, a split copies the count, the rest of a split node was not hit."""
        node = put(cache, [1, 2, 3, 4])
        assert node.hit_count == 0
        find(cache, [1, 2, 3, 4])
        find(cache, [1, 2])
        assert node.hit_count == 1
        assert node.parent.hit_count == 2

    @pytest.mark.parametrize("key", [[1, 2], None, "abc", (1, 2)])
    def test_key_that_is_no_radix_key_is_refused(self, cache: RadixCache, key: Any) -> None:
        """X1: the error says what to wrap the tokens in."""
        put(cache, [1, 2])
        before = state(cache)
        with pytest.raises(TypeError, match="RadixKey"):
            cache.match_prefix(key)
        assert state(cache) == before

    @pytest.mark.parametrize("tokens", [[1, -1], [1, 2**32], np.array([1, 2**40])])
    def test_token_that_cannot_be_hashed_is_refused(self, cache: RadixCache, tokens: Any) -> None:
        """X1, H1: a key is refused before anything has changed."""
        put(cache, [1, 2])
        before = state(cache)
        with pytest.raises(ValueError, match="outside"):
            cache.match_prefix(RadixKey(tokens))
        assert state(cache) == before


class TestInsert:
    def test_insert_reports_what_was_present_before(self, cache: RadixCache) -> None:
        """R3: prefix_len counts the cached tokens, last_node spells the whole key."""
        put(cache, [1, 2, 3])
        result = cache.insert(RadixKey([1, 2, 8, 9]), slots(20, 21, 22, 23))
        assert result.prefix_len == 2
        assert path_length(cache.root_node, result.last_node, Key((1, 2, 8, 9))) == 4
        assert find(cache, [1, 2, 8, 9]) == [100, 101, 22, 23]

    def test_adopted_is_what_was_new(self, cache: RadixCache) -> None:
        """R4: one range without a window, none for a key that is cached already."""
        assert cache.insert(RadixKey([1, 2, 3]), slots(1, 2, 3)).adopted == ((0, 3),)
        assert cache.insert(RadixKey([1, 2, 3, 4]), slots(5, 6, 7, 8)).adopted == ((3, 4),)
        assert cache.insert(RadixKey([1, 2]), slots(9, 10)).adopted == ()

    def test_cached_slots_are_not_overwritten(self, cache: RadixCache) -> None:
        """R3: duplicates stay the caller's."""
        put(cache, [1, 2, 3], 100)
        put(cache, [1, 2, 3], 200)
        assert find(cache, [1, 2, 3]) == [100, 101, 102]

    def test_unaligned_tail_stays_the_callers(
        self, pooled: RadixCache, pool: RecordingPool, effects: list[Effect]
    ) -> None:
        """R1, R4: the last half page is neither cached nor freed."""
        value = pool.alloc(8)
        result = pooled.insert(RadixKey([1, 2, 3, 4, 5, 6]), value[:6])
        assert result.adopted == ((0, 4),)
        assert pooled.total_size() == 4
        assert effects == []
        pool.free(value[4:])

    def test_insert_that_ends_inside_a_node_splits_it(self, cache: RadixCache) -> None:
        """R3: the last node of a shorter key spells it, so that a hold there holds no more."""
        node = put(cache, [1, 2, 3, 4])
        shorter = put(cache, [1, 2], 200)
        assert path_length(cache.root_node, shorter, Key((1, 2))) == 2
        assert node.parent is shorter

    @pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
    def test_key_without_a_whole_page_changes_nothing(self, tokens: list[int]) -> None:
        """R3: an empty key is a no-op, whatever is left over."""
        cache = RadixCache(4)
        put(cache, [1, 2, 3, 4])
        before = state(cache)
        result = cache.insert(RadixKey(tokens), torch.arange(len(tokens)))
        assert (result.prefix_len, result.adopted, result.last_node) == (0, (), cache.root_node)
        assert state(cache) == before

    def test_token_ids_serve_as_slots_without_a_pool(self, cache: RadixCache) -> None:
        """R1: a cache that only counts needs no slots."""
        assert cache.insert(RadixKey([5, 6, 7])).adopted == ((0, 3),)
        assert find(cache, [5, 6]) == [5, 6]

    def test_pool_without_slots_is_refused(self, pooled: RadixCache) -> None:
        """R1: token ids are no slots of a pool."""
        with pytest.raises(ValueError, match="value"):
            pooled.insert(RadixKey([1, 2, 3, 4]))
        assert pooled.total_size() == 0

    @pytest.mark.parametrize("value", [slots(), slots(1, 2), slots(1, 2, 3, 4), slots(1, 2, 3)[None]])
    def test_one_slot_per_token_or_an_error(self, cache: RadixCache, value: torch.Tensor) -> None:
        """R1: the error names both lengths."""
        with pytest.raises(ValueError, match="3 tokens"):
            cache.insert(RadixKey([1, 2, 3]), value)
        assert cache.total_size() == 0

    @pytest.mark.parametrize("value", [[1, 2], (1, 2), np.array([1, 2]), 5])
    def test_slots_are_a_tensor(self, cache: RadixCache, value: Any) -> None:
        """X1: the error names the type."""
        with pytest.raises(TypeError, match=type(value).__name__):
            cache.insert(RadixKey([1, 2]), value)

    def test_slots_are_dense(self, cache: RadixCache) -> None:
        """X1: a sparse tensor has no row of slots to copy."""
        with pytest.raises(TypeError, match=r"layout torch\.sparse_coo"):
            cache.insert(RadixKey([1, 2]), slots(1, 2).to_sparse())
        assert cache.total_size() == 0

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.bits8])
    def test_slots_are_integers(self, cache: RadixCache, dtype: torch.dtype) -> None:
        """X1: a float slot would be rounded somewhere."""
        with pytest.raises(TypeError, match="dtype"):
            cache.insert(RadixKey([1, 2]), torch.empty(2, dtype=dtype))
        assert cache.total_size() == 0

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.uint8])
    def test_any_integer_dtype_is_stored_as_int64(self, cache: RadixCache, dtype: torch.dtype) -> None:
        """Section 0: allocators hand out int32, trees return int64."""
        node = cache.insert(RadixKey([1, 2]), torch.tensor([3, 4], dtype=dtype)).last_node
        assert node.value.dtype == torch.int64
        assert cache.match_prefix(RadixKey([1, 2])).indices.dtype == torch.int64

    @pytest.mark.parametrize("value", [[7, 6, 5, 4], [5, 6, 7, 8], [4, 5, 6, 6], [4, 5, 10, 11]])
    def test_key_page_is_one_page_of_the_pool(self, pooled: RadixCache, value: list[int]) -> None:
        """R1: out of order, unaligned, repeated or scattered slots are refused where ownership is checked."""
        with pytest.raises(ValueError, match=str(value[0])):
            pooled.insert(RadixKey([1, 2, 3, 4]), slots(*value))
        assert pooled.total_size() == 0

    def test_slots_of_the_tail_are_not_looked_at(self, pooled: RadixCache) -> None:
        """R1: what is not cached need not be a page."""
        assert pooled.insert(RadixKey([1, 2, 3, 4, 5, 6]), slots(4, 5, 6, 7, 33, 32)).adopted == ((0, 4),)

    def test_unchecked_pool_takes_any_slots(self) -> None:
        """R1: where the pool does not check ownership, whole pages are the caller's duty."""
        pool = TokenToKVPoolAllocator(8, "cpu", 2, True, check_ownership=False)
        cache = RadixCache(2, token_to_kv_pool_allocator=pool)
        assert cache.insert(RadixKey([1, 2]), slots(5, 2)).adopted == ((0, 2),)

    def test_wide_tokens_need_slots(self, cache: RadixCache) -> None:
        """R1: a bigram is no slot number."""
        with pytest.raises(ValueError, match="value"):
            cache.insert(RadixKey([(1, 2)]))

    def test_tree_keeps_no_view_of_key_or_value(self, cache: RadixCache) -> None:
        """X5: rows and prompt buffers are recycled by their owners."""
        tokens, value = np.array([1, 2, 3]), slots(7, 8, 9)
        cache.insert(RadixKey(tokens), value)
        tokens[:] = 0
        value.fill_(0)
        assert find(cache, [1, 2, 3]) == [7, 8, 9]

    def test_options_of_other_caches_are_ignored(self, cache: RadixCache) -> None:
        """Section 4: an engine may pass a Mamba state to a cache that has none."""
        result = cache.insert(RadixKey([1]), slots(4), mamba_value=slots(1), prev_prefix_len=0)
        assert result.mamba_exist is False

    def test_window_arguments_mean_nothing_without_a_window(self, cache: RadixCache) -> None:
        """R4, S7: without a window everything new is adopted, whatever was evicted from one."""
        result = cache.insert(RadixKey([1, 2]), slots(4, 5), prev_prefix_len=0, swa_evicted_seqlen=1)
        assert result.adopted == ((0, 2),)
        assert not result.last_node.swa_tombstone

    @pytest.mark.parametrize("name", ["prev_prefix_len", "swa_evicted_seqlen"])
    @pytest.mark.parametrize(
        ("wrong", "error"),
        [("x", TypeError), (1.0, TypeError), (True, TypeError), (-9, ValueError), (4, ValueError)],
    )
    def test_window_arguments_are_lengths_within_the_key_all_the_same(
        self, cache: RadixCache, name: str, wrong: Any, error: type[Exception]
    ) -> None:
        """X1, S7: what is nonsense with a window is refused without one; nothing more is."""
        with pytest.raises(error, match=name):
            cache.insert(RadixKey([1, 2, 3]), slots(4, 5, 6), **{name: wrong})
        assert cache.total_size() == 0
        assert cache.insert(RadixKey([1, 2, 3]), slots(4, 5, 6), **{name: 3}).adopted == ((0, 3),)


class TestEvict:
    def test_least_recent_leaf_goes_first_and_whole(self, cache: RadixCache) -> None:
        """R5: one token asked for, one leaf of three gone."""
        put(cache, [1, 2, 3], 100)
        put(cache, [4, 5, 6], 200)
        result = cache.evict(1)
        assert (result.full_evicted, result.swa_evicted, result.mamba_evicted) == (3, 0, 0)
        assert find(cache, [1, 2, 3]) == []
        assert find(cache, [4, 5, 6]) == [200, 201, 202]

    def test_match_refreshes_what_it_returns(self, cache: RadixCache) -> None:
        """R8: insert A, insert B, match A, evict: B goes."""
        put(cache, [1, 2, 3])
        put(cache, [4, 5, 6])
        find(cache, [1, 2, 3])
        cache.evict(1)
        assert len(find(cache, [1, 2, 3])) == 3
        assert find(cache, [4, 5, 6]) == []

    def test_unmatched_rest_of_a_split_node_stays_old(self, cache: RadixCache) -> None:
        """R8: only the returned path is refreshed, not what hangs below it."""
        put(cache, [1, 2, 3, 4])
        put(cache, [7, 8], 200)
        find(cache, [1, 2])
        cache.evict(1)
        assert len(find(cache, [1, 2, 3, 4])) == 2
        assert len(find(cache, [7, 8])) == 2

    def test_matched_half_of_a_split_node_is_young(self, cache: RadixCache) -> None:
        """R8: the prefix that was just hit is not the next victim."""
        put(cache, [1, 2, 3, 4])
        put(cache, [7, 8], 200)
        find(cache, [1, 2])
        cache.evict(3)
        assert len(find(cache, [1, 2])) == 2
        assert find(cache, [7, 8]) == []

    def test_parents_become_leaves(self, cache: RadixCache) -> None:
        """R5: again and again until enough is gone."""
        put(cache, [1, 2, 3, 4])
        put(cache, [1, 2, 5, 6], 200)
        assert cache.evict(6).full_evicted == 6
        assert cache.total_size() == 0
        assert cache.root_node.children == {}

    def test_child_goes_before_its_parent_of_the_same_access(self, cache: RadixCache) -> None:
        """R5, R8: a parent is older by depth but no leaf."""
        put(cache, [1, 2, 3, 4])
        find(cache, [1, 2])
        put(cache, [1, 2, 3, 4])
        cache.evict(1)
        assert len(find(cache, [1, 2, 3, 4])) == 2

    @pytest.mark.parametrize("tokens", [0, -1, -100])
    def test_nothing_asked_takes_nothing(self, cache: RadixCache, tokens: int) -> None:
        """R5: n <= 0 takes no part."""
        put(cache, [1, 2])
        assert cache.evict(tokens).full_evicted == 0
        assert cache.total_size() == 2

    def test_window_tokens_are_ignored_without_a_window(self, cache: RadixCache) -> None:
        """S3: without a window m is ignored."""
        put(cache, [1, 2])
        result = cache.evict(0, 100)
        assert (result.full_evicted, result.swa_evicted) == (0, 0)
        assert cache.total_size() == 2

    def test_eviction_takes_all_it_can_and_no_more(self, cache: RadixCache) -> None:
        """R5: min(n, evictable) at least, and one leaf fewer would have been too few."""
        for first in range(10):
            put(cache, [first, 50, 60], 100 * first)
        assert cache.evict(4).full_evicted == 6
        assert cache.evict(6).full_evicted == 6
        assert cache.evict(1000).full_evicted == 18
        assert cache.evict(1).full_evicted == 0

    def test_victims_go_back_to_the_pool_in_one_call(
        self, pooled: RadixCache, pool: RecordingPool, effects: list[Effect]
    ) -> None:
        """X2: one free for everything that is removed."""
        for first in range(3):
            pooled.insert(RadixKey([first] * 8), pool.alloc(8))
        assert pooled.evict(12).full_evicted == 16
        (freed,) = effects
        assert freed.call == "free"
        assert sorted(freed.slots) == list(range(4, 20))
        assert pool.available_size() == 64 - 8

    def test_callback_names_each_removed_node_in_order(self) -> None:
        """R5: once per node, children before parents."""
        removed: list[int] = []
        cache = RadixCache(on_node_evict=removed.append)
        old = put(cache, [1, 2, 3, 4])
        new = put(cache, [1, 2, 5, 6], 200)
        cache.evict(100)
        assert removed == [old.id, new.id, removed[-1]]
        assert len(set(removed)) == 3

    def test_locked_nodes_are_never_taken(self, cache: RadixCache) -> None:
        """R6: a hold protects the path, and nothing beside or below it."""
        put(cache, [1, 2, 3, 4])
        node = cache.match_prefix(RadixKey([1, 2])).last_node
        put(cache, [7, 8], 200)
        cache.inc_lock_ref(node)
        assert cache.evict(100).full_evicted == 4
        assert find(cache, [1, 2, 3, 4]) == [100, 101]
        assert cache.evict(1).full_evicted == 0

    @pytest.mark.parametrize("tokens", [1.5, "1", None])
    def test_tokens_to_evict_are_an_integer(self, cache: RadixCache, tokens: Any) -> None:
        """X1: nothing is evicted for a number of another type."""
        put(cache, [1, 2])
        with pytest.raises(TypeError):
            cache.evict(tokens)
        with pytest.raises(TypeError):
            cache.evict(0, tokens)
        assert cache.total_size() == 2


class TestLocks:
    def test_hold_counts_on_the_whole_path(self, cache: RadixCache) -> None:
        """R6: lock_ref is the number of holds at or below the node."""
        put(cache, [1, 2, 3, 4])
        upper = cache.match_prefix(RadixKey([1, 2])).last_node
        lower = cache.match_prefix(RadixKey([1, 2, 3, 4])).last_node
        cache.inc_lock_ref(lower)
        cache.inc_lock_ref(upper)
        assert (upper.lock_ref, lower.lock_ref, cache.root_node.lock_ref) == (2, 1, 1)
        cache.dec_lock_ref(lower)
        assert (upper.lock_ref, lower.lock_ref) == (1, 0)

    def test_hold_moves_tokens_from_evictable_to_protected(self, cache: RadixCache) -> None:
        """R7: sizes follow the first hold and the last release, node by node."""
        node = put(cache, [1, 2, 3, 4])
        put(cache, [1, 2, 5], 200)
        assert (cache.evictable_size(), cache.protected_size(), cache.total_size()) == (5, 0, 5)
        cache.inc_lock_ref(node)
        cache.inc_lock_ref(node)
        assert (cache.evictable_size(), cache.protected_size(), cache.total_size()) == (1, 4, 5)
        cache.dec_lock_ref(node)
        assert cache.protected_size() == 4
        cache.dec_lock_ref(node)
        assert (cache.evictable_size(), cache.protected_size(), cache.total_size()) == (5, 0, 5)

    def test_sizes_survive_a_child_of_a_leaf(self, cache: RadixCache) -> None:
        """R7: a leaf that gains a child keeps counting, locked or not."""
        node = put(cache, [1, 2])
        cache.inc_lock_ref(node)
        put(cache, [1, 2, 3])
        assert (cache.evictable_size(), cache.protected_size()) == (1, 2)
        cache.dec_lock_ref(node)
        assert (cache.evictable_size(), cache.protected_size()) == (3, 0)

    def test_split_of_a_held_node_keeps_the_hold(self, cache: RadixCache) -> None:
        """R6, R10: the node that is held keeps its object, both halves their count."""
        node = put(cache, [1, 2, 3, 4])
        cache.inc_lock_ref(node)
        find(cache, [1, 2])
        upper = node.parent
        assert (upper.lock_ref, node.lock_ref) == (1, 1)
        assert cache.protected_size() == 4
        cache.dec_lock_ref(node)
        assert (upper.lock_ref, node.lock_ref) == (0, 0)

    def test_hold_returns_no_token_without_a_window(self, cache: RadixCache) -> None:
        """S5: swa_boundary_id is the window's."""
        assert cache.inc_lock_ref(put(cache, [1, 2])) is None

    def test_root_and_none_are_no_ops(self, cache: RadixCache) -> None:
        """R6: a request without a hit holds nothing."""
        for node in (None, cache.root_node):
            assert cache.inc_lock_ref(node) is None
            cache.dec_lock_ref(node)
            cache.dec_lock_ref(node)
        assert cache.root_node.lock_ref == 1

    def test_release_without_a_hold_is_refused(self, cache: RadixCache) -> None:
        """R6: not even where the count is positive because of a hold further down."""
        lower = put(cache, [1, 2, 3, 4])
        upper = cache.match_prefix(RadixKey([1, 2])).last_node
        with pytest.raises(LockError, match=str(upper.id)):
            cache.dec_lock_ref(upper)
        cache.inc_lock_ref(lower)
        with pytest.raises(LockError, match=str(upper.id)):
            cache.dec_lock_ref(upper)
        assert (upper.lock_ref, lower.lock_ref) == (1, 1)

    def test_second_release_is_refused(self, cache: RadixCache) -> None:
        """R6: one release per hold."""
        node = put(cache, [1, 2])
        cache.inc_lock_ref(node)
        cache.dec_lock_ref(node)
        with pytest.raises(LockError):
            cache.dec_lock_ref(node)
        assert node.lock_ref == 0

    def test_lock_errors_are_usage_errors(self) -> None:
        """X1: a caller may catch ValueError."""
        for error in (LockError, StaleNodeError, OwnershipError):
            assert issubclass(error, UsageError)
            assert issubclass(error, ValueError)

    def test_holds_move_no_recency(self, cache: RadixCache) -> None:
        """R8: locking and unlocking A leaves it the oldest."""
        node = put(cache, [1, 2])
        put(cache, [3, 4], 200)
        cache.inc_lock_ref(node)
        cache.dec_lock_ref(node)
        cache.evict(1)
        assert find(cache, [1, 2]) == []

    @pytest.mark.parametrize("node", [5, "node", object()])
    def test_something_that_is_no_node_is_refused(self, cache: RadixCache, node: Any) -> None:
        """X1: the error names the type."""
        for call in (cache.inc_lock_ref, cache.dec_lock_ref, cache.compute_node_hash):
            with pytest.raises(TypeError, match=type(node).__name__):
                call(node)


def each_use(cache: RadixCache) -> list[Callable[[Any], object]]:
    return [cache.inc_lock_ref, cache.dec_lock_ref, cache.compute_node_hash]


class TestStaleNodes:
    def test_evicted_node_is_refused(self, cache: RadixCache) -> None:
        """X1: a node that was removed has no slots and no hold."""
        node = put(cache, [1, 2])
        cache.evict(100)
        assert node.evicted
        assert node.value is None
        for use in each_use(cache):
            with pytest.raises(StaleNodeError, match=str(node.id)):
                use(node)

    def test_node_of_before_a_reset_is_refused(self, cache: RadixCache) -> None:
        """X7: old nodes are stale, held or not, and the old root stays a no-op."""
        node, root = put(cache, [1, 2]), cache.root_node
        cache.inc_lock_ref(node)
        cache.reset()
        for use in each_use(cache):
            with pytest.raises(StaleNodeError):
                use(node)
        cache.dec_lock_ref(root)
        cache.inc_lock_ref(root)
        assert root is not cache.root_node

    def test_node_of_another_cache_is_refused(self, cache: RadixCache) -> None:
        """X1: not even where the other cache holds the same tokens; the same goes for its root."""
        other = RadixCache()
        node = put(other, [1, 2])
        put(cache, [1, 2])
        for use in each_use(cache):
            for stranger in (node, other.root_node):
                with pytest.raises(StaleNodeError):
                    use(stranger)
        assert node.lock_ref == 0


class TestRecencyAndIds:
    def test_clock_is_logical(self, cache: RadixCache) -> None:
        """X3, R8: one tick per match or insert, the same along the path, a float."""
        first = put(cache, [1, 2])
        second = put(cache, [1, 2, 3, 4])
        assert isinstance(second.last_access_time, float)
        assert first.last_access_time == second.last_access_time == 2.0
        assert float(int(second.last_access_time)) == second.last_access_time

    def test_nodes_compare_by_access_then_depth(self, cache: RadixCache) -> None:
        """R8: smaller is older; of one access, the shallower is older."""
        old = put(cache, [7, 8, 9])
        upper = put(cache, [1, 2])
        lower = put(cache, [1, 2, 3])
        assert old < upper
        assert upper < lower
        assert not lower < upper
        assert not upper < upper
        assert sorted([lower, upper, old]) == [old, upper, lower]

    def test_split_copies_the_recency(self, cache: RadixCache) -> None:
        """R8: the half that nobody asked for keeps its access."""
        node = put(cache, [1, 2, 3, 4])
        put(cache, [9])
        before = node.last_access_time
        find(cache, [1, 2])
        assert node.last_access_time == before
        assert node.parent.last_access_time > before

    def test_sizes_hashes_and_evictions_are_no_access(self, cache: RadixCache) -> None:
        """R8: looking at a node does not make it younger."""
        node = put(cache, [1, 2])
        put(cache, [3])
        before = node.last_access_time
        cache.compute_node_hash(node)
        cache.total_size()
        cache.pretty_print()
        cache.evict(0)
        assert node.last_access_time == before

    def test_ids_count_up_and_are_never_reused(self, cache: RadixCache) -> None:
        """X3: over evictions, splits and resets."""
        seen = [cache.root_node.id]
        for round_number in range(3):
            node = put(cache, [round_number, 1, 2])
            find(cache, [round_number, 1])
            seen += [node.id, node.parent.id]
            cache.evict(100)
        cache.reset()
        seen += [cache.root_node.id, put(cache, [1]).id]
        assert seen == sorted(set(seen))

    def test_ids_do_not_depend_on_other_caches(self) -> None:
        """X3: two caches that are used alike name their nodes alike."""
        ids = []
        for _ in range(2):
            cache = RadixCache()
            ids.append([put(cache, [1, 2]).id, put(cache, [1, 3], 200).id])
        assert ids[0] == ids[1]


class TestFaults:
    @pytest.fixture
    def broken(self, pool: RecordingPool) -> RadixCache:
        cache = RadixCache(4, token_to_kv_pool_allocator=pool)
        for first in range(3):
            cache.insert(RadixKey([first] * 8), pool.alloc(8))
        cache.match_prefix(RadixKey([0] * 4))
        pool.fault = Fault("free")
        return cache

    def test_refused_eviction_leaves_everything_cached(self, broken: RadixCache, pool: RecordingPool) -> None:
        """X2: what the pool has not taken is still in the tree, and can be evicted later."""
        before = state(broken)
        with pytest.raises(InjectedFault):
            broken.evict(20)
        assert state(broken) == before
        check_radix_cache(broken)
        pool.fault = None
        assert broken.evict(20).full_evicted == 20
        check_radix_cache(broken)

    def test_refused_eviction_calls_nobody_back(self, broken: RadixCache) -> None:
        """X2: nothing was removed."""
        broken.on_node_evict = pytest.fail
        with pytest.raises(InjectedFault):
            broken.evict(20)

    def test_refused_reset_drops_the_tree(self, broken: RadixCache) -> None:
        """X7: whoever cleared the pool first gets its error, and an empty cache."""
        node = next(iter(broken.root_node.children.values()))
        with pytest.raises(InjectedFault):
            broken.reset()
        assert (broken.total_size(), broken.root_node.children) == (0, {})
        with pytest.raises(StaleNodeError):
            broken.inc_lock_ref(node)
        check_radix_cache(broken)

    def test_reset_after_the_pool_was_cleared_raises_and_empties(
        self, pooled: RadixCache, pool: RecordingPool
    ) -> None:
        """X7: a real pool refuses slots that it has taken back already."""
        pooled.insert(RadixKey([1] * 4), pool.alloc(4))
        pool.inner.clear()
        with pytest.raises(OwnershipError):
            pooled.reset()
        assert pooled.total_size() == 0
        pooled.insert(RadixKey([1] * 4), pool.alloc(4))
        check_radix_cache(pooled)

    def test_all_callbacks_run_and_the_first_error_is_raised(self) -> None:
        """X2: an observer that fails cannot stop an eviction half-way."""
        called: list[int] = []

        def fail(node_id: int) -> None:
            called.append(node_id)
            raise KeyError(node_id)

        cache = RadixCache(on_node_evict=fail)
        nodes = [put(cache, [first, 1]) for first in range(3)]
        with pytest.raises(KeyError, match=str(nodes[0].id)):
            cache.evict(100)
        assert called == [node.id for node in nodes]
        assert cache.total_size() == 0
        check_radix_cache(cache)
        assert put(cache, [1, 2]) is not None

    def test_an_interrupt_leaves_a_callback_at_once(self) -> None:
        """X2: the rest is not called, which whoever interrupts wants; the eviction itself is complete."""
        called: list[int] = []

        def interrupt(node_id: int) -> None:
            called.append(node_id)
            raise KeyboardInterrupt

        cache = RadixCache(on_node_evict=interrupt)
        first, _ = put(cache, [1, 1]), put(cache, [2, 1])
        with pytest.raises(KeyboardInterrupt):
            cache.evict(100)
        assert called == [first.id]
        assert cache.total_size() == 0
        check_radix_cache(cache)
        assert put(cache, [1, 2]) is not None


class TestReentrancy:
    def test_callback_may_ask_sizes_hashes_and_print(self, capsys: pytest.CaptureFixture[str]) -> None:
        """X6: it sees the books as they are after the eviction."""
        seen: list[Any] = []
        cache = RadixCache()
        kept = put(cache, [5, 6, 7])
        put(cache, [1, 2])
        cache.match_prefix(RadixKey([5, 6, 7]))

        def look(node_id: int) -> None:
            cache.pretty_print()
            sizes = cache.evictable_size(), cache.protected_size(), cache.total_size()
            seen.append((sizes, cache.swa_evictable_size(), cache.swa_protected_size()))
            seen.append(len(cache.compute_node_hash(kept)))

        cache.on_node_evict = look
        cache.evict(1)
        assert seen == [((3, 0, 3), 0, 0), 3]
        assert "3 tokens" in capsys.readouterr().out

    @pytest.mark.parametrize(
        "call",
        [
            lambda cache, node: cache.match_prefix(RadixKey([1])),
            lambda cache, node: cache.insert(RadixKey([1])),
            lambda cache, node: cache.evict(1),
            lambda cache, node: cache.inc_lock_ref(node),
            lambda cache, node: cache.dec_lock_ref(node),
            lambda cache, node: cache.reset(),
        ],
        ids=["match_prefix", "insert", "evict", "inc_lock_ref", "dec_lock_ref", "reset"],
    )
    def test_any_other_call_from_a_callback_is_refused(self, call: Callable[..., object]) -> None:
        """X6: match_prefix included, because it splits and stamps."""
        cache = RadixCache()
        kept = put(cache, [5, 6, 7])
        put(cache, [1, 2])
        cache.inc_lock_ref(kept)
        before = kept.last_access_time, kept.lock_ref
        cache.on_node_evict = lambda node_id: call(cache, kept)
        with pytest.raises(RuntimeError, match="on_node_evict"):
            cache.evict(1)
        assert (kept.last_access_time, kept.lock_ref) == before
        assert cache.total_size() == 3
        cache.on_node_evict = None
        cache.evict(1)
        check_radix_cache(cache)


class TestReset:
    def test_reset_returns_every_slot_whatever_is_held(self, pooled: RadixCache, pool: RecordingPool) -> None:
        """X7: and calls nobody back."""
        pooled.on_node_evict = pytest.fail
        node = pooled.insert(RadixKey([1] * 8), pool.alloc(8)).last_node
        pooled.insert(RadixKey([2] * 8), pool.alloc(8))
        pooled.inc_lock_ref(node)
        pooled.reset()
        assert pool.available_size() == 64
        assert (pooled.evictable_size(), pooled.protected_size(), pooled.total_size()) == (0, 0, 0)

    def test_reset_cache_behaves_like_a_new_one(self, cache: RadixCache) -> None:
        """X7: recency and contents start again; only node ids go on."""
        put(cache, [1, 2, 3])
        find(cache, [1, 2])
        cache.reset()
        new = RadixCache()
        for target in (cache, new):
            put(target, [1, 2], 200)
            put(target, [1, 3], 300)
        ages = [[view.last_access for view in view_tree(each.root_node)] for each in (cache, new)]
        assert ages[0] == ages[1]
        assert find(cache, [1, 2]) == find(new, [1, 2]) == [200, 201]
        assert cache.evict(1) == new.evict(1)

    def test_reset_of_an_empty_cache_asks_no_pool(
        self, pooled: RadixCache, pool: RecordingPool, effects: list[Effect]
    ) -> None:
        """X7: there is nothing to return."""
        pooled.reset()
        assert effects == []


class TestPrettyPrint:
    def test_every_node_has_a_line(self, cache: RadixCache, capsys: pytest.CaptureFixture[str]) -> None:
        """Section 4: to standard output, children below and right of their parent, ids and locks shown."""
        lower = put(cache, [1, 2, 3, 4])
        other = put(cache, [1, 2, 5], 200)
        cache.inc_lock_ref(other)
        cache.pretty_print()
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 4
        indents = {node.id: next(line for line in lines if f"#{node.id} " in line) for node in (lower, other)}
        parent = next(line for line in lines if f"#{lower.parent.id} " in line)
        assert all(
            len(line) - len(line.lstrip()) > len(parent) - len(parent.lstrip()) for line in indents.values()
        )
        assert "lock_ref=1" in indents[other.id]

    def test_empty_cache_prints_its_size(self, cache: RadixCache, capsys: pytest.CaptureFixture[str]) -> None:
        """Section 4: an empty tree is one line."""
        cache.pretty_print()
        assert capsys.readouterr().out.count("\n") == 1

    def test_node_repr_names_the_node(self, cache: RadixCache) -> None:
        """Section 4: a node in an error message is recognisable."""
        node = put(cache, [1, 2])
        assert f"id={node.id}" in repr(node)


class _CallsBack(SWATokenToKVPoolAllocator):
    """A pool that uses the cache it serves when one of its methods is called."""

    where = ""
    call: Callable[[], object]

    def free(self, indices: torch.Tensor) -> None:
        self._call_back("free")
        super().free(indices)

    def free_swa(self, indices: torch.Tensor) -> None:
        self._call_back("free_swa")
        super().free_swa(indices)

    def move_swa(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        self._call_back("move_swa")
        super().move_swa(src, dst)

    def _call_back(self, method: str) -> None:
        if method == self.where:
            self.call()


class TestPoolsThatCallBack:
    @pytest.fixture
    def pool(self) -> _CallsBack:
        return _CallsBack(16, 16, "cpu", 1, False)

    @pytest.mark.parametrize(
        ("where", "window", "inserts", "act"),
        [
            ("free", None, False, lambda cache, slot: cache.evict(1)),
            ("free", 1, False, lambda cache, slot: cache.evict(1)),
            ("free_swa", 1, False, lambda cache, slot: cache.evict(0, 1)),
            ("free", 1, True, lambda cache, slot: cache.insert(RadixKey([1]), slot)),
            ("move_swa", 1, True, lambda cache, slot: cache.insert(RadixKey([1]), slot)),
        ],
    )
    @pytest.mark.parametrize("name", ["match_prefix", "insert", "evict", "inc_lock_ref", "reset"])
    def test_pool_amid_a_call_is_kept_out(
        self,
        pool: _CallsBack,
        where: str,
        window: int | None,
        inserts: bool,
        act: Callable[..., object],
        name: str,
    ) -> None:
        """X6, X2: the call that asked the pool fails, nothing changed, and the cache takes calls again."""
        cache = RadixCache(1, window, pool)
        cache.insert(RadixKey([1]), pool.alloc(1))
        deep = cache.insert(RadixKey([1, 2]), pool.alloc(2)).last_node
        slot = pool.alloc(1)
        if inserts:  # what a tombstone is revived from
            cache.evict(0, 1)
        if where == "move_swa":
            cache.inc_lock_ref(deep)
        before = cache.total_size(), cache.swa_evictable_size(), deep.lock_ref, deep.last_access_time
        arguments = {"match_prefix": RadixKey([1]), "insert": RadixKey([7]), "evict": 1, "inc_lock_ref": deep}
        given = [arguments[name]] if name in arguments else []
        pool.where, pool.call = where, lambda: getattr(cache, name)(*given)
        with pytest.raises(RuntimeError, match=f"{name} was called from a pool"):
            act(cache, slot)
        assert before == (
            cache.total_size(),
            cache.swa_evictable_size(),
            deep.lock_ref,
            deep.last_access_time,
        )
        check_radix_cache(cache)
        pool.where = ""
        assert cache.match_prefix(RadixKey([1, 2])).prefix_len == 2

    def test_pool_cannot_fill_a_cache_that_is_reset(self, pool: _CallsBack) -> None:
        """X6, X7: the error is raised, the cache is empty, and takes calls again."""
        cache = RadixCache(1, None, pool)
        cache.insert(RadixKey([1]), pool.alloc(1))
        pool.where, pool.call = "free", lambda: cache.insert(RadixKey([2]), torch.tensor([9]))
        with pytest.raises(RuntimeError, match="insert was called from a pool"):
            cache.reset()
        assert cache.total_size() == 0
        assert cache.match_prefix(RadixKey([1])).prefix_len == 0


class _ShortOfMemory(TokenToKVPoolAllocator):
    """Has no memory for the next call of `free`, or is interrupted in it."""

    error: type[BaseException] | None = None
    is_late = False

    def free(self, indices: torch.Tensor) -> None:
        error, self.error = self.error, None
        if error is None or self.is_late:
            super().free(indices)
        if error is not None:
            raise error


@pytest.fixture
def short() -> tuple[RadixCache, _ShortOfMemory]:
    pool = _ShortOfMemory(8, "cpu")
    cache = RadixCache(1, None, pool)
    cache.insert(RadixKey([1, 2, 3]), pool.alloc(3))
    cache.insert(RadixKey([4, 5]), pool.alloc(2))
    return cache, pool


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_reset_without_memory_changes_nothing(
    short: tuple[RadixCache, _ShortOfMemory], error: type[Exception]
) -> None:
    """X2, X7: a pool that has no memory has refused nothing; the next reset gives all back."""
    cache, pool = short
    pool.error = error
    with pytest.raises(error):
        cache.reset()
    check_radix_cache(cache)
    assert (cache.total_size(), pool.available_size()) == (5, 3)
    cache.reset()
    assert (cache.total_size(), pool.available_size()) == (0, 8)


@pytest.mark.parametrize("call", [lambda cache: cache.evict(9), lambda cache: cache.reset()])
def test_interrupt_behind_the_pools_work_is_healed_by_a_reset(
    short: tuple[RadixCache, _ShortOfMemory], call: Callable[[RadixCache], Any]
) -> None:
    """X7: slots that the pool has already are not given back again."""
    cache, pool = short
    pool.error, pool.is_late = KeyboardInterrupt, True
    with pytest.raises(KeyboardInterrupt):
        call(cache)
    cache.reset()
    assert (cache.total_size(), pool.available_size()) == (0, 8)


def test_reset_heals_a_call_that_never_ended(short: tuple[RadixCache, _ShortOfMemory]) -> None:
    """X6, X7: what an interrupt left of a callback refuses a match, and no reset."""
    cache, pool = short
    cache._callbacks.inside, cache._callbacks._thread = "on_node_evict", get_ident()
    with pytest.raises(RuntimeError, match="match_prefix was called from on_node_evict"):
        cache.match_prefix(RadixKey([1]))
    cache.reset()
    assert (cache.match_prefix(RadixKey([1])).prefix_len, pool.available_size()) == (0, 8)


def test_reset_in_a_callback_of_a_subclass_is_refused(short: tuple[RadixCache, _ShortOfMemory]) -> None:
    """X6: also where the call goes through another class, and where another cache is amid a call."""

    class Own(RadixCache):
        def reset(self) -> None:
            super().reset()

    cache, pool = short
    own = Own(1, None, None, lambda node: own.reset())
    own.insert(RadixKey([1]))
    with pytest.raises(RuntimeError, match="reset was called from on_node_evict"):
        own.evict(1)
    own.insert(RadixKey([1]))
    own.on_node_evict = lambda node: cache.reset()
    assert own.evict(1).full_evicted == 1
    assert pool.available_size() == 8


@pytest.mark.parametrize("window", [None, 2])
def test_eviction_that_cannot_be_planned_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """X2: whoever was chosen by then waits where it did."""
    cache = RadixCache(1, window)
    for tokens in ([1, 2, 3], [1, 2, 4], [5, 6]):
        cache.insert(RadixKey(tokens))
    choose, calls = cache._tree.victims.oldest_leaf, []

    def oldest_leaf() -> TreeNode | None:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return choose()

    with monkeypatch.context() as patch:
        patch.setattr(cache._tree.victims, "oldest_leaf", oldest_leaf)
        with pytest.raises(MemoryError):
            cache.evict(9)
    check_radix_cache(cache)
    assert cache.total_size() == 6
    assert cache.evict(9).full_evicted == 6
