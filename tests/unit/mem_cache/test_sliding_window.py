"""Windows: which prefixes can be used, what a hold protects, what its release takes back."""

from __future__ import annotations

import pytest
import torch

from pymllm.errors import LockError, StaleNodeError
from pymllm.invariants import check_radix_cache
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode

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
    def test_prefix_without_tombstones_is_usable_however_short(self) -> None:
        """S1: all of it is alive."""
        cache = RadixCache(1, 4)
        put(cache, TEN)
        assert [found(cache, TEN[:length]) for length in range(6)] == [0, 1, 2, 3, 4, 5]

    @pytest.mark.notices("B193")
    def test_prefix_after_a_tombstone_needs_a_whole_window(self) -> None:
        """S1: the last W tokens are alive, or it cannot be used."""
        cache = RadixCache(1, 4)
        put(cache, TEN, evicted=3)
        assert [found(cache, TEN[:length]) for length in (3, 6, 7, 8, 10)] == [0, 0, 7, 8, 10]

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

    def test_match_falls_back_to_an_earlier_window(self) -> None:
        """S1, R2: the longest prefix that can be used, not nothing."""
        cache = RadixCache(1, 3)
        put(cache, TEN[:4])
        middle = put(cache, TEN[:6])
        cache.inc_lock_ref(put(cache, TEN))
        found(cache, TEN[:4])
        cache.evict(0, 1)
        assert (middle.swa_tombstone, middle.parent.swa_tombstone) == (True, False)
        assert [found(cache, TEN[:length]) for length in (10, 9, 8, 6, 5, 4)] == [10, 9, 4, 4, 4, 4]

    def test_window_may_span_nodes(self) -> None:
        """S1: alive tokens count across nodes."""
        cache = RadixCache(1, 4)
        put(cache, TEN, evicted=4)
        found(cache, TEN[:8])
        found(cache, TEN[:9])
        assert found(cache, TEN[:8]) == 8
        assert found(cache, TEN) == 10

    def test_window_smaller_than_a_page_counts_tokens(self) -> None:
        """S1: one alive page is more than a window of one token."""
        cache = RadixCache(4, 1)
        put(cache, [*TEN, 10, 11], evicted=8)
        assert found(cache, [*TEN, 10, 11]) == 12
        assert found(cache, TEN) == 0

    def test_window_larger_than_a_page_needs_more_pages(self) -> None:
        """S1: six tokens of a window are two pages of four."""
        cache = RadixCache(4, 6)
        put(cache, list(range(16)), evicted=4)
        assert [found(cache, list(range(length))) for length in (8, 12, 16)] == [0, 12, 16]

    def test_partly_matched_tombstone_is_not_used(self) -> None:
        """S1, R2: nor is it split."""
        cache = RadixCache(1, 2)
        leaf = put(cache, TEN, evicted=6)
        assert found(cache, TEN[:3]) == 0
        assert leaf.parent.parent is cache.root_node

    def test_dead_match_refreshes_nothing(self) -> None:
        """R8: only the returned path is used, and here none is returned."""
        cache = RadixCache(1, 2)
        leaf = put(cache, TEN, evicted=6)
        before = leaf.parent.last_access_time, leaf.parent.hit_count
        found(cache, TEN[:7])
        assert (leaf.parent.last_access_time, leaf.parent.hit_count) == before


