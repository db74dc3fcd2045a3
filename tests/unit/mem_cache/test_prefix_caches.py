"""Tests of the promises of every tree of prefixes, on a plain cache and on one with states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import LockError
from pymllm.invariants import check_mamba_radix_cache, check_radix_cache
from pymllm.mem_cache import MambaRadixCache, RadixCache, RadixKey

Cache = RadixCache | MambaRadixCache
Kind = type[RadixCache] | type[MambaRadixCache]


def slots(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def put(cache: Cache, tokens: list[int], first: int = 100, extra_key: Any = None) -> Any:
    """Insert tokens with slots ``first, first + 1, ..``, perhaps a state; return the node."""
    value = torch.arange(first, first + len(tokens))
    options = {"mamba_value": slots(first + 1)} if isinstance(cache, MambaRadixCache) else {}
    return cache.insert(RadixKey(tokens, extra_key), value, **options).last_node


def find(cache: Cache, tokens: list[int], extra_key: Any = None) -> list[int]:
    """Match tokens and return the slots."""
    return cache.match_prefix(RadixKey(tokens, extra_key)).indices.tolist()


def check(cache: Cache) -> None:
    (check_radix_cache if isinstance(cache, RadixCache) else check_mamba_radix_cache)(cache)


def state(cache: Cache) -> Any:
    """Everything that can be seen of a cache, as plain data."""
    check(cache)
    fields = "id last_access_time hit_count lock_ref hash_values"
    nodes = [
        (list(it.key), it.value.tolist(), *(getattr(it, name) for name in fields.split()))
        for it in cache._tree.nodes()
    ]
    return nodes, cache.evictable_size(), cache.protected_size()


@pytest.fixture(params=[RadixCache, MambaRadixCache], ids=["plain", "states"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def cache(kind: Kind) -> Cache:
    return kind()


class TestMatch:
    @pytest.mark.notices("B155")
    def test_empty_cache_matches_nothing(self, cache: Cache) -> None:
        """R2: an empty result is an int64 tensor of length 0 and the root."""
        match = cache.match_prefix(RadixKey([1, 2, 3]))
        assert match.indices.shape == (0,)
        assert match.indices.dtype == torch.int64
        assert (match.prefix_len, match.last_node) == (0, cache.root_node)
        assert match.mamba_branching_seqlen is None

    @pytest.mark.notices("B139", "B140")
    def test_namespaces_share_nothing(self, cache: Cache) -> None:
        """K1: equal tokens of another adapter are another prefix; "1" and 1 are two names."""
        for first, extra_key in ((100, None), (200, "1"), (300, 1), (400, "lora")):
            put(cache, [1, 2], first, extra_key)
        for first, extra_key in ((100, None), (200, "1"), (300, 1), (400, "lora")):
            assert find(cache, [1, 2, 3], extra_key) == [first, first + 1]
        assert find(cache, [1, 2], "2") == []

    @pytest.mark.notices("B270", "B271", "B272", "B273", "B274", "B275", "B276", "faulty-exchanged-values")
    def test_values_share_nothing_that_agree_in_all_but_one_dimension(self, cache: Cache) -> None:
        """K2: none is dropped, joined, exchanged or taken for a missing one, and equal ones meet."""
        spaces = [
            ("a",) * 5,
            *(tuple("x" if place == at else "a" for place in range(5)) for at in range(5)),
            *(
                ("a", "bc"),
                ("ab", "c"),
                ("bc", "a"),
                ("a", None, "bc"),
                (None, "a"),
                ("", "a"),
                (0, "a"),
                "a",
            ),
        ]
        for number, space in enumerate(spaces):
            assert find(cache, [1, 2], space) == []
            put(cache, [1, 2], 10 * number, space)
        for number, space in enumerate(spaces):
            assert find(cache, [1, 2, 3], space) == [10 * number, 10 * number + 1]
        check(cache)

    def test_what_is_missing_at_the_end_of_a_namespace_is_left_out(self, cache: Cache) -> None:
        """K2: a namespace has one spelling, however many dimensions its caller knows."""
        put(cache, [1], 10, ("a", None, None))
        put(cache, [1], 20, (None, "b"))
        assert [find(cache, [1], space) for space in ("a", ("a",), ("a", None))] == [[10]] * 3
        assert find(cache, [1], (None, "b", None)) == [20]
        assert [RadixKey([1], space).extra_key for space in ((), (None,), (None, None))] == [None] * 3

    def test_indices_are_a_copy(self, cache: Cache) -> None:
        """X5: a caller that writes into its result changes nothing in the tree."""
        put(cache, [1, 2, 3])
        for _ in range(2):
            match = cache.match_prefix(RadixKey([1, 2, 3]))
            assert match.indices.tolist() == [100, 101, 102]
            match.indices.fill_(-1)


class TestInsert:
    @pytest.mark.notices("B08")
    def test_tree_keeps_no_view_of_key_or_value(self, cache: Cache) -> None:
        """X5: rows, prompt buffers and tables of track slots are recycled by their owners."""
        tokens, value, table = np.array([1, 2, 3]), slots(7, 8, 9), slots(40, 50, 60)
        node = cache.insert(RadixKey(tokens), value, mamba_value=table[1:2]).last_node
        tokens[:] = 0
        value.fill_(0)
        table.fill_(0)
        assert find(cache, [1, 2, 3]) == [7, 8, 9]
        assert isinstance(cache, RadixCache) or node.mamba_value.tolist() == [50]
        check(cache)

    def test_options_of_other_caches_are_ignored(self, cache: Cache) -> None:
        """Sections 4, 7; R4, S7: an engine may pass a state or a window's bounds to any cache."""
        options = {"mamba_value": slots(1), "prev_prefix_len": 1, "swa_evicted_seqlen": 1}
        result = cache.insert(RadixKey([1, 2]), slots(4, 5), **options)
        assert (result.adopted, result.mamba_exist) == (((0, 2),), False)


