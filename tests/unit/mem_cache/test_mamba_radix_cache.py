"""`MambaRadixCache`, law by law; what evictions choose is in test_cached_states."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from recording_hybrid import RecordingHybrid

from pymllm.adapters.failing_calls import InjectedFault
from pymllm.errors import LockError, OwnershipError, StaleNodeError
from pymllm.invariants import check_gdn_pool, check_mamba_radix_cache
from pymllm.mem_cache import (
    BasePrefixCache,
    GDNPool,
    MambaRadixCache,
    MambaTreeNode,
    RadixCache,
    RadixKey,
    TokenToKVPoolAllocator,
    mamba_radix_cache,
)


def slots(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def put(
    cache: MambaRadixCache, tokens: Any, state: int | None = None, first: int = 100, extra_key: Any = None
) -> MambaTreeNode:
    """Insert tokens with slots ``first, first + 1, ..`` and perhaps a state, and return the node."""
    value = torch.arange(first, first + len(tokens))
    track_slot = None if state is None else slots(state)
    return cache.insert(RadixKey(tokens, extra_key), value, mamba_value=track_slot).last_node


def find(cache: MambaRadixCache, tokens: Any, extra_key: Any = None) -> list[int]:
    """Match tokens and return the slots."""
    return cache.match_prefix(RadixKey(tokens, extra_key)).indices.tolist()


def path_of(node: MambaTreeNode) -> list[Any]:
    """Spell a node by climbing to the root."""
    tokens: list[Any] = []
    at: MambaTreeNode | None = node
    while at is not None:
        assert at.key is not None
        tokens = [*at.key, *tokens]
        at = at.parent
    return tokens


def state(cache: MambaRadixCache) -> Any:
    """Everything that can be seen of a cache, as plain data."""
    check_mamba_radix_cache(cache)
    fields = (
        "id last_access_time hit_count full_lock_ref mamba_lock_ref mamba_tombstone hash_values _track_slot"
    )
    seen = [
        (path_of(node), node.value.tolist(), *(getattr(node, field) for field in fields.split()))
        for node in cache.full_lru
    ]
    sizes = cache.evictable_size(), cache.protected_size(), cache.total_size()
    states = cache.mamba_evictable_size(), cache.mamba_protected_size()
    return seen, [node.id for node in cache.mamba_lru], sizes, states


@pytest.fixture
def cache() -> MambaRadixCache:
    return MambaRadixCache()


@pytest.fixture
def pools() -> RecordingHybrid:
    return RecordingHybrid(64, 8, page_size=4)


@pytest.fixture
def pooled(pools: RecordingHybrid) -> MambaRadixCache:
    return MambaRadixCache(4, pools.kv, pools.states)


def put_pooled(
    cache: MambaRadixCache, pools: RecordingHybrid, tokens: list[int], with_state: bool = True
) -> MambaTreeNode:
    """Insert new tokens with slots of the pool, and a state of the other pool."""
    track_slot = torch.tensor([pools.states.alloc_track_slot()]) if with_state else None
    result = cache.insert(RadixKey(tokens), pools.kv.alloc(len(tokens)), mamba_value=track_slot)
    assert result.adopted == ((0, len(tokens)),)
    return result.last_node


class TestConstructor:
    def test_documented_attributes_are_there(self, pools: RecordingHybrid) -> None:
        """Section 7: the arguments are kept under their documented names."""
        cache = MambaRadixCache(4, pools.kv, pools.states, print)
        assert (cache.page_size, cache.pool, cache.mamba_pool) == (4, pools.kv, pools.states)
        assert cache.on_node_evict is print
        assert isinstance(cache, BasePrefixCache)

    def test_defaults_are_the_documented_ones(self, cache: MambaRadixCache) -> None:
        """Section 7: one token per page, no pools, no callback."""
        assert cache.page_size == 1
        assert (cache.pool, cache.mamba_pool, cache.on_node_evict) == (None, None, None)

    def test_new_cache_is_empty(self, cache: MambaRadixCache) -> None:
        """R7, M6, M8: nothing is cached, and both lists are there, each in its mode."""
        assert state(cache) == ([], [], (0, 0, 0), (0, 0))
        assert (cache.full_lru.mamba, cache.mamba_lru.mamba) == (False, True)
        assert (cache.swa_evictable_size(), cache.swa_protected_size()) == (0, 0)

    @pytest.mark.parametrize("size", [0, -1])
    def test_page_size_is_positive(self, size: int) -> None:
        """X1: the error names the value."""
        with pytest.raises(ValueError, match=f"page_size.*{size}"):
            MambaRadixCache(size)

    @pytest.mark.parametrize("size", [1.0, "1", None, True])
    def test_page_size_is_an_integer(self, size: Any) -> None:
        """X1: a float page would make float slots."""
        with pytest.raises(TypeError, match="page_size"):
            MambaRadixCache(size)

    def test_page_size_is_the_pools(self, pools: RecordingHybrid) -> None:
        """R1: pages of two sizes would be freed in halves."""
        with pytest.raises(ValueError, match=r"page_size is 2.*4"):
            MambaRadixCache(2, pools.kv)


class TestMatch:
    def test_empty_cache_matches_nothing(self, cache: MambaRadixCache) -> None:
        """R2: an empty result is an int64 tensor of length 0 and the root."""
        match = cache.match_prefix(RadixKey([1, 2, 3]))
        assert (match.indices.shape, match.indices.dtype) == ((0,), torch.int64)
        assert (match.prefix_len, match.last_node) == (0, cache.root_node)
        assert match.mamba_branching_seqlen is None

    def test_match_ends_at_the_deepest_state(self, cache: MambaRadixCache) -> None:
        """M2, R2: the slots of the whole path in order, and the node whose state to restore."""
        put(cache, [1, 2], 50)
        node = put(cache, [1, 2, 3, 4], 51, 200)
        match = cache.match_prefix(RadixKey([1, 2, 3, 4, 5]))
        assert match.indices.tolist() == [100, 101, 202, 203]
        assert match.prefix_len == 4
        assert match.last_node is node
        assert match.last_node.mamba_value.tolist() == [51]
        assert match.mamba_branching_seqlen is None

    def test_tokens_without_a_state_cannot_be_resumed_from(self, cache: MambaRadixCache) -> None:
        """M2: KV beyond the last state is not returned; its length is."""
        put(cache, [1, 2], 50)
        put(cache, [1, 2, 3, 4], first=200)
        match = cache.match_prefix(RadixKey([1, 2, 3, 4, 5]))
        assert (match.indices.tolist(), match.prefix_len) == ([100, 101], 2)
        assert match.mamba_branching_seqlen == 4
        assert path_of(match.last_node) == [1, 2]

    def test_match_inside_a_node_ends_before_it(self, cache: MambaRadixCache) -> None:
        """M2: a state after four tokens is none after three, and where KV branches a state would pay."""
        put(cache, [1, 2, 3, 4], 50)
        match = cache.match_prefix(RadixKey([1, 2, 3, 9]))
        assert (match.prefix_len, match.mamba_branching_seqlen) == (0, 3)
        assert match.last_node is cache.root_node

    def test_a_longer_match_passes_over_nodes_without_a_state(self, cache: MambaRadixCache) -> None:
        """M2: only the end of the prefix needs a state."""
        put(cache, [1, 2])
        put(cache, [1, 2, 3], first=200)
        put(cache, [1, 2, 3, 4], 50, 300)
        assert find(cache, [1, 2, 3, 4]) == [100, 101, 202, 303]
        assert find(cache, [1, 2, 3]) == []

    def test_match_never_splits(self, cache: MambaRadixCache) -> None:
        """R2: states end nodes, so the returned prefix never ends inside one."""
        node = put(cache, [1, 2, 3, 4], 50)
        for tokens in ([1, 2], [1, 2, 3, 4, 5], [7], [1, 2, 3, 4]):
            find(cache, tokens)
        assert len(cache.full_lru) == 1
        assert path_of(node) == [1, 2, 3, 4]

    def test_match_ends_with_whole_pages(self) -> None:
        """R1, R2, M2: half a page is neither matched nor a place to branch."""
        cache = MambaRadixCache(4)
        put(cache, [1, 2, 3, 4, 5, 6, 7, 8], 50)
        match = cache.match_prefix(RadixKey([1, 2, 3, 4, 5, 6, 9, 9]))
        assert (match.prefix_len, match.mamba_branching_seqlen) == (0, 4)
        match = cache.match_prefix(RadixKey([1, 2, 3, 9]))
        assert (match.prefix_len, match.mamba_branching_seqlen) == (0, None)
        assert find(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == list(range(100, 108))

    def test_namespaces_share_nothing(self, cache: MambaRadixCache) -> None:
        """K1: neither KV nor states of equal tokens; "1" and 1 are two names."""
        spaces = ((100, None, 50), (200, "1", 51), (300, 1, 52))
        for first, extra_key, track_slot in spaces:
            put(cache, [1, 2], track_slot, first, extra_key)
        for first, extra_key, track_slot in spaces:
            match = cache.match_prefix(RadixKey([1, 2, 3], extra_key))
            assert match.indices.tolist() == [first, first + 1]
            assert match.last_node.mamba_value.tolist() == [track_slot]
        assert cache.match_prefix(RadixKey([1, 2], "2")).mamba_branching_seqlen is None

    def test_indices_are_a_copy(self, cache: MambaRadixCache) -> None:
        """X5: a caller that writes into its result changes nothing in the tree."""
        put(cache, [1, 2, 3], 50)
        for _ in range(2):
            match = cache.match_prefix(RadixKey([1, 2, 3]))
            assert match.indices.tolist() == [100, 101, 102]
            match.indices.fill_(-1)

    def test_match_moves_no_ownership(self, pooled: MambaRadixCache, pools: RecordingHybrid) -> None:
        """R2: slots and state stay the tree's, and the pools hear nothing."""
        put_pooled(pooled, pools, [1] * 4)
        pooled.match_prefix(RadixKey([1] * 4))
        assert pools.take_calls() == []
        assert (pooled.evictable_size(), pooled.mamba_evictable_size()) == (4, 1)

    def test_hits_are_counted_on_the_returned_path_only(self, cache: MambaRadixCache) -> None:
        """R10: neither inserts nor KV that could not be resumed from are hits; a split copies the count."""
        upper = put(cache, [1, 2], 50)
        lower = put(cache, [1, 2, 3, 4])
        find(cache, [1, 2, 3, 4])
        assert (upper.hit_count, lower.hit_count) == (1, 0)
        put(cache, [1, 2, 3, 4], 51)
        find(cache, [1, 2, 3, 4])
        half = put(cache, [1, 2, 3])
        assert (upper.hit_count, half.hit_count, lower.hit_count) == (2, 1, 1)

    def test_match_refreshes_only_what_it_returns(self, cache: MambaRadixCache) -> None:
        """R8: KV beyond the last state keeps its age."""
        upper = put(cache, [1, 2], 50)
        lower = put(cache, [1, 2, 3, 4])
        before = lower.last_access_time
        find(cache, [1, 2, 3, 4])
        assert lower.last_access_time == before < upper.last_access_time
        assert list(cache.full_lru) == [upper, lower]

    @pytest.mark.parametrize("key", [[1, 2], None, "abc", (1, 2)])
    def test_key_that_is_no_radix_key_is_refused(self, cache: MambaRadixCache, key: Any) -> None:
        """X1: the error says what to wrap the tokens in."""
        put(cache, [1, 2], 50)
        before = state(cache)
        for call in (cache.match_prefix, cache.insert):
            with pytest.raises(TypeError, match="RadixKey"):
                call(key)
        assert state(cache) == before

    @pytest.mark.parametrize("tokens", [[1, -1], [1, 2**32], np.array([1, 2**40])])
    def test_token_that_cannot_be_hashed_is_refused(self, cache: MambaRadixCache, tokens: Any) -> None:
        """X1, H1: a key is refused before anything has changed."""
        put(cache, [1, 2], 50)
        before = state(cache)
        with pytest.raises(ValueError, match="outside"):
            cache.match_prefix(RadixKey(tokens))
        assert state(cache) == before

    def test_match_after_insert_may_find_more_than_was_inserted(self, cache: MambaRadixCache) -> None:
        """M2: a request that looks again may land at another's deeper state."""
        put(cache, [1, 2, 3, 4], 51)
        put(cache, [1, 2], 50)
        assert cache.match_prefix(RadixKey([1, 2, 3, 4])).last_node.mamba_value.tolist() == [51]