class TestHolds:
    def test_hold_protects_exactly_the_pages_of_its_window(self) -> None:
        """S5, S6: the path is locked, the last W tokens alive, the rest evictable from the window."""
        cache = RadixCache(1, 4)
        node = put(cache, TEN)
        token = cache.inc_lock_ref(node)
        assert token is not None
        assert (len(node.key), node.swa_lock_ref, node.lock_ref) == (4, 1, 1)
        assert (node.parent.swa_lock_ref, node.parent.lock_ref) == (0, 1)
        assert (cache.swa_protected_size(), cache.swa_evictable_size()) == (4, 6)
        assert (cache.protected_size(), cache.evictable_size()) == (10, 0)
        assert node.swa_boundary_id == token

    def test_window_is_rounded_up_to_whole_pages(self) -> None:
        """S5: six tokens are covered by two pages of four."""
        cache = RadixCache(4, 6)
        node = put(cache, list(range(16)))
        cache.inc_lock_ref(node)
        assert cache.swa_protected_size() == 8

    @pytest.mark.parametrize(
        ("page_size", "window", "length"),
        [(1, 4, 4), (1, 4, 1), (4, 6, 8), (4, 5, 8), (4, 1, 4), (1, 100, 10)],
    )
    def test_no_token_where_the_window_covers_the_path(
        self, page_size: int, window: int, length: int
    ) -> None:
        """S5: None exactly then; releasing with None undoes the hold."""
        cache = RadixCache(page_size, window)
        node = put(cache, list(range(length)))
        assert cache.inc_lock_ref(node) is None
        assert cache.swa_protected_size() == length
        with pytest.raises(LockError):
            cache.dec_lock_ref(node, 1)
        cache.dec_lock_ref(node, None)
        assert cache.swa_protected_size() == cache.protected_size() == 0
        check_radix_cache(cache)

    def test_one_token_more_makes_a_token_necessary(self) -> None:
        """S5: the window ends inside the path."""
        cache = RadixCache(1, 4)
        assert cache.inc_lock_ref(put(cache, TEN[:5])) is not None

    def test_token_of_another_hold_is_refused(self) -> None:
        """S5: each edge has its own id."""
        cache = RadixCache(1, 2)
        short, long = put(cache, TEN[:5]), put(cache, TEN)
        tokens = cache.inc_lock_ref(short), cache.inc_lock_ref(long)
        assert tokens[0] != tokens[1]
        with pytest.raises(LockError):
            cache.dec_lock_ref(short, tokens[1])
        cache.dec_lock_ref(short, tokens[0])
        cache.dec_lock_ref(long, swa_boundary_id=tokens[1])
        check_radix_cache(cache)

    def test_holds_at_one_node_share_their_token(self) -> None:
        """S5: it is the edge node's id."""
        cache = RadixCache(1, 4)
        node = put(cache, TEN)
        tokens = [cache.inc_lock_ref(node) for _ in range(3)]
        assert len(set(tokens)) == 1
        assert (node.lock_ref, node.swa_lock_ref) == (3, 3)
        for token in tokens:
            cache.dec_lock_ref(node, token)
        assert (node.lock_ref, node.swa_lock_ref) == (0, 0)
        with pytest.raises(LockError):
            cache.dec_lock_ref(node, tokens[0])

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

    def test_split_above_the_edge_leaves_the_id_alone(self) -> None:
        """S5: the edge node is not touched."""
        cache = RadixCache(1, 4)
        node = put(cache, TEN)
        token = cache.inc_lock_ref(node)
        node_at(cache, TEN[:3])
        assert node.swa_boundary_id == token
        cache.dec_lock_ref(node, token)

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

    def test_release_after_tombstoning_around_it_is_exact(self) -> None:
        """S5, S6: what died outside the window in between is not counted."""
        cache = RadixCache(1, 2)
        node = put(cache, TEN)
        token = cache.inc_lock_ref(node)
        cache.evict(100, 100)
        assert node.parent.swa_tombstone
        put(cache, TEN, first=500)
        cache.dec_lock_ref(node, token)
        check_radix_cache(cache)
        assert (node.swa_lock_ref, node.parent.swa_lock_ref) == (0, 0)

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

    def test_reset_forgets_tokens_and_tombstones(self) -> None:
        """X7: and the windowed sizes."""
        cache = RadixCache(1, 4)
        node = put(cache, TEN, evicted=5)
        token = cache.inc_lock_ref(node)
        cache.reset()
        assert cache.swa_evictable_size() == cache.swa_protected_size() == 0
        with pytest.raises(StaleNodeError):
            cache.dec_lock_ref(node, token)
        assert found(cache, TEN) == 0
        put(cache, TEN)
        check_radix_cache(cache)

    def test_root_needs_no_window(self) -> None:
        """R6: the empty prefix is always usable."""
        cache = RadixCache(1, 4)
        assert cache.inc_lock_ref(cache.root_node) is None
        cache.dec_lock_ref(cache.root_node)
        cache.dec_lock_ref(None, 7)


class TestSizes:
    def test_dead_tokens_are_full_tokens_only(self) -> None:
        """S6, R7: a tombstone counts in total_size and in no window size."""
        cache = RadixCache(1, 2)
        put(cache, TEN, evicted=6)
        assert (cache.total_size(), cache.swa_evictable_size(), cache.swa_protected_size()) == (10, 4, 0)
