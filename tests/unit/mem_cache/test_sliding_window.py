"""Windows: which prefixes can be used, what holds protect, and what inserts and evictions do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.adapters.failing_calls import record_around
from pymllm.adapters.own_caches import view_tree
from pymllm.errors import OwnershipError
from pymllm.history.outcomes import Effect
from pymllm.invariants import check_radix_cache
from pymllm.mem_cache.base_prefix_cache import EvictResult, RadixKey
from pymllm.mem_cache.memory_pool import SWATokenToKVPoolAllocator
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from tests.far_device import Apart

TEN = list(range(10))


def put(cache: RadixCache, tokens: list[int], evicted: int = 0, first: int = 100) -> TreeNode:
    """Insert tokens whose window KV before ``evicted`` is gone; return the node."""
    value = torch.arange(first, first + len(tokens))
    return cache.insert(RadixKey(tokens), value, swa_evicted_seqlen=evicted).last_node


def found(cache: RadixCache, tokens: list[int]) -> int:
    check_radix_cache(cache)
    return cache.match_prefix(RadixKey(tokens)).prefix_len


def node_at(cache: RadixCache, tokens: list[int]) -> TreeNode:
    match = cache.match_prefix(RadixKey(tokens))
    assert match.prefix_len == len(tokens)
    return match.last_node


class TestUsablePrefixes:
    @pytest.mark.notices("B193")
    def test_prefix_after_a_tombstone_needs_a_whole_window(self) -> None:
        """S1: the last W tokens are alive, or it cannot be used."""
        cache = RadixCache(1, 4)
        put(cache, TEN, evicted=3)
        assert [found(cache, TEN[:length]) for length in (3, 6, 7, 8, 10)] == [0, 0, 7, 8, 10]

    def test_alive_nodes_behind_a_tombstone_make_a_window_together(self) -> None:
        """S1: the first of them is too short to end a prefix, and counts for the next."""
        cache = RadixCache(1, 3)
        for length in (2, 4, 5, 10):
            last = put(cache, TEN[:length])
        cache.inc_lock_ref(last)
        found(cache, TEN[:2])
        cache.evict(0, 1)
        assert [found(cache, TEN[:length]) for length in (5, 6, 7, 10)] == [2, 2, 7, 10]

    @pytest.mark.notices("B31")
    def test_alive_tokens_are_counted_from_the_last_tombstone(self) -> None:
        """S1: two alive tokens before a tombstone and two after it are no window of three."""
        cache = RadixCache(1, 3)
        put(cache, TEN[:2])
        middle = put(cache, TEN[:4])
        cache.inc_lock_ref(put(cache, TEN))
        found(cache, TEN[:2])
        cache.evict(0, 1)
        assert middle.swa_tombstone
        assert [found(cache, TEN[:length]) for length in (6, 7)] == [2, 7]


def test_what_an_insert_revives_and_what_it_adds_is_one_run() -> None:
    """S7: slots that lie behind each other in the key are told as one range."""
    cache = RadixCache(1, 2)
    trunk = put(cache, TEN[:4])
    put(cache, TEN)
    cache.evict(0, 4)
    assert trunk.swa_tombstone
    key = [*TEN[:4], 20, 21]
    assert cache.insert(RadixKey(key), torch.arange(500, 506)).adopted == ((0, 6),)
    check_radix_cache(cache)


def test_an_insert_of_no_whole_page_adopts_nothing() -> None:
    """S7, X6: its slots stay the caller's."""
    cache = RadixCache(4, 4)
    result = cache.insert(RadixKey(TEN[:3]), torch.arange(100, 103))
    assert (result.prefix_len, result.adopted, result.last_node) == (0, (), cache.root_node)


class TestHolds:
    @pytest.mark.notices("B23", "B25")
    def test_split_of_the_edge_node_keeps_its_id_on_top(self) -> None:
        """S5, R10: the upper half starts the window now, and no other node carries the id."""
        cache = RadixCache(1, 4)
        node = put(cache, TEN)
        token = cache.inc_lock_ref(node)
        upper = node_at(cache, TEN[:8])
        assert upper is node.parent
        assert (upper.swa_boundary_id, node.swa_boundary_id) == (token, None)
        assert (upper.swa_lock_ref, node.swa_lock_ref) == (1, 1)
        again = node_at(cache, TEN[:7])
        assert (again.swa_boundary_id, upper.swa_boundary_id) == (token, None)
        cache.dec_lock_ref(node, token)
        assert cache.swa_protected_size() == 0
        check_radix_cache(cache)

    @pytest.mark.notices("B20", "B200")
    def test_release_takes_nobody_elses_window(self) -> None:
        """S5: two holds whose windows overlap, released in either order."""
        for first_released in (0, 1):
            cache = RadixCache(1, 4)
            nodes = [put(cache, TEN[:6]), put(cache, TEN[:8])]
            tokens = [cache.inc_lock_ref(node) for node in nodes]
            assert cache.swa_protected_size() == 6
            cache.dec_lock_ref(nodes[first_released], tokens[first_released])
            assert cache.swa_protected_size() == 4
            assert cache.protected_size() == (8, 6)[first_released]
            check_radix_cache(cache)
            cache.dec_lock_ref(nodes[1 - first_released], tokens[1 - first_released])
            assert cache.swa_protected_size() == cache.protected_size() == 0

    @pytest.mark.notices("B19")
    def test_release_after_a_revival_is_exact(self) -> None:
        """S5, S6: a tombstone that was revived under the hold was never covered by it."""
        cache = RadixCache(1, 2)
        trunk = put(cache, TEN[:4])
        node = put(cache, TEN)
        token = cache.inc_lock_ref(node)
        cache.evict(0, 4)
        assert trunk.swa_tombstone
        cache.dec_lock_ref(node, token)
        put(cache, TEN, first=500)
        assert not trunk.swa_tombstone
        check_radix_cache(cache)
        assert trunk.swa_lock_ref == 0