class TestInsert:
    def test_insert_reports_what_was_present_before(self, cache: MambaRadixCache) -> None:
        """R3: prefix_len counts the cached KV, with or without a state; last_node spells the key."""
        put(cache, [1, 2, 3])
        result = cache.insert(RadixKey([1, 2, 8, 9]), slots(20, 21, 22, 23), mamba_value=slots(50))
        assert (result.prefix_len, result.adopted, result.mamba_exist) == (2, ((2, 4),), False)
        assert path_of(result.last_node) == [1, 2, 8, 9]
        assert find(cache, [1, 2, 8, 9]) == [100, 101, 22, 23]

    def test_cached_slots_are_not_overwritten(self, cache: MambaRadixCache) -> None:
        """R3, R4: duplicates stay the caller's, though the state is taken."""
        put(cache, [1, 2, 3])
        result = cache.insert(RadixKey([1, 2, 3]), slots(1, 2, 3), mamba_value=slots(50))
        assert (result.adopted, result.mamba_exist) == ((), False)
        assert find(cache, [1, 2, 3]) == [100, 101, 102]

    def test_state_at_the_same_place_stays_the_callers(self, cache: MambaRadixCache) -> None:
        """M1: the first state stays, and the flag says so."""
        node = put(cache, [1, 2], 50)
        result = cache.insert(RadixKey([1, 2]), slots(1, 2), mamba_value=slots(51))
        assert result.mamba_exist is True
        assert node.mamba_value.tolist() == [50]
        assert cache.mamba_evictable_size() == 1

    def test_state_of_an_ancestor_does_not_count(self, cache: MambaRadixCache) -> None:
        """M1: the caller must not free a track slot that the tree took because of a state further up."""
        put(cache, [1, 2], 50)
        result = cache.insert(RadixKey([1, 2, 3]), slots(1, 2, 3), mamba_value=slots(51))
        assert result.mamba_exist is False
        assert result.last_node.mamba_value.tolist() == [51]

    def test_insert_without_a_state_caches_kv_only(self, cache: MambaRadixCache) -> None:
        """M1: nothing can be resumed from there, and an old state stays."""
        result = cache.insert(RadixKey([1, 2]), slots(4, 5))
        assert (result.mamba_exist, result.adopted) == (False, ((0, 2),))
        assert result.last_node.mamba_tombstone
        assert find(cache, [1, 2]) == []
        put(cache, [3, 4], 50)
        assert cache.insert(RadixKey([3, 4]), slots(6, 7)).mamba_exist is False
        assert len(find(cache, [3, 4])) == 2

    def test_state_returns_to_a_tombstone(self, cache: MambaRadixCache) -> None:
        """M1, M5: a node that lost its state takes the next one."""
        node = put(cache, [1, 2], 50)
        put(cache, [1, 2, 3])
        cache.evict(0, 1)
        assert node.mamba_tombstone
        assert cache.insert(RadixKey([1, 2]), slots(1, 2), mamba_value=slots(51)).mamba_exist is False
        assert node.mamba_value.tolist() == [51]
        assert find(cache, [1, 2]) == [100, 101]

    def test_state_inside_a_node_splits_it(self, cache: MambaRadixCache) -> None:
        """M1, M3: the new upper half takes it, the lower half keeps its own."""
        lower = put(cache, [1, 2, 3, 4], 50)
        upper = put(cache, [1, 2], 51)
        assert lower.parent is upper
        assert (lower.mamba_value.tolist(), upper.mamba_value.tolist()) == ([50], [51])
        assert len(find(cache, [1, 2, 3, 4])) == 4
        assert len(find(cache, [1, 2, 3])) == 2

    def test_split_leaves_the_state_with_the_lower_half(self, cache: MambaRadixCache) -> None:
        """M3, R10: object, id and state stay below; the upper half has none."""
        lower = put(cache, [1, 2, 3, 4], 50)
        before = lower.id, lower.last_access_time
        put(cache, [1, 2, 9])
        upper = lower.parent
        assert (lower.id, lower.last_access_time) == before
        assert lower.mamba_value.tolist() == [50]
        assert upper.mamba_tombstone
        assert upper.id > lower.id

    @pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
    def test_key_without_a_whole_page_changes_nothing(self, tokens: list[int]) -> None:
        """R3: an empty key is a no-op, whatever is left over."""
        cache = MambaRadixCache(4)
        put(cache, [1, 2, 3, 4], 50)
        before = state(cache)
        result = cache.insert(RadixKey(tokens), torch.arange(len(tokens)))
        assert (result.prefix_len, result.adopted, result.last_node) == (0, (), cache.root_node)
        assert state(cache) == before

    @pytest.mark.parametrize("length", [0, 1, 3, 5, 7])
    def test_state_of_an_unaligned_key_is_refused(self, length: int) -> None:
        """M1: a state after five tokens is none after four, and none after nothing."""
        cache = MambaRadixCache(4)
        put(cache, [9] * 4, 50)
        before = state(cache)
        with pytest.raises(ValueError, match=rf"mamba_value.*{length} tokens.*pages of 4"):
            cache.insert(RadixKey([1] * length), torch.arange(length), mamba_value=slots(51))
        assert state(cache) == before

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            (5, TypeError),
            ([5], TypeError),
            (np.array([5]), TypeError),
            (torch.tensor([5.0]), TypeError),
            (torch.tensor([True]), TypeError),
            (torch.tensor([5j]), TypeError),
            (torch.tensor(5), ValueError),
            (torch.tensor([], dtype=torch.int64), ValueError),
            (torch.tensor([5, 6]), ValueError),
            (torch.tensor([[5]]), ValueError),
        ],
        ids=repr,
    )
    def test_state_is_one_track_slot_in_a_tensor(
        self, cache: MambaRadixCache, value: Any, error: type[Exception]
    ) -> None:
        """M1, X1: anything else is refused before KV is taken."""
        before = state(cache)
        with pytest.raises(error, match="mamba_value"):
            cache.insert(RadixKey([1, 2]), slots(4, 5), mamba_value=value)
        assert state(cache) == before

    @pytest.mark.parametrize(
        ("given", "words"), [(5, "an int: .*torch.tensor"), (np.int64(5), "a int64: "), ([5], "a list: ")]
    )
    def test_number_is_no_state(self, cache: MambaRadixCache, given: Any, words: str) -> None:
        """X1: whoever passes what alloc_track_slot returned reads how to wrap it."""
        with pytest.raises(TypeError, match=f"mamba_value is {words}"):
            cache.insert(RadixKey([1]), slots(4), mamba_value=given)
        assert cache.total_size() == 0

    @pytest.mark.parametrize(
        ("slot", "dtype"),
        [(0, torch.int64), (-1, torch.int8), (-(2**63), torch.int64), (2**63 + 1, torch.uint64)],
    )
    def test_number_that_is_no_track_slot_is_refused_without_a_pool(
        self, cache: MambaRadixCache, slot: int, dtype: torch.dtype
    ) -> None:
        """X1: 0 is padding, and what int64 cannot hold is no index."""
        put(cache, [1, 2], 50)
        before = state(cache)
        track_slot = torch.tensor([slot], dtype=dtype)
        with pytest.raises(OwnershipError, match=f"mamba_value is {slot}: track slots are in 1 "):
            cache.insert(RadixKey([1, 2, 3]), slots(1, 2, 3), mamba_value=track_slot)
        assert state(cache) == before

    @pytest.mark.parametrize("slot", [1, 3, 9, 10, 2**40])
    def test_state_that_the_pool_has_not_handed_out_is_refused(
        self, pooled: MambaRadixCache, pools: RecordingHybrid, slot: int
    ) -> None:
        """X1, M7: a working row, a free track slot or one beyond the last could never be given back."""
        put_pooled(pooled, pools, [1] * 4)
        before = state(pooled)
        value = pools.kv.alloc(4)
        with pytest.raises(OwnershipError, match=f"{slot}, which mamba_pool has not handed out"):
            pooled.insert(RadixKey([2] * 4), value, mamba_value=slots(slot))
        assert state(pooled) == before
        assert pooled.evict(100).mamba_evicted == 1

    def test_pool_that_cannot_tell_is_not_asked(self) -> None:
        """X1, M7: a pool of somebody else's needs no more than free_track_slot."""

        class Pool:
            def __init__(self) -> None:
                self.freed: list[int] = []

            def free_track_slot(self, slot: int) -> None:
                self.freed.append(slot)

        pool = Pool()
        cache = MambaRadixCache(mamba_pool=pool)
        put(cache, [1, 2], 5)
        cache.evict(2)
        assert pool.freed == [5]

    def test_tensors_without_numbers_are_refused(self, cache: MambaRadixCache) -> None:
        """X1: a meta tensor has a shape and nothing in it, as KV or as a state."""
        before, meta = state(cache), torch.empty(1, dtype=torch.int64, device="meta")
        for value, track_slot, name in ((slots(4), meta, "mamba_value"), (meta, None, "value")):
            with pytest.raises(TypeError, match=f"^{name} is on the meta device"):
                cache.insert(RadixKey([1]), value, mamba_value=track_slot)
        assert state(cache) == before

    def test_failure_of_the_device_is_not_hidden(
        self, cache: MambaRadixCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """X1: what torch says when it cannot read a number is not the caller's type."""

        def fail(tensor: torch.Tensor) -> Any:
            raise RuntimeError("device lost")

        for reading in ("__int__", "tolist"):
            monkeypatch.setattr(torch.Tensor, reading, fail)
        with pytest.raises(RuntimeError, match="device lost"):
            cache.insert(RadixKey([1]), slots(4), mamba_value=slots(5))
        assert cache.total_size() == 0

    @pytest.mark.parametrize("value", [slots(), slots(1, 2), slots(1, 2, 3, 4), slots(1, 2, 3)[None]])
    def test_one_slot_per_token_or_an_error(self, cache: MambaRadixCache, value: torch.Tensor) -> None:
        """R1: the error names both lengths, and the state is not taken either."""
        with pytest.raises(ValueError, match="3 tokens"):
            cache.insert(RadixKey([1, 2, 3]), value, mamba_value=slots(50))
        assert (cache.total_size(), cache.mamba_evictable_size()) == (0, 0)

    def test_pool_without_slots_is_refused(self, pooled: MambaRadixCache) -> None:
        """R1: token ids are no slots of a pool."""
        with pytest.raises(ValueError, match="value"):
            pooled.insert(RadixKey([1, 2, 3, 4]))
        assert pooled.total_size() == 0

    def test_key_page_is_one_page_of_the_pool(self, pooled: MambaRadixCache) -> None:
        """R1: slots out of order are refused where the pool checks ownership."""
        with pytest.raises(ValueError, match="7, 6, 5, 4"):
            pooled.insert(RadixKey([1, 2, 3, 4]), slots(7, 6, 5, 4), mamba_value=slots(2))
        assert state(pooled) == ([], [], (0, 0, 0), (0, 0))

    def test_unaligned_tail_stays_the_callers(self, pooled: MambaRadixCache, pools: RecordingHybrid) -> None:
        """R1, R4: the last half page is neither cached nor freed."""
        value = pools.kv.alloc(8)
        assert pooled.insert(RadixKey([1, 2, 3, 4, 5, 6]), value[:6]).adopted == ((0, 4),)
        assert pooled.total_size() == 4
        assert pools.take_calls() == []
        pools.kv.free(value[4:])

    def test_insert_moves_no_track_slot(self, pooled: MambaRadixCache, pools: RecordingHybrid) -> None:
        """M1: the cache neither takes, frees nor copies states, and holds them until it evicts."""
        put_pooled(pooled, pools, [1] * 4)
        assert pools.take_calls() == []
        assert pools.states.available_track_slots() == 7
        check_gdn_pool(pools.states.inner)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.uint8])
    def test_any_integer_dtype_is_stored_as_int64(self, cache: MambaRadixCache, dtype: torch.dtype) -> None:
        """Section 0: allocators hand out int32, trees return int64, slots and track slots alike."""
        value, track_slot = torch.tensor([3, 4], dtype=dtype), torch.tensor([7], dtype=dtype)
        node = cache.insert(RadixKey([1, 2]), value, mamba_value=track_slot).last_node
        assert (node.value.dtype, node.mamba_value.dtype) == (torch.int64, torch.int64)
        match = cache.match_prefix(RadixKey([1, 2]))
        assert (match.indices.dtype, match.indices.tolist()) == (torch.int64, [3, 4])
        assert node.mamba_value.tolist() == [7]

    def test_slots_and_states_live_on_the_allocators_device(self, device: torch.device) -> None:
        """Section 0: wherever they come from; KV, state and matches are on the device of the pool."""
        pools = RecordingHybrid(16, 2, 2, device)
        cache = MambaRadixCache(2, pools.kv, pools.states)
        value = pools.kv.alloc(4)
        track_slot = torch.tensor([pools.states.alloc_track_slot()], dtype=torch.int32)
        node = cache.insert(RadixKey([1, 2, 3, 4]), value, mamba_value=track_slot).last_node
        match = cache.match_prefix(RadixKey([1, 2, 3, 4]))
        for tensor in (node.value, node.mamba_value, match.indices):
            assert (tensor.device.type, tensor.dtype) == (device.type, torch.int64)
        check_mamba_radix_cache(cache)
        assert cache.evict(0, 1).mamba_evicted == 1
        assert (pools.kv.available_size(), pools.states.available_track_slots()) == (16, 2)

    def test_tree_keeps_no_view_of_what_it_was_given(self, cache: MambaRadixCache) -> None:
        """X5: rows, prompt buffers and tables of track slots are recycled by their owners."""
        tokens, value, table = np.array([1, 2, 3]), slots(7, 8, 9), slots(40, 50, 60)
        node = cache.insert(RadixKey(tokens), value, mamba_value=table[1:2]).last_node
        tokens[:] = 0
        value.fill_(0)
        table.fill_(0)
        assert find(cache, [1, 2, 3]) == [7, 8, 9]
        assert node.mamba_value.tolist() == [50]
        check_mamba_radix_cache(cache)

    def test_halves_of_a_split_keep_only_their_own_slots(self, cache: MambaRadixCache) -> None:
        """X5: evicting one half must not keep the memory of both."""
        lower = put(cache, list(range(64)), 50)
        upper = put(cache, list(range(16)))
        assert [node.value.untyped_storage().nbytes() for node in (upper, lower)] == [128, 384]

    def test_token_ids_serve_as_slots_without_a_pool(self, cache: MambaRadixCache) -> None:
        """R1: a cache that only counts needs no slots."""
        cache.insert(RadixKey([5, 6, 7]), mamba_value=slots(50))
        assert find(cache, [5, 6, 7]) == [5, 6, 7]

    def test_bigrams_share_nothing_with_their_tokens(self, cache: MambaRadixCache) -> None:
        """K1: the key [(1, 2)] is not the key [1, 2]."""
        put(cache, [(1, 2), (3, 4)], 50)
        assert find(cache, [1, 2, 3, 4]) == []
        assert find(cache, [(1, 2), (3, 4)]) == [100, 101]

    def test_options_of_other_caches_are_ignored(self, cache: MambaRadixCache) -> None:
        """Section 7: an engine may pass a window's bounds to a cache that has none."""
        result = cache.insert(RadixKey([1]), slots(4), prev_prefix_len=1, swa_evicted_seqlen=1)
        assert result.adopted == ((0, 1),)


