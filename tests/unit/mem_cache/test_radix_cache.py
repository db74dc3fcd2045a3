"""`RadixCache` without a window, law by law."""

from __future__ import annotations

from threading import get_ident
from typing import Any

import pytest
import torch

from pymllm.adapters.failing_calls import RecordingPool, record_around
from pymllm.adapters.own_caches import path_length
from pymllm.errors import LockError, OwnershipError, StaleNodeError
from pymllm.history.operations import Key
from pymllm.history.outcomes import Effect
from pymllm.invariants import check_radix_cache
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.memory_pool import TokenToKVPoolAllocator
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode


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
    """A str subclass with a text of its own: capitals."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


class TestConstructor:
    def test_documented_attributes_are_there(self, pool: RecordingPool) -> None:
        """The arguments are kept under their documented names."""
        cache = RadixCache(4, 8, pool, print)
        assert (cache.page_size, cache.sliding_window_size, cache.pool) == (4, 8, pool)
        assert cache.on_node_evict is print
        assert cache.supports_swa
        assert not RadixCache().supports_swa


class TestMatch:
    @pytest.mark.notices("B02")
    def test_last_node_spells_the_prefix(self, cache: RadixCache) -> None:
        """R2: neither its parent nor the root, wherever the match ends."""
        put(cache, [1, 2, 3, 4])
        put(cache, [1, 2, 9, 9])
        for tokens in ([1], [1, 2], [1, 2, 3], [1, 2, 3, 4]):
            match = cache.match_prefix(RadixKey([*tokens, 77]))
            assert match.prefix_len == len(tokens)
            assert path_length(cache.root_node, match.last_node, Key(tuple(tokens))) == len(tokens)

    @pytest.mark.notices("B194")
    def test_match_splits_only_where_it_ends(self, cache: RadixCache) -> None:
        """R2: a match that ends with a node, or before any, leaves the tree's shape alone."""
        node = put(cache, [1, 2, 3, 4])
        find(cache, [1, 2, 3, 4, 5])
        find(cache, [7])
        assert tokens_of(node) == [1, 2, 3, 4]
        find(cache, [1, 2])
        assert tokens_of(node) == [3, 4]

    @pytest.mark.notices("B04")
    def test_pages_that_differ_in_their_last_token_are_siblings(self) -> None:
        """R9: children are filed under the whole first page."""
        cache = RadixCache(2)
        put(cache, [1, 1, 1, 2], 100)
        put(cache, [1, 1, 1, 3], 200)
        assert find(cache, [1, 1, 1, 2]) == [100, 101, 102, 103]
        assert find(cache, [1, 1, 1, 3]) == [100, 101, 202, 203]

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

    @pytest.mark.notices("B176")
    def test_hits_are_counted_on_the_returned_path_only(self, cache: RadixCache) -> None:
        """R10: inserts are no hits, a split copies the count, the rest of a split node was not hit."""
        node = put(cache, [1, 2, 3, 4])
        assert node.hit_count == 0
        find(cache, [1, 2, 3, 4])
        find(cache, [1, 2])
        assert node.hit_count == 1
        assert node.parent.hit_count == 2


class TestInsert:
    def test_slots_of_the_tail_are_not_looked_at(self, pooled: RadixCache) -> None:
        """R1: what is not cached need not be a page."""
        assert pooled.insert(RadixKey([1, 2, 3, 4, 5, 6]), slots(4, 5, 6, 7, 33, 32)).adopted == ((0, 4),)


class TestEvict:
    @pytest.mark.notices("B50")
    def test_unmatched_rest_of_a_split_node_stays_old(self, cache: RadixCache) -> None:
        """R8: only the returned path is refreshed, not what hangs below it."""
        put(cache, [1, 2, 3, 4])
        put(cache, [7, 8], 200)
        find(cache, [1, 2])
        cache.evict(1)
        assert len(find(cache, [1, 2, 3, 4])) == 2
        assert len(find(cache, [7, 8])) == 2

    @pytest.mark.notices("B49")
    def test_matched_half_of_a_split_node_is_young(self, cache: RadixCache) -> None:
        """R8: the prefix that was just hit is not the next victim."""
        put(cache, [1, 2, 3, 4])
        put(cache, [7, 8], 200)
        find(cache, [1, 2])
        cache.evict(3)
        assert len(find(cache, [1, 2])) == 2
        assert find(cache, [7, 8]) == []

    @pytest.mark.notices("B65")
    def test_parents_become_leaves(self, cache: RadixCache) -> None:
        """R5: again and again until enough is gone."""
        put(cache, [1, 2, 3, 4])
        put(cache, [1, 2, 5, 6], 200)
        assert cache.evict(6).full_evicted == 6
        assert cache.total_size() == 0
        assert cache.root_node.children == {}

    @pytest.mark.notices("B163", shows_as=OwnershipError)
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

    @pytest.mark.notices("B13")
    def test_locked_nodes_are_never_taken(self, cache: RadixCache) -> None:
        """R6: a hold protects the path, and nothing beside or below it."""
        put(cache, [1, 2, 3, 4])
        node = cache.match_prefix(RadixKey([1, 2])).last_node
        put(cache, [7, 8], 200)
        cache.inc_lock_ref(node)
        assert cache.evict(100).full_evicted == 4
        assert find(cache, [1, 2, 3, 4]) == [100, 101]
        assert cache.evict(1).full_evicted == 0


class TestLocks:
    @pytest.mark.notices("B14", shows_as=LockError)
    @pytest.mark.notices("B01")
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

    @pytest.mark.notices("B179")
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


class TestFaults:
    def test_reset_after_the_pool_was_cleared_raises_and_empties(
        self, pooled: RadixCache, pool: RecordingPool
    ) -> None:
        """X7: a real pool refuses slots that it has taken back already."""
        node = pooled.insert(RadixKey([1] * 4), pool.alloc(4)).last_node
        pool.inner.clear()
        with pytest.raises(OwnershipError):
            pooled.reset()
        assert (pooled.total_size(), pooled.root_node.children) == (0, {})
        with pytest.raises(StaleNodeError):
            pooled.inc_lock_ref(node)
        pooled.insert(RadixKey([1] * 4), pool.alloc(4))
        check_radix_cache(pooled)

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


def test_reset_heals_a_call_that_never_ended(short: tuple[RadixCache, _ShortOfMemory]) -> None:
    """X6, X7: what an interrupt left of a callback refuses a match, and no reset."""
    cache, pool = short
    cache._guard.inside, cache._guard._thread = "on_node_evict", get_ident()
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
    choose, calls = cache._tree.victims.first_leaf, []

    def first_leaf() -> TreeNode | None:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return choose()

    with monkeypatch.context() as patch:
        patch.setattr(cache._tree.victims, "first_leaf", first_leaf)
        with pytest.raises(MemoryError):
            cache.evict(9)
    check_radix_cache(cache)
    assert cache.total_size() == 6
    assert cache.evict(9).full_evicted == 6
