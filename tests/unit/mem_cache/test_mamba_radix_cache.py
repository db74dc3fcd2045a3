"""`MambaRadixCache`, law by law; what evictions choose is in test_cached_states."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch
from recording_hybrid import RecordingHybrid

from pymllm.adapters.failing_calls import InjectedFault
from pymllm.errors import OwnershipError, StaleNodeError
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

    def test_new_cache_is_empty(self, cache: MambaRadixCache) -> None:
        """R7, M6, M8: nothing is cached, and both lists are there, each in its mode."""
        assert state(cache) == ([], [], (0, 0, 0), (0, 0))
        assert (cache.full_lru.mamba, cache.mamba_lru.mamba) == (False, True)
        assert (cache.swa_evictable_size(), cache.swa_protected_size()) == (0, 0)


class TestMatch:
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

    @pytest.mark.notices("B185")
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

    @pytest.mark.notices("B11")
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

    def test_state_at_the_same_place_stays_the_callers(self, cache: MambaRadixCache) -> None:
        """M1: the first state stays, and the flag says so."""
        node = put(cache, [1, 2], 50)
        result = cache.insert(RadixKey([1, 2]), slots(1, 2), mamba_value=slots(51))
        assert result.mamba_exist is True
        assert node.mamba_value.tolist() == [50]
        assert cache.mamba_evictable_size() == 1

    @pytest.mark.notices("B74")
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

    def test_halves_of_a_split_keep_only_their_own_slots(self, cache: MambaRadixCache) -> None:
        """X5: evicting one half must not keep the memory of both."""
        lower = put(cache, list(range(64)), 50)
        upper = put(cache, list(range(16)))
        assert [node.value.untyped_storage().nbytes() for node in (upper, lower)] == [128, 384]


class TestEvict:
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

    @pytest.mark.notices("B73")
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

    @pytest.mark.notices("B22")
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


class TestRecencyAndIds:
    @pytest.mark.notices("B59")
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


def test_the_example_in_the_docstring_runs() -> None:
    """M1, M2, M5: what a newcomer copies does what it says."""
    result = doctest.testmod(mamba_radix_cache)
    assert (result.attempted, result.failed) == (13, 0)


class TestShortage:
    def test_eviction_that_cannot_be_planned_takes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """X2: whoever was chosen by then waits where it did."""
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

    def test_reset_after_an_interrupt_without_pools_forgets(self) -> None:
        """X7: there is nobody to ask."""
        cache = MambaRadixCache()
        cache.insert(RadixKey([1]), mamba_value=torch.tensor([3]))
        cache._callbacks.enter_pool()
        cache.reset()
        assert (cache.total_size(), len(cache.mamba_lru)) == (0, 0)