class TestEvict:
    def test_least_recent_leaf_goes_first_and_whole(self, cache: MambaRadixCache) -> None:
        """R5: one token asked for, one leaf of three gone, with its state."""
        put(cache, [1, 2, 3], 50)
        put(cache, [4, 5, 6], 51, 200)
        result = cache.evict(1)
        assert (result.full_evicted, result.swa_evicted, result.mamba_evicted) == (3, 0, 1)
        assert find(cache, [1, 2, 3]) == []
        assert find(cache, [4, 5, 6]) == [200, 201, 202]

    def test_match_refreshes_what_it_returns(self, cache: MambaRadixCache) -> None:
        """R8: insert A, insert B, match A, evict: B goes."""
        put(cache, [1, 2], 50)
        put(cache, [3, 4], 51)
        find(cache, [1, 2])
        cache.evict(1)
        assert len(find(cache, [1, 2])) == 2
        assert find(cache, [3, 4]) == []

    @pytest.mark.parametrize("tokens", [0, -1, -100])
    def test_nothing_asked_takes_nothing(self, cache: MambaRadixCache, tokens: int) -> None:
        """R5, M5: n <= 0 and m <= 0 take no part."""
        put(cache, [1, 2], 50)
        assert cache.evict(tokens, tokens).full_evicted == 0
        assert (cache.total_size(), cache.mamba_evictable_size()) == (2, 1)

    def test_eviction_takes_all_it_can_and_no_more(self, cache: MambaRadixCache) -> None:
        """R5: min(n, evictable) at least, and one leaf fewer would have been too few."""
        for first in range(10):
            put(cache, [first, 50, 60], first + 1)
        assert cache.evict(4).full_evicted == 6
        assert cache.evict(6).full_evicted == 6
        assert cache.evict(1000).full_evicted == 18
        assert cache.evict(1).full_evicted == 0

    def test_everything_goes_back_once(self, pooled: MambaRadixCache, pools: RecordingHybrid) -> None:
        """M7, X2: each state by itself, then all slots in one call."""
        for first in range(3):
            put_pooled(pooled, pools, [first] * 8)
        result = pooled.evict(12)
        assert (result.full_evicted, result.mamba_evicted) == (16, 2)
        *states, (name, freed) = pools.take_calls()
        assert states == [("free_track_slot", [2]), ("free_track_slot", [3])]
        assert (name, sorted(freed)) == ("free", list(range(4, 20)))
        assert (pools.kv.available_size(), pools.states.available_track_slots()) == (56, 7)

    def test_callback_names_each_removed_node_in_order(self) -> None:
        """R5: once per node, children before parents; a state that goes alone is no removal."""
        removed: list[int] = []
        cache = MambaRadixCache(on_node_evict=removed.append)
        old = put(cache, [1, 2, 3, 4], 50)
        new = put(cache, [1, 2, 5, 6], 51, 200)
        parent = put(cache, [1, 2], 52)
        find(cache, [1, 2, 3, 4])
        find(cache, [1, 2, 5, 6])
        cache.insert(RadixKey([7]), mamba_value=slots(53))
        cache.evict(0, 1)
        cache.evict(0, 1)
        assert removed == [old.id]
        assert parent.mamba_tombstone
        cache.evict(3)
        assert removed == [old.id, new.id, parent.id]

    @pytest.mark.parametrize("tokens", [1.5, "1", None])
    def test_amounts_are_integers(self, cache: MambaRadixCache, tokens: Any) -> None:
        """X1: nothing is evicted for a number of another type."""
        put(cache, [1, 2], 50)
        with pytest.raises(TypeError):
            cache.evict(tokens)
        with pytest.raises(TypeError):
            cache.evict(1, tokens)
        assert (cache.total_size(), cache.mamba_evictable_size()) == (2, 1)


