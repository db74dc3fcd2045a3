"""Eviction plans: what is chosen, what a refusal leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.failing_calls import InjectedFault, record_around
from pymllm.history.operations import Fault
from pymllm.history.outcomes import Effect
from pymllm.invariants import check_radix_cache
from pymllm.mem_cache.base_prefix_cache import EvictResult, RadixKey
from pymllm.mem_cache.memory_pool import SWATokenToKVPoolAllocator, TokenToKVPoolAllocator
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode


class Bench:
    """A cache over a recording pool, with short names for what these tests do."""

    def __init__(self, window: int | None = None) -> None:
        inner = (
            TokenToKVPoolAllocator(64, "cpu", 1, True)
            if window is None
            else SWATokenToKVPoolAllocator(64, 64, "cpu", 1, True)
        )
        self.effects: list[Effect] = []
        self.pool: Any = record_around(inner, self.effects.append)
        self.removed: list[int] = []
        self.cache = RadixCache(1, window, self.pool, self.removed.append)

    def put(self, tokens: list[int]) -> TreeNode:
        slots = self.pool.alloc(len(tokens))
        result = self.cache.insert(RadixKey(tokens), slots)
        self.pool.inner.free(slots[: result.prefix_len])
        return result.last_node

    def found(self, tokens: list[int]) -> int:
        return self.cache.match_prefix(RadixKey(tokens)).prefix_len

    def calls(self) -> list[tuple[str, int]]:
        """The pool's calls, with how many slots each named."""
        check_radix_cache(self.cache)
        calls = [(effect.call, len(effect.slots)) for effect in self.effects]
        self.effects.clear()
        return calls


class TestFullTokens:
    def test_evicted_leaves_are_the_oldest_ones(self) -> None:
        """R5: in the order of their last use, however the tree is shaped."""
        bench = Bench()
        nodes = [bench.put([number, 0, 0]) for number in range(5)]
        bench.found([0, 0, 0])
        bench.found([3, 0, 0])
        bench.cache.evict(9)
        assert bench.removed == [nodes[number].id for number in (1, 2, 4)]

    def test_a_parent_waits_for_its_last_child(self) -> None:
        """R5: an inner node is no victim, however old."""
        bench = Bench()
        bench.put([1, 2])
        young = bench.put([1, 2, 3])
        old = bench.put([1, 2, 4])
        bench.found([1, 2, 3])
        bench.cache.evict(1)
        assert bench.removed == [old.id]
        bench.cache.evict(1)
        assert bench.removed == [old.id, young.id]
        assert bench.found([1, 2, 9]) == 2

    def test_release_makes_a_leaf_a_victim_at_its_old_place(self) -> None:
        """R5, R8: what was held longest is not the youngest."""
        bench = Bench()
        held, other = bench.put([1, 2]), bench.put([3, 4])
        bench.cache.inc_lock_ref(held)
        bench.cache.evict(1)
        assert bench.removed == [other.id]
        last = bench.put([5, 6])
        bench.cache.dec_lock_ref(held)
        bench.cache.evict(1)
        assert bench.removed == [other.id, held.id]
        assert bench.cache.evict(100) == EvictResult(2)
        assert bench.removed[-1] == last.id

    def test_hold_on_an_inner_node_lets_its_leaves_go(self) -> None:
        """R6: below a hold nothing is protected."""
        bench = Bench()
        upper = bench.put([1, 2])
        leaf = bench.put([1, 2, 3])
        bench.cache.inc_lock_ref(upper)
        assert bench.cache.evict(100) == EvictResult(1)
        assert bench.removed == [leaf.id]
        bench.cache.dec_lock_ref(upper)
        assert bench.cache.evict(100) == EvictResult(2)

    def test_eviction_that_nothing_can_serve_asks_no_pool(self) -> None:
        """X2: no call for nothing."""
        bench = Bench()
        bench.cache.inc_lock_ref(bench.put([1, 2]))
        assert bench.cache.evict(5) == EvictResult()
        assert bench.calls() == []


