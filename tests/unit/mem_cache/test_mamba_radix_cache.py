"""`MambaRadixCache`, where no search looks: faults, devices, memory, and what a node is left with."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch
from recording_hybrid import RecordingHybrid

from pymllm.errors import OwnershipError, StaleNodeError
from pymllm.invariants import check_mamba_radix_cache
from pymllm.mem_cache import (
    GDNPool,
    MambaRadixCache,
    MambaTreeNode,
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


def sizes(cache: MambaRadixCache) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Tokens that are evictable, protected and all, and states of the first two kinds."""
    check_mamba_radix_cache(cache)
    tokens = cache.evictable_size(), cache.protected_size(), cache.total_size()
    return tokens, (cache.mamba_evictable_size(), cache.mamba_protected_size())


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


class TestMatch:
    @pytest.mark.notices("B185")
    def test_tokens_without_a_state_cannot_be_resumed_from(self, cache: MambaRadixCache) -> None:
        """M2: KV beyond the last state is not returned; its length is."""
        put(cache, [1, 2], 50)
        put(cache, [1, 2, 3, 4], first=200)
        match = cache.match_prefix(RadixKey([1, 2, 3, 4, 5]))
        assert (match.indices.tolist(), match.prefix_len) == ([100, 101], 2)
        assert match.mamba_branching_seqlen == 4
        assert path_of(match.last_node) == [1, 2]

    @pytest.mark.notices("B11")
    def test_a_longer_match_passes_over_nodes_without_a_state(self, cache: MambaRadixCache) -> None:
        """M2: only the end of the prefix needs a state."""
        put(cache, [1, 2])
        put(cache, [1, 2, 3], first=200)
        put(cache, [1, 2, 3, 4], 50, 300)
        assert find(cache, [1, 2, 3, 4]) == [100, 101, 202, 303]
        assert find(cache, [1, 2, 3]) == []


class TestInsert:
    @pytest.mark.notices("B74")
    def test_state_of_an_ancestor_does_not_count(self, cache: MambaRadixCache) -> None:
        """M1: the caller must not free a track slot that the tree took because of a state further up."""
        put(cache, [1, 2], 50)
        result = cache.insert(RadixKey([1, 2, 3]), slots(1, 2, 3), mamba_value=slots(51))
        assert result.mamba_exist is False
        assert result.last_node.mamba_value.tolist() == [51]

    def test_failure_of_the_device_is_not_hidden(
        self, cache: MambaRadixCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """X1: what torch says when it cannot read a number is not the caller's type."""

        def fail(tensor: torch.Tensor) -> Any:
            raise RuntimeError("device lost")

        monkeypatch.setattr(torch.Tensor, "item", fail)
        with pytest.raises(RuntimeError, match="device lost"):
            cache.insert(RadixKey([1]), slots(4), mamba_value=slots(5))
        assert cache.total_size() == 0

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.uint8])
    def test_any_integer_dtype_is_stored_as_int64(self, cache: MambaRadixCache, dtype: torch.dtype) -> None:
        """Allocators hand out int32, trees return int64, slots and track slots alike."""
        value, track_slot = torch.tensor([3, 4], dtype=dtype), torch.tensor([7], dtype=dtype)
        node = cache.insert(RadixKey([1, 2]), value, mamba_value=track_slot).last_node
        assert (node.value.dtype, node.mamba_value.dtype) == (torch.int64, torch.int64)
        match = cache.match_prefix(RadixKey([1, 2]))
        assert (match.indices.dtype, match.indices.tolist()) == (torch.int64, [3, 4])
        assert node.mamba_value.tolist() == [7]

    def test_slots_and_states_live_on_the_allocators_device(self, device: torch.device) -> None:
        """Wherever they come from; KV, state and matches are on the device of the pool."""
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


class TestLocks:
    @pytest.mark.notices("B73")
    def test_sizes_count_tokens_and_states(self, cache: MambaRadixCache) -> None:
        """R7, M6: a state is one, however many tokens its node has."""
        node = put(cache, list(range(10)), 50)
        put(cache, [30, 31, 32], 51)
        assert sizes(cache) == ((13, 0, 13), (2, 0))
        cache.inc_lock_ref(node)
        cache.inc_lock_ref(node)
        assert sizes(cache) == ((3, 10, 13), (1, 1))
        cache.dec_lock_ref(node)
        assert sizes(cache) == ((3, 10, 13), (1, 1))
        cache.dec_lock_ref(node)
        assert sizes(cache) == ((13, 0, 13), (2, 0))

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
        assert sizes(cache) == ((4, 0, 4), (2, 0))


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


class TestHashes:
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

    def test_reset_without_memory_keeps_no_state_that_its_pool_has_taken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """X2, X7, M4: the KV stays cached, and the next reset gives it back."""
        kv = TokenToKVPoolAllocator(8, "cpu")
        states = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=4)
        cache = MambaRadixCache(1, kv, states)
        track = torch.tensor([states.alloc_track_slot()])
        node = cache.insert(RadixKey([1, 2]), kv.alloc(2), mamba_value=track).last_node

        def refuse(indices: torch.Tensor) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(kv, "free", refuse)
            with pytest.raises(MemoryError):
                cache.reset()
        assert node.mamba_value is None
        assert sizes(cache) == ((2, 0, 2), (0, 0))
        assert (kv.available_size(), states.available_track_slots()) == (6, 4)
        cache.reset()
        assert (cache.total_size(), kv.available_size()) == (0, 8)

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
        cache._guard.__enter__()
        cache.reset()
        assert (cache.total_size(), len(cache.mamba_lru)) == (0, 0)