class TestLocks:
    def test_hold_counts_on_the_whole_path_and_at_one_state(self, cache: MambaRadixCache) -> None:
        """R6, M4: full_lock_ref at or below, mamba_lock_ref at exactly the node."""
        upper, lower = put(cache, [1, 2], 50), put(cache, [1, 2, 3, 4], 51)
        assert cache.inc_lock_ref(lower) is None
        assert (upper.full_lock_ref, upper.mamba_lock_ref) == (1, 0)
        assert (lower.full_lock_ref, lower.mamba_lock_ref) == (1, 1)
        cache.inc_lock_ref(upper)
        assert (upper.full_lock_ref, upper.mamba_lock_ref, cache.root_node.full_lock_ref) == (2, 1, 1)
        cache.dec_lock_ref(lower)
        assert (upper.full_lock_ref, lower.full_lock_ref, lower.mamba_lock_ref) == (1, 0, 0)

    def test_sizes_count_tokens_and_states(self, cache: MambaRadixCache) -> None:
        """R7, M6: a state is one, however many tokens its node has."""
        node = put(cache, list(range(10)), 50)
        put(cache, [30, 31, 32], 51)
        assert state(cache)[2:] == ((13, 0, 13), (2, 0))
        cache.inc_lock_ref(node)
        cache.inc_lock_ref(node)
        assert state(cache)[2:] == ((3, 10, 13), (1, 1))
        cache.dec_lock_ref(node)
        assert state(cache)[2:] == ((3, 10, 13), (1, 1))
        cache.dec_lock_ref(node)
        assert state(cache)[2:] == ((13, 0, 13), (2, 0))

    def test_sizes_survive_a_child_of_a_leaf(self, cache: MambaRadixCache) -> None:
        """R7: a leaf that gains a child keeps counting, locked or not."""
        node = put(cache, [1, 2], 50)
        cache.inc_lock_ref(node)
        put(cache, [1, 2, 3], 51)
        assert state(cache)[2:] == ((1, 2, 3), (1, 1))
        cache.dec_lock_ref(node)
        assert state(cache)[2:] == ((3, 0, 3), (2, 0))

    def test_split_of_a_held_node_keeps_the_state_lock_below(self, cache: MambaRadixCache) -> None:
        """R10, M4: the upper half has the KV lock and no state lock, also after a state came to it."""
        node = put(cache, [1, 2, 3, 4], 50)
        cache.inc_lock_ref(node)
        upper = put(cache, [1, 2])
        assert (upper.full_lock_ref, upper.mamba_lock_ref) == (1, 0)
        assert (node.full_lock_ref, node.mamba_lock_ref) == (1, 1)
        put(cache, [1, 2], 51)
        assert (upper.mamba_lock_ref, cache.mamba_evictable_size()) == (0, 1)
        cache.dec_lock_ref(node)
        assert (upper.full_lock_ref, node.full_lock_ref, node.mamba_lock_ref) == (0, 0, 0)
        assert state(cache)[2:] == ((4, 0, 4), (2, 0))

    def test_release_takes_no_others_hold(self, cache: MambaRadixCache) -> None:
        """M4: a hold from before the state came and one from after are two, in either order of release."""
        node = put(cache, [1, 2])
        cache.inc_lock_ref(node)
        put(cache, [1, 2], 50)
        cache.inc_lock_ref(node)
        cache.dec_lock_ref(node)
        assert (node.mamba_lock_ref, cache.evict(0, 1).mamba_evicted) == (1, 0)
        cache.dec_lock_ref(node)
        assert (node.mamba_lock_ref, cache.evict(0, 1).mamba_evicted) == (0, 1)

    def test_boundary_id_is_taken_and_ignored(self, cache: MambaRadixCache) -> None:
        """M4: an engine passes what inc_lock_ref of any cache returned."""
        node = put(cache, [1, 2], 50)
        for token in (None, 7):
            cache.inc_lock_ref(node)
            cache.dec_lock_ref(node, swa_boundary_id=token)
        assert node.full_lock_ref == 0

    def test_root_and_none_are_no_ops(self, cache: MambaRadixCache) -> None:
        """R6: a request without a hit holds nothing."""
        for node in (None, cache.root_node):
            cache.inc_lock_ref(node)
            cache.dec_lock_ref(node)
            cache.dec_lock_ref(node)
        assert (cache.root_node.full_lock_ref, cache.root_node.mamba_lock_ref) == (1, 0)

    def test_release_without_a_hold_is_refused(self, cache: MambaRadixCache) -> None:
        """R6: not even where the count is positive because of a hold further down."""
        upper, lower = put(cache, [1, 2], 50), put(cache, [1, 2, 3, 4], 51)
        cache.inc_lock_ref(lower)
        before = state(cache)
        with pytest.raises(LockError, match=str(upper.id)):
            cache.dec_lock_ref(upper)
        assert state(cache) == before
        cache.dec_lock_ref(lower)
        with pytest.raises(LockError, match=str(lower.id)):
            cache.dec_lock_ref(lower)
        assert (lower.full_lock_ref, lower.mamba_lock_ref) == (0, 0)

    def test_holds_move_no_recency(self, cache: MambaRadixCache) -> None:
        """R8: locking and unlocking A leaves it the oldest, in both orders."""
        node = put(cache, [1, 2], 50)
        put(cache, [3, 4], 51)
        before = [list(cache.full_lru), list(cache.mamba_lru)]
        cache.inc_lock_ref(node)
        cache.dec_lock_ref(node)
        assert [list(cache.full_lru), list(cache.mamba_lru)] == before
        cache.evict(0, 1)
        assert node.evicted

    @pytest.mark.parametrize("node", [5, "node", object()])
    def test_something_that_is_no_node_is_refused(self, cache: MambaRadixCache, node: Any) -> None:
        """X1: the error names the type."""
        for call in each_use(cache):
            with pytest.raises(TypeError, match=type(node).__name__):
                call(node)

    def test_node_of_a_radix_cache_is_refused(self, cache: MambaRadixCache) -> None:
        """X1: a `TreeNode` has no state to hold."""
        node = RadixCache().insert(RadixKey([1, 2])).last_node
        for call in each_use(cache):
            with pytest.raises(TypeError, match="TreeNode"):
                call(node)