class Bench:
    """A cache over a recording pool, with short names for what these tests do."""

    def __init__(self, window: int) -> None:
        inner = SWATokenToKVPoolAllocator(64, 64, "cpu", 1, True)
        self.effects: list[Effect] = []
        self.pool: Any = record_around(inner, self.effects.append)
        self.removed: list[int] = []
        self.cache = RadixCache(1, window, self.pool, self.removed.append)

    def put(self, tokens: list[int]) -> TreeNode:
        slots = self.pool.alloc(len(tokens))
        result = self.cache.insert(RadixKey(tokens), slots)
        self.pool.inner.free(slots[: result.prefix_len])
        return result.last_node

    def slots(self, tokens: list[int]) -> list[int]:
        return self.cache.match_prefix(RadixKey(tokens)).indices.tolist()

    def found(self, tokens: list[int]) -> int:
        return len(self.slots(tokens))

    def calls(self) -> list[tuple[str, int]]:
        """The pool's calls, with how many slots each named."""
        check_radix_cache(self.cache)
        calls = [(effect.call, len(effect.slots)) for effect in self.effects]
        self.effects.clear()
        return calls


class TestInserts:
    @pytest.mark.notices("B34", "B35")
    def test_held_tombstone_keeps_its_slots_and_takes_the_halves(self) -> None:
        """S7, R6: what others read is never freed; the incoming full slots stay the caller's."""
        bench = Bench(window=2)
        slots = bench.pool.alloc(10)
        bench.pool.inner.free_swa(slots[:8])
        node = bench.cache.insert(RadixKey(TEN), slots, swa_evicted_seqlen=8).last_node
        bench.cache.inc_lock_ref(node)
        old, incoming = bench.slots(TEN), bench.pool.alloc(10)
        result = bench.cache.insert(RadixKey(TEN), incoming)
        assert (result.prefix_len, result.adopted) == (10, ())
        assert bench.effects == [Effect("move_swa", tuple(incoming[:8].tolist()), tuple(old[:8]))]
        assert bench.slots(TEN) == old
        assert bench.pool.translate_to_swa(incoming[:8]).tolist() == [0] * 8
        assert bench.cache.swa_evictable_size() + bench.cache.swa_protected_size() == 10
        bench.pool.inner.free(incoming)
        check_radix_cache(bench.cache)

    def test_own_pages_between_foreign_ones_are_split_off(self) -> None:
        """S7, R4: revived runs are nodes of their own, and adopted has one range for each."""
        bench = Bench(window=2)
        slots = bench.pool.alloc(10)
        bench.pool.inner.free_swa(slots[:8])
        bench.cache.insert(RadixKey(TEN), slots, swa_evicted_seqlen=8)
        again = slots.clone()
        again[1:3], again[5:7] = bench.pool.alloc(2), bench.pool.alloc(2)
        assert bench.cache.insert(RadixKey(TEN), again).adopted == ((1, 3), (5, 7))
        nodes = view_tree(bench.cache.root_node)
        assert [(len(node.tokens), node.is_alive) for node in nodes] == [
            *((1, False), (2, True), (2, False), (2, True), (1, False), (2, True))
        ]
        check_radix_cache(bench.cache)

    @pytest.mark.parametrize("start", [0, 4])
    def test_the_error_says_how_far_the_halves_are_gone(self, start: int) -> None:
        """S7, X1: the value that was given, and the whole pages that would do."""
        pool = SWATokenToKVPoolAllocator(64, 64, "cpu", 4, True)
        slots = pool.alloc(12)
        pool.free_swa(slots[start:8])
        words = f"token {start} .* swa_evicted_seqlen is 0; give 8 or more, and free_swa all halves before it"
        with pytest.raises(OwnershipError, match=words):
            RadixCache(4, 4, pool).insert(RadixKey(list(range(12))), slots)

    def test_unchecked_pool_is_not_asked_for_halves(self) -> None:
        """S7: without ownership checks both are the caller's duty."""
        pool = SWATokenToKVPoolAllocator(64, 64, "cpu", 1, True, check_ownership=False)
        result = RadixCache(1, 2, pool).insert(RadixKey(TEN), pool.alloc(10), swa_evicted_seqlen=4)
        assert result.adopted == ((0, 10),)


class TestEviction:
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


def test_evictions_of_paged_windows_wait_for_nothing(apart: Apart) -> None:
    """S3, S4: a tree knows its pages, those that lose their half alone and those that go."""
    device, synchronisations = apart
    pool = SWATokenToKVPoolAllocator(64, 64, device, 4)
    cache = RadixCache(4, 8, pool)
    for tokens in (list(range(16)), [*range(16), *range(50, 66)], list(range(100, 116))):
        slots = pool.alloc(len(tokens))
        result = cache.insert(RadixKey(tokens), slots)
        pool.free(slots[: result.prefix_len])
    with synchronisations() as waits:
        assert cache.evict(0, 8).swa_evicted >= 8
        assert cache.evict(32).full_evicted >= 32
    assert waits == []
    assert pool.full_available_size() == 64 - cache.total_size()
    check_radix_cache(cache)
    dead = pool.alloc(16)
    pool.free_swa_pages(dead[:8:4])
    cache.insert(RadixKey([7] * 16), dead, swa_evicted_seqlen=8)
    again = pool.alloc(16)
    assert cache.insert(RadixKey([7] * 16), again).adopted == ((0, 8),)
    pool.free(again[8:])
    check_radix_cache(cache)
    cache.evict(64)
    assert (pool.full_available_size(), pool.swa_available_size()) == (64, 64)