class TestEvict:
    @pytest.mark.notices("B56")
    def test_match_refreshes_what_it_returns(self, cache: Cache) -> None:
        """R8: insert A, insert B, match A, evict: B goes."""
        put(cache, [1, 2, 3])
        put(cache, [4, 5, 6])
        find(cache, [1, 2, 3])
        cache.evict(1)
        assert len(find(cache, [1, 2, 3])) == 3
        assert find(cache, [4, 5, 6]) == []


class TestLocks:
    @pytest.mark.notices("B16")
    def test_sizes_survive_a_child_of_a_leaf(self, cache: Cache) -> None:
        """R7: a leaf that gains a child keeps counting, locked or not."""
        node = put(cache, [1, 2])
        cache.inc_lock_ref(node)
        put(cache, [1, 2, 3])
        assert (cache.evictable_size(), cache.protected_size()) == (1, 2)
        cache.dec_lock_ref(node)
        assert (cache.evictable_size(), cache.protected_size()) == (3, 0)

    def test_root_and_none_are_no_ops(self, cache: Cache) -> None:
        """R6: a request without a hit holds nothing."""
        for node in (None, cache.root_node):
            assert cache.inc_lock_ref(node) is None
            cache.dec_lock_ref(node)
            cache.dec_lock_ref(node)
        assert cache.root_node.lock_ref == 1

    @pytest.mark.notices("B26")
    def test_release_without_a_hold_is_refused(self, cache: Cache) -> None:
        """R6: not even where the count is positive because of a hold further down."""
        upper, lower = put(cache, [1, 2]), put(cache, [1, 2, 3, 4])
        with pytest.raises(LockError, match=str(upper.id)):
            cache.dec_lock_ref(upper)
        cache.inc_lock_ref(lower)
        with pytest.raises(LockError, match=str(upper.id)):
            cache.dec_lock_ref(upper)
        assert (upper.lock_ref, lower.lock_ref) == (1, 1)


class TestRecencyAndIds:
    @pytest.mark.notices("B55")
    def test_clock_is_logical(self, cache: Cache) -> None:
        """X3, R8: one tick per match or insert, the same along the path, a float."""
        first = put(cache, [1, 2])
        second = put(cache, [1, 2, 3, 4])
        assert isinstance(second.last_access_time, float)
        assert first.last_access_time == second.last_access_time == 2.0
        assert float(int(second.last_access_time)) == second.last_access_time


class TestFaults:
    @pytest.mark.notices("B124")
    def test_all_callbacks_run_and_the_first_error_is_raised(self, kind: Kind) -> None:
        """X2: an observer that fails cannot stop an eviction half-way."""
        called: list[int] = []

        def fail(node_id: int) -> None:
            called.append(node_id)
            raise KeyError(node_id)

        cache = kind(on_node_evict=fail)
        nodes = [put(cache, [first, 1]) for first in range(3)]
        with pytest.raises(KeyError, match=str(nodes[0].id)):
            cache.evict(100)
        assert called == [node.id for node in nodes]
        assert cache.total_size() == 0
        check(cache)
        assert put(cache, [1, 2]) is not None


class TestReentrancy:
    def test_callback_may_ask_sizes_hashes_and_print(
        self, kind: Kind, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """X6: it sees the trackers as they are after the eviction."""
        seen: list[Any] = []
        cache = kind()
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


class TestReset:
    def test_reset_cache_behaves_like_a_new_one(self, kind: Kind, cache: Cache) -> None:
        """X7: recency and contents start again; only node ids go on."""
        put(cache, [1, 2, 3])
        find(cache, [1, 2])
        cache.reset()
        new = kind()
        for target in (cache, new):
            put(target, [1, 2], 200)
            put(target, [1, 3], 300)
        ages = [[node.last_access_time for node in each._tree.nodes()] for each in (cache, new)]
        assert ages[0] == ages[1]
        assert find(cache, [1, 2]) == find(new, [1, 2]) == [200, 201]
        assert cache.evict(1) == new.evict(1)