def each_use(cache: MambaRadixCache) -> list[Callable[[Any], object]]:
    return [cache.inc_lock_ref, cache.dec_lock_ref, cache.compute_node_hash]


class TestStaleNodes:
    def test_evicted_node_is_refused(self, cache: MambaRadixCache) -> None:
        """X1: a node that was removed has no slots, no state and no neighbours."""
        node = put(cache, [1, 2], 50)
        cache.evict(100)
        assert node.evicted
        assert not node.mamba_tombstone
        assert (node.mamba_value, node.parent, node.prev, node.next) == (None,) * 4
        for use in each_use(cache):
            with pytest.raises(StaleNodeError, match=str(node.id)):
                use(node)

    def test_node_of_before_a_reset_is_refused(self, cache: MambaRadixCache) -> None:
        """X7: old nodes are stale, held or not, and the old root stays a no-op."""
        node, root = put(cache, [1, 2], 50), cache.root_node
        cache.inc_lock_ref(node)
        cache.reset()
        for use in each_use(cache):
            with pytest.raises(StaleNodeError):
                use(node)
        cache.dec_lock_ref(root)
        cache.inc_lock_ref(root)
        assert root is not cache.root_node

    def test_node_of_another_cache_is_refused(self, cache: MambaRadixCache) -> None:
        """X1: not even where the other cache holds the same tokens; the same goes for its root."""
        other = MambaRadixCache()
        node = put(other, [1, 2], 50)
        put(cache, [1, 2], 50)
        for use in each_use(cache):
            for stranger in (node, other.root_node):
                with pytest.raises(StaleNodeError):
                    use(stranger)
        assert (node.full_lock_ref, node.mamba_lock_ref) == (0, 0)