class TestWindowTokens:
    @pytest.mark.notices("B62")
    def test_inner_nodes_lose_their_window_and_stay(self) -> None:
        """S3, S2: the oldest alive node is an inner one, so only its SWA half goes."""
        bench = Bench(window=2)
        bench.put([1, 2])
        bench.put([1, 2, 3, 4])
        assert bench.cache.evict(0, 1) == EvictResult(0, 2)
        assert bench.removed == []
        assert bench.calls() == [("free_swa", 2)]
        assert (bench.found([1, 2]), bench.found([1, 2, 3, 4])) == (0, 4)

    @pytest.mark.notices("B58")
    def test_the_window_that_was_used_longest_ago_goes_first(self) -> None:
        """S3, R8: a match makes the inner nodes of its path recent, and not its leaf alone."""
        bench = Bench(window=2)
        for tokens in ([1, 2], [1, 2, 3, 4], [5, 6], [5, 6, 7, 8]):
            bench.put(tokens)
        bench.found([1, 2, 3, 4])
        assert bench.cache.evict(0, 1) == EvictResult(0, 2)
        assert bench.calls() == [("free_swa", 2)]
        assert (bench.found([1, 2]), bench.found([5, 6])) == (2, 0)

    def test_leaves_are_removed_whole(self) -> None:
        """S3, S4: a leaf without its window could never be used again."""
        bench = Bench(window=2)
        leaf = bench.put([1, 2, 3])
        assert bench.cache.evict(0, 1) == EvictResult(3, 3)
        assert bench.removed == [leaf.id]
        assert bench.calls() == [("free", 3)]

    def test_first_phase_counts_for_the_second(self) -> None:
        """S3: alive tokens that phase 1 removed need not be found again."""
        bench = Bench(window=2)
        bench.put([1, 2, 3])
        bench.put([4, 5, 6])
        assert bench.cache.evict(1, 3) == EvictResult(3, 3)
        assert bench.found([4, 5, 6]) == 3

    @pytest.mark.notices("B46")
    def test_dead_tokens_count_as_full_only(self) -> None:
        """S3: removing a tombstone frees no window memory."""
        bench = Bench(window=2)
        bench.put([1, 2, 3, 4])
        bench.found([1, 2])
        bench.put([1, 2, 3, 4, 5, 6])
        bench.cache.evict(0, 2)
        assert bench.found([1, 2]) == 0
        assert bench.cache.evict(100) == EvictResult(6, 4)

    @pytest.mark.notices("B44")
    def test_tombstones_go_with_their_last_child(self) -> None:
        """S4: all the way up, in either phase, and counted."""
        bench = Bench(window=2)
        bench.put([1, 2])
        bench.put([1, 2, 3])
        bench.put([1, 2, 3, 4, 5])
        for node in (bench.found([1, 2]), bench.found([1, 2, 3])):
            assert node
        bench.found([1, 2, 3, 4, 5])
        bench.cache.evict(0, 3)
        assert bench.calls() == [("free_swa", 3)]
        assert bench.cache.evict(1) == EvictResult(5, 2)
        assert len(bench.removed) == 3
        assert bench.calls() == [("free", 5)]

    def test_cascade_stops_at_an_alive_parent(self) -> None:
        """S4: only what would be a dead leaf goes."""
        bench = Bench(window=2)
        bench.put([1, 2])
        bench.put([1, 2, 3, 4])
        bench.put([1, 2, 3, 4, 5, 6])
        bench.found([1, 2])
        bench.cache.evict(0, 2)
        assert bench.calls() == [("free_swa", 2)]
        assert bench.cache.evict(1) == EvictResult(4, 2)
        assert bench.found([1, 2, 3]) == 2

    def test_one_call_for_tombstones_then_one_for_removals(self) -> None:
        """X2: plan first, then free_swa once and free once, the latter with both halves."""
        bench = Bench(window=1)
        for tokens in ([7], [8, 8], [1], [1, 2], [1, 2, 3]):
            bench.put(tokens)
        assert bench.cache.evict(2, 5) == EvictResult(3, 5)
        assert bench.calls() == [("free_swa", 2), ("free", 3)]
        assert bench.pool.full_available_size() == 61
        assert bench.pool.swa_available_size() == 63

    def test_node_that_dies_and_then_cascades_is_freed_once(self) -> None:
        """X2, S4: chosen for its window first, removed with its child after: both halves in one free."""
        bench = Bench(window=1)
        bench.put([1])
        bench.put([1, 2])
        assert bench.cache.evict(0, 2) == EvictResult(2, 2)
        assert bench.calls() == [("free", 2)]
        assert bench.pool.swa_available_size() == 64

    @pytest.mark.notices("B40")
    def test_held_windows_are_never_taken(self) -> None:
        """S3, S5, S6: the window of a hold stays alive, the rest of its path may lose its own."""
        bench = Bench(window=2)
        node = bench.put([1, 2, 3, 4, 5])
        bench.cache.inc_lock_ref(node)
        assert bench.cache.evict(100, 100) == EvictResult(0, 3)
        assert bench.cache.total_size() == 5
        assert bench.cache.swa_protected_size() == 2
        assert bench.cache.swa_evictable_size() == 0
        assert bench.found([1, 2, 3, 4, 5]) == 5

    @pytest.mark.parametrize("amount", [0, -1])
    def test_nothing_asked_takes_nothing(self, amount: int) -> None:
        """S3: m <= 0 takes no part."""
        bench = Bench(window=2)
        bench.put([1, 2, 3])
        assert bench.cache.evict(0, amount) == EvictResult()
        assert bench.cache.evict(amount, amount) == EvictResult()

    def test_refused_tombstones_change_nothing(self) -> None:
        """X2: where free_swa raises, no node died and none was removed."""
        bench = Bench(window=1)
        for tokens in ([1], [1, 2], [1, 3], [4, 5]):
            bench.put(tokens)
        bench.pool.fault = Fault("free_swa")
        with pytest.raises(InjectedFault):
            bench.cache.evict(1, 2)
        assert bench.calls() == []
        assert bench.removed == []
        assert bench.cache.swa_evictable_size() == bench.cache.total_size() == 5
        bench.pool.fault = None
        assert bench.cache.evict(100, 100) == EvictResult(5, 5)
        assert bench.calls() == [("free", 5)]

    def test_refused_removal_keeps_the_tombstones(self) -> None:
        """X2: what free_swa has taken is dead, what free refused is still cached."""
        bench = Bench(window=1)
        for tokens in ([1], [1, 2], [1, 3], [4, 5]):
            bench.put(tokens)
        bench.pool.fault = Fault("free")
        with pytest.raises(InjectedFault):
            bench.cache.evict(1, 2)
        assert bench.calls() == [("free_swa", 1)]
        assert bench.removed == []
        assert bench.cache.total_size() == 5
        assert bench.cache.swa_evictable_size() == 4
        bench.pool.fault = None
        assert bench.cache.evict(100) == EvictResult(5, 4)

    def test_refused_cascade_leaves_the_tombstone_where_it_was(self) -> None:
        """X2, S4: a dead parent that was to go with its child is still there, dead, and goes next time."""
        bench = Bench(window=1)
        for tokens in ([1], [1, 2], [1, 2, 3]):
            bench.put(tokens)
        bench.cache.evict(0, 1)
        bench.pool.fault = Fault("free")
        with pytest.raises(InjectedFault):
            bench.cache.evict(3)
        assert bench.calls() == [("free_swa", 1)]
        assert (bench.cache.total_size(), bench.cache.swa_evictable_size()) == (3, 2)
        bench.pool.fault = None
        assert bench.cache.evict(2) == EvictResult(3, 2)
        assert bench.calls() == [("free", 3)]

    def test_pool_without_window_halves_hears_of_removals_only(self) -> None:
        """S2: tombstoning over a pool without free_swa is bookkeeping."""
        effects: list[Effect] = []
        pool = record_around(TokenToKVPoolAllocator(16, "cpu", 1, True), effects.append)
        cache = RadixCache(1, 1, pool)
        cache.insert(RadixKey([1, 2]), pool.alloc(2))
        cache.match_prefix(RadixKey([1]))
        cache.insert(RadixKey([1, 2, 3]), pool.alloc(3))
        assert cache.evict(0, 1) == EvictResult(0, 1)
        assert effects == []
        check_radix_cache(cache)

    def test_window_memory_goes_to_whoever_is_least_recent(self) -> None:
        """S3, R8: an old leaf goes before the window of a young trunk."""
        bench = Bench(window=1)
        old = bench.put([9, 9])
        bench.put([1])
        bench.put([1, 2])
        assert bench.cache.evict(0, 1) == EvictResult(2, 2)
        assert bench.removed == [old.id]