class TestRecencyAndIds:
    def test_clock_is_logical(self, cache: MambaRadixCache) -> None:
        """X3, R8: one tick per match or insert, the same along the path, a float."""
        first = put(cache, [1, 2], 50)
        second = put(cache, [1, 2, 3, 4], 51)
        assert isinstance(second.last_access_time, float)
        assert first.last_access_time == second.last_access_time == 2.0
        assert first < second

    def test_lists_follow_the_recency(self, cache: MambaRadixCache) -> None:
        """M8, R8: full_lru has every node, mamba_lru those with a state, the deeper the younger."""
        a, b = put(cache, [1, 2], 50), put(cache, [1, 2, 3])
        c = put(cache, [7], 51)
        d = put(cache, [1, 2, 3, 4], 52)
        assert list(cache.full_lru) == [d, b, a, c]
        assert list(cache.mamba_lru) == [d, a, c]
        find(cache, [7])
        assert list(cache.full_lru) == [c, d, b, a]
        assert list(cache.mamba_lru) == [c, d, a]

    def test_upper_half_of_a_split_is_just_older_than_the_lower(self, cache: MambaRadixCache) -> None:
        """M8, R8: where the insert goes on elsewhere, the rest of the split node keeps its place."""
        lower = put(cache, [1, 2, 3, 4], 50)
        other = put(cache, [7], 51)
        fork = put(cache, [1, 2, 9], 52)
        assert list(cache.full_lru) == [fork, fork.parent, other, lower]
        assert list(cache.mamba_lru) == [fork, other, lower]

    def test_looking_is_no_access(self, cache: MambaRadixCache) -> None:
        """R8: sizes, hashes, printing and evictions make nothing younger."""
        node = put(cache, [1, 2], 50)
        put(cache, [3])
        before = node.last_access_time
        cache.compute_node_hash(node)
        cache.total_size()
        cache.pretty_print()
        cache.evict(0)
        assert node.last_access_time == before

    def test_ids_count_up_and_are_never_reused(self, cache: MambaRadixCache) -> None:
        """X3: over evictions, splits and resets."""
        seen = [cache.root_node.id]
        for round_number in range(3):
            node = put(cache, [round_number, 1, 2], 50)
            put(cache, [round_number, 1])
            seen += [node.id, node.parent.id]
            cache.evict(100)
        cache.reset()
        seen += [cache.root_node.id, put(cache, [1]).id]
        assert seen == sorted(set(seen))


class TestHashes:
    def test_hashes_are_those_of_a_radix_cache(self) -> None:
        """H2, H3: chained over pages and nodes, with the namespace, whatever was split."""
        hybrid, plain = MambaRadixCache(2), RadixCache(2)
        for cache in (hybrid, plain):
            cache.insert(RadixKey([1, 2, 3, 4, 5, 6], "lora"))
        node = hybrid.insert(RadixKey([1, 2, 3, 4, 5, 6], "lora")).last_node
        whole = hybrid.compute_node_hash(node)
        assert whole == plain.compute_node_hash(
            plain.match_prefix(RadixKey([1, 2, 3, 4, 5, 6], "lora")).last_node
        )
        upper = hybrid.insert(RadixKey([1, 2], "lora")).last_node
        assert hybrid.compute_node_hash(upper) + hybrid.compute_node_hash(node) == whole
        check_mamba_radix_cache(hybrid)

    def test_root_has_no_pages_and_none_is_no_node(self, cache: MambaRadixCache) -> None:
        """H2, X1: nothing to hash above the first page; None is a mistake here."""
        assert cache.compute_node_hash(cache.root_node) == []
        with pytest.raises(TypeError, match="None"):
            cache.compute_node_hash(None)  # type: ignore[arg-type]


class TestFaults:
    def test_all_callbacks_run_and_the_first_error_is_raised(self) -> None:
        """X2: an observer that fails cannot stop an eviction half-way."""
        called: list[int] = []

        def fail(node_id: int) -> None:
            called.append(node_id)
            raise KeyError(node_id)

        cache = MambaRadixCache(on_node_evict=fail)
        nodes = [put(cache, [first, 1], first + 1) for first in range(3)]
        with pytest.raises(KeyError, match=str(nodes[0].id)):
            cache.evict(100)
        assert called == [node.id for node in nodes]
        assert state(cache) == ([], [], (0, 0, 0), (0, 0))

    def test_refused_eviction_calls_nobody_back(
        self, pooled: MambaRadixCache, pools: RecordingHybrid
    ) -> None:
        """X2: nothing was removed, though a state was taken."""
        node = put_pooled(pooled, pools, [1] * 4)
        pooled.on_node_evict = pytest.fail
        pools.takes = 1
        with pytest.raises(InjectedFault):
            pooled.evict(4)
        assert node.mamba_tombstone
        assert state(pooled)[2:] == ((4, 0, 4), (0, 0))

    def test_pool_that_had_the_state_already_is_heard(
        self, pooled: MambaRadixCache, pools: RecordingHybrid
    ) -> None:
        """X2, M7: a real pool refuses a track slot that somebody gave back behind the cache's back."""
        node = put_pooled(pooled, pools, [1] * 4)
        pools.states.inner.free_track_slot(int(node.mamba_value))
        with pytest.raises(OwnershipError):
            pooled.evict(4)
        assert pooled.total_size() == 4
        assert not node.mamba_tombstone


class TestReentrancy:
    def test_callback_may_ask_sizes_hashes_and_print(self, capsys: pytest.CaptureFixture[str]) -> None:
        """X6: it sees the books as they are after the eviction."""
        seen: list[Any] = []
        cache = MambaRadixCache()
        kept = put(cache, [5, 6, 7], 50)
        put(cache, [1, 2], 51)
        find(cache, [5, 6, 7])

        def look(node_id: int) -> None:
            cache.pretty_print()
            sizes = cache.evictable_size(), cache.protected_size(), cache.total_size()
            seen.append((*sizes, cache.mamba_evictable_size(), cache.mamba_protected_size()))
            seen.append(len(cache.compute_node_hash(kept)))

        cache.on_node_evict = look
        cache.evict(1)
        assert seen == [(3, 0, 3, 1, 0), 3]
        assert "3 tokens" in capsys.readouterr().out

    @pytest.mark.parametrize(
        "call",
        [
            lambda cache, node: cache.match_prefix(RadixKey([1])),
            lambda cache, node: cache.insert(RadixKey([1]), mamba_value=slots(3)),
            lambda cache, node: cache.evict(1),
            lambda cache, node: cache.inc_lock_ref(node),
            lambda cache, node: cache.dec_lock_ref(node),
            lambda cache, node: cache.reset(),
        ],
        ids=["match_prefix", "insert", "evict", "inc_lock_ref", "dec_lock_ref", "reset"],
    )
    def test_any_other_call_from_a_callback_is_refused(self, call: Callable[..., object]) -> None:
        """X6: match_prefix included, because it stamps; afterwards everything works again."""
        cache = MambaRadixCache()
        kept = put(cache, [5, 6, 7], 50)
        put(cache, [1, 2], 51)
        cache.inc_lock_ref(kept)
        before = kept.last_access_time, kept.full_lock_ref, kept.mamba_lock_ref
        cache.on_node_evict = lambda node_id: call(cache, kept)
        with pytest.raises(RuntimeError, match="on_node_evict"):
            cache.evict(1)
        assert (kept.last_access_time, kept.full_lock_ref, kept.mamba_lock_ref) == before
        assert state(cache)[2:] == ((0, 3, 3), (0, 1))
        cache.on_node_evict = None
        call(cache, kept)
        check_mamba_radix_cache(cache)

    @pytest.mark.parametrize("where", ["free", "free_track_slot"])
    @pytest.mark.parametrize(
        "call",
        [
            lambda cache, node: cache.match_prefix(RadixKey([1])),
            lambda cache, node: cache.insert(RadixKey([1]), mamba_value=slots(3)),
            lambda cache, node: cache.evict(1),
            lambda cache, node: cache.inc_lock_ref(node),
            lambda cache, node: cache.dec_lock_ref(node),
            lambda cache, node: cache.reset(),
        ],
        ids=["match_prefix", "insert", "evict", "inc_lock_ref", "dec_lock_ref", "reset"],
    )
    def test_pool_may_ask_sizes_and_nothing_else(
        self,
        pooled: MambaRadixCache,
        pools: RecordingHybrid,
        monkeypatch: pytest.MonkeyPatch,
        where: str,
        call: Callable[..., object],
    ) -> None:
        """X6, X2: what a pool does in the middle of an eviction fails it, and changes nothing itself."""
        kept = put_pooled(pooled, pools, [5] * 4)
        put_pooled(pooled, pools, [6] * 4, with_state=where == "free_track_slot")
        pooled.inc_lock_ref(kept)
        before, sizes = state(pooled), []

        def call_back(given: Any) -> None:
            sizes.append(pooled.total_size())
            call(pooled, kept)

        pool = pools.kv if where == "free" else pools.states
        monkeypatch.setattr(pool, where, call_back)
        with pytest.raises(RuntimeError, match="was called from a pool"):
            pooled.evict(4)
        assert (state(pooled), sizes) == (before, [8])
        monkeypatch.undo()
        assert pooled.evict(4).full_evicted == 4

    @pytest.mark.parametrize("where", ["free", "free_track_slot"])
    def test_pool_cannot_fill_a_cache_that_is_reset(
        self,
        pooled: MambaRadixCache,
        pools: RecordingHybrid,
        monkeypatch: pytest.MonkeyPatch,
        where: str,
    ) -> None:
        """X6, X7: the first error is raised, the cache is empty, and takes calls again."""
        put_pooled(pooled, pools, [5] * 4)
        pool = pools.kv if where == "free" else pools.states
        monkeypatch.setattr(pool, where, lambda given: pooled.insert(RadixKey([1] * 4), slots(4, 5, 6, 7)))
        with pytest.raises(RuntimeError, match="insert was called from a pool"):
            pooled.reset()
        assert state(pooled) == ([], [], (0, 0, 0), (0, 0))
        assert pooled.match_prefix(RadixKey([5] * 4)).prefix_len == 0


class TestReset:
    def test_reset_returns_everything_whatever_is_held(
        self, pooled: MambaRadixCache, pools: RecordingHybrid
    ) -> None:
        """X7, M7: each state and each slot once, and calls nobody back."""
        pooled.on_node_evict = pytest.fail
        pooled.inc_lock_ref(put_pooled(pooled, pools, [1] * 8))
        put_pooled(pooled, pools, [2] * 8, with_state=False)
        put_pooled(pooled, pools, [3] * 8)
        pooled.reset()
        names = [name for name, _ in pools.take_calls()]
        assert names == ["free_track_slot", "free_track_slot", "free"]
        assert (pools.kv.available_size(), pools.states.available_track_slots()) == (64, 8)
        assert state(pooled) == ([], [], (0, 0, 0), (0, 0))

    def test_reset_cache_behaves_like_a_new_one(self, cache: MambaRadixCache) -> None:
        """X7: recency, contents and both lists start again; only node ids go on."""
        put(cache, [1, 2, 3], 50)
        find(cache, [1, 2, 3])
        cache.reset()
        new = MambaRadixCache()
        for target in (cache, new):
            put(target, [1, 2], 50, 200)
            put(target, [1, 3], 51, 300)
        assert [n.last_access_time for n in cache.full_lru] == [n.last_access_time for n in new.full_lru]
        assert find(cache, [1, 2]) == find(new, [1, 2]) == [200, 201]
        assert cache.evict(0, 1) == new.evict(0, 1)
        check_mamba_radix_cache(cache)

    def test_reset_of_an_empty_cache_asks_no_pool(
        self, pooled: MambaRadixCache, pools: RecordingHybrid
    ) -> None:
        """X7: there is nothing to return."""
        pooled.reset()
        assert pools.take_calls() == []

    def test_reset_without_pools_forgets(self, cache: MambaRadixCache) -> None:
        """X7: slots and track slots are plain numbers then."""
        put(cache, [1, 2], 50)
        cache.reset()
        assert state(cache) == ([], [], (0, 0, 0), (0, 0))

    @pytest.mark.parametrize("taken", range(3))
    def test_refused_reset_asks_for_everything_and_empties(
        self, pooled: MambaRadixCache, pools: RecordingHybrid, taken: int
    ) -> None:
        """X7: what the pools took before is taken, every other call was made, and the tree is dropped."""
        node = put_pooled(pooled, pools, [1] * 4)
        put_pooled(pooled, pools, [2] * 4)
        pools.takes = taken
        with pytest.raises(InjectedFault) as caught:
            pooled.reset()
        assert str(caught.value) == ["free_track_slot", "free_track_slot", "free"][taken]
        assert len(pools.take_calls()) == taken
        assert state(pooled) == ([], [], (0, 0, 0), (0, 0))
        with pytest.raises(StaleNodeError):
            pooled.inc_lock_ref(node)

    def test_states_that_a_cleared_pool_refuses_do_not_keep_the_slots(
        self, pooled: MambaRadixCache, pools: RecordingHybrid
    ) -> None:
        """X7: both pools are asked, the first error is raised, and the cache works on."""
        put_pooled(pooled, pools, [1] * 4)
        put_pooled(pooled, pools, [2] * 4)
        pools.states.inner.clear()
        with pytest.raises(OwnershipError, match="track slot"):
            pooled.reset()
        assert pools.kv.available_size() == 64
        put_pooled(pooled, pools, [1] * 4)
        check_mamba_radix_cache(pooled)

    def test_slots_that_a_cleared_pool_refuses_do_not_keep_the_states(
        self, pooled: MambaRadixCache, pools: RecordingHybrid
    ) -> None:
        """X7: the other way round."""
        put_pooled(pooled, pools, [1] * 4)
        pools.kv.inner.clear()
        with pytest.raises(OwnershipError):
            pooled.reset()
        assert pools.states.available_track_slots() == 8


class TestPrettyPrint:
    def test_every_node_has_a_line(self, cache: MambaRadixCache, capsys: pytest.CaptureFixture[str]) -> None:
        """Section 7: children below and right of their parent, with ids, locks and states."""
        lower = put(cache, [1, 2, 3, 4], 50)
        other = put(cache, [1, 2, 5], 51)
        cache.inc_lock_ref(other)
        cache.pretty_print()
        header, upper, *leaves = capsys.readouterr().out.splitlines()
        assert header == ("MambaRadixCache: 5 tokens, 2 evictable, 2 states, 1 evictable, page 1")
        assert upper.startswith(f"  #{lower.parent.id} ")
        assert "state" not in upper
        assert leaves == [f"    {node.describe()}" for node in (lower, other)]

    def test_empty_cache_prints_its_size(
        self, cache: MambaRadixCache, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Section 7: an empty tree is one line."""
        cache.pretty_print()
        assert capsys.readouterr().out.count("\n") == 1


class TestOwners:
    def test_pools_of_somebody_else_need_the_documented_calls_only(self) -> None:
        """Section 7: ``free`` and ``free_track_slot`` are all that the cache asks for."""
        given: list[Any] = []

        class Kv:
            def free(self, indices: torch.Tensor) -> None:
                given.append(indices.tolist())

        class States:
            def free_track_slot(self, slot: int) -> None:
                given.append(slot)

        cache = MambaRadixCache(1, Kv(), States())
        put(cache, [1, 2], 50)
        check_mamba_radix_cache(cache)
        cache.evict(1)
        assert given == [50, [100, 101]]

    def test_unchecked_pool_takes_any_slots(self) -> None:
        """R1: where the pool does not check ownership, whole pages are the caller's duty."""
        pool = TokenToKVPoolAllocator(8, "cpu", 2, True, check_ownership=False)
        cache = MambaRadixCache(2, pool)
        assert cache.insert(RadixKey([1, 2]), slots(5, 2)).adopted == ((0, 2),)


def test_the_example_in_the_docstring_runs() -> None:
    """M1, M2, M5: what a newcomer copies does what it says."""
    result = doctest.testmod(mamba_radix_cache)
    assert (result.attempted, result.failed) == (13, 0)


class TestShortage:
    """A pool without memory has refused nothing (X2, X7)."""

    @pytest.mark.parametrize("fails", ["first state", "second state", "KV"])
    def test_reset_without_memory_keeps_what_no_pool_took(
        self, monkeypatch: pytest.MonkeyPatch, fails: str
    ) -> None:
        kv = TokenToKVPoolAllocator(8, "cpu")
        states = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=4)
        cache = MambaRadixCache(1, kv, states)
        for tokens in ([1, 2], [3, 4]):
            track = torch.tensor([states.alloc_track_slot()])
            held = cache.insert(RadixKey(tokens), kv.alloc(2), mamba_value=track).last_node
        cache.inc_lock_ref(held)
        free, calls = states.free_track_slot, []

        def fail(slot: object) -> None:
            calls.append(slot)
            if len(calls) == (1 if fails == "first state" else 2) or fails == "KV":
                raise MemoryError
            free(int(slot))  # type: ignore[call-overload]

        with monkeypatch.context() as patch:
            patch.setattr(*((kv, "free", fail) if fails == "KV" else (states, "free_track_slot", fail)))
            with pytest.raises(MemoryError):
                cache.reset()
        check_mamba_radix_cache(cache)
        left = {"first state": 2, "second state": 1, "KV": 0}[fails]
        assert (cache.total_size(), len(cache.mamba_lru)) == (4, left)
        assert (kv.available_size(), states.available_track_slots()) == (4, 4 - left)
        cache.reset()
        assert (kv.available_size(), states.available_track_slots()) == (8, 4)

    def test_eviction_that_cannot_be_planned_takes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = MambaRadixCache()
        for number, tokens in enumerate(([1, 2], [1, 2, 3], [4]), 1):
            cache.insert(RadixKey(tokens), mamba_value=torch.tensor([number]))
        choose, calls = cache._states.victims.oldest_of_all, []

        def oldest_of_all() -> MambaTreeNode | None:
            calls.append(1)
            if len(calls) == 2:
                raise MemoryError
            return choose()

        with monkeypatch.context() as patch:
            patch.setattr(cache._states.victims, "oldest_of_all", oldest_of_all)
            with pytest.raises(MemoryError):
                cache.evict(0, 3)
        check_mamba_radix_cache(cache)
        assert (cache.total_size(), len(cache.mamba_lru)) == (4, 3)
        assert cache.evict(9).full_evicted == 4

    @pytest.mark.parametrize("is_late", [False, True])
    def test_interrupt_in_a_reset_is_healed_by_another(
        self, monkeypatch: pytest.MonkeyPatch, is_late: bool
    ) -> None:
        """X7: whether the pool has taken the KV or not, and what it does not take its `clear` brings back."""
        kv = TokenToKVPoolAllocator(8, "cpu")
        states = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=4)
        cache = MambaRadixCache(1, kv, states)
        track = torch.tensor([states.alloc_track_slot()])
        node = cache.insert(RadixKey([1, 2]), kv.alloc(2), mamba_value=track).last_node
        free = kv.free

        def interrupt(slots: torch.Tensor) -> None:
            if is_late:
                free(slots)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(kv, "free", interrupt)
            with pytest.raises(KeyboardInterrupt):
                cache.reset()
        with pytest.raises(StaleNodeError):
            cache.inc_lock_ref(node)
        cache.reset()
        assert (cache.total_size(), states.available_track_slots()) == (0, 4)
        kv.clear()
        assert kv.available_size() == 8

    def test_reset_after_an_interrupted_eviction_asks_what_is_left(self) -> None:
        """X6, X7: of KV and of states."""
        kv = TokenToKVPoolAllocator(8, "cpu")
        states = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=4)
        cache = MambaRadixCache(1, kv, states)
        for tokens in ([1, 2], [3, 4]):
            track = torch.tensor([states.alloc_track_slot()])
            node = cache.insert(RadixKey(tokens), kv.alloc(2), mamba_value=track).last_node
        kv.free(node.value)
        states.free_track_slot(node._track_slot)
        cache._callbacks.enter_pool()
        cache.reset()
        assert (cache.total_size(), kv.available_size(), states.available_track_slots()) == (0, 8, 4)
        check_mamba_radix_cache(cache)

    def test_reset_after_an_interrupt_without_pools_forgets(self) -> None:
        """X7: there is nobody to ask."""
        cache = MambaRadixCache()
        cache.insert(RadixKey([1]), mamba_value=torch.tensor([3]))
        cache._callbacks.enter_pool()
        cache.reset()
        assert (cache.total_size(), len(cache.mamba_lru)) == (0, 0)
