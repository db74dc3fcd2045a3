"""Inserting into a windowed cache: revive, add dead pages, or refuse all of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.adapters.failing_calls import InjectedFault, record_around
from pymllm.adapters.own_caches import view_tree
from pymllm.errors import OwnershipError
from pymllm.history.operations import Fault
from pymllm.history.outcomes import Effect
from pymllm.invariants import check_radix_cache
from pymllm.mem_cache.base_prefix_cache import InsertResult, RadixKey
from pymllm.mem_cache.memory_pool import SWATokenToKVPoolAllocator, TokenToKVPoolAllocator
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode

KEY = list(range(12))
SEVEN = KEY[:7]


class Engine:
    """A windowed cache over a recording pool, and a caller that does its duties."""

    def __init__(self, window: int = 2, page_size: int = 1, inner: Any = None) -> None:
        self.inner = inner or SWATokenToKVPoolAllocator(64, 64, "cpu", page_size, True)
        self.effects: list[Effect] = []
        self.pool: Any = record_around(self.inner, self.effects.append)
        self.cache = RadixCache(page_size, window, self.pool)

    def slots(self, count: int, evicted: int = 0) -> torch.Tensor:
        """Allocate slots whose SWA halves before ``evicted`` are given back."""
        slots = self.inner.alloc(count)
        if evicted and hasattr(self.inner, "free_swa"):
            self.inner.free_swa(slots[:evicted])
        return slots

    def insert(
        self, tokens: list[int], slots: torch.Tensor, protected: int = 0, evicted: int = 0
    ) -> InsertResult:
        result = self.cache.insert(
            RadixKey(tokens), slots, prev_prefix_len=protected, swa_evicted_seqlen=evicted
        )
        check_radix_cache(self.cache)
        return result

    def put(self, tokens: list[int], evicted: int = 0) -> TreeNode:
        """Insert and free what was not adopted; return the node."""
        slots = self.slots(len(tokens), evicted)
        result = self.insert(tokens, slots, evicted=evicted)
        kept = [at for start, end in result.adopted for at in range(start, end)]
        rest = [at for at in range(len(tokens)) if at not in kept]
        self.inner.free(slots[rest])
        self.effects.clear()
        return result.last_node

    def found(self, tokens: list[int]) -> list[int]:
        return self.cache.match_prefix(RadixKey(tokens)).indices.tolist()


@pytest.fixture
def engine() -> Engine:
    return Engine()


def half_held() -> tuple[Engine, TreeNode, TreeNode]:
    """Return an engine with one path: 3 dead held tokens, 1 alive held, 2 dead free ones, 1 alive free."""
    engine = Engine(window=1)
    trunk = engine.put(SEVEN[:3])
    engine.cache.inc_lock_ref(engine.put(SEVEN[:4]))
    middle = engine.put(SEVEN[:6])
    engine.put(SEVEN)
    engine.cache.evict(0, 5)
    engine.effects.clear()
    assert (trunk.swa_tombstone, middle.swa_tombstone) == (True, True)
    assert (trunk.lock_ref, middle.lock_ref) == (1, 0)
    return engine, trunk, middle


class TestNewPages:
    @pytest.mark.parametrize("start", [0, 4])
    def test_the_error_says_how_far_the_halves_are_gone(self, start: int) -> None:
        """S7, X1: the value that was given, and the whole pages that would do."""
        engine = Engine(window=4, page_size=4)
        slots = engine.slots(12)
        engine.inner.free_swa(slots[start:8])
        words = f"token {start} .* swa_evicted_seqlen is 0; give 8 or more, and free_swa all halves before it"
        with pytest.raises(OwnershipError, match=words):
            engine.insert(KEY, slots)

    def test_unchecked_pool_is_not_asked_for_halves(self) -> None:
        """S7: without ownership checks both are the caller's duty."""
        inner = SWATokenToKVPoolAllocator(64, 64, "cpu", 1, True, check_ownership=False)
        engine = Engine(inner=inner)
        slots = engine.slots(12)
        result = engine.cache.insert(RadixKey(KEY), slots, swa_evicted_seqlen=4)
        assert result.adopted == ((0, 12),)


class TestRevival:
    @pytest.mark.notices("B34", "B35")
    def test_held_tombstone_keeps_its_slots_and_takes_the_halves(self, engine: Engine) -> None:
        """S7, R6: what others read is never freed; the incoming full slots stay the caller's."""
        node = engine.put(KEY, evicted=8)
        engine.cache.inc_lock_ref(node)
        old = engine.found(KEY)
        slots = engine.slots(12)
        result = engine.insert(KEY, slots)
        assert (result.prefix_len, result.adopted) == (12, ())
        assert engine.effects == [Effect("move_swa", tuple(slots[:8].tolist()), tuple(old[:8]))]
        assert engine.found(KEY) == old
        assert engine.pool.translate_to_swa(slots[:8]).tolist() == [0] * 8
        assert engine.cache.swa_evictable_size() + engine.cache.swa_protected_size() == 12
        engine.inner.free(slots)
        check_radix_cache(engine.cache)

    @pytest.mark.parametrize(
        ("protected", "evicted", "revived"), [(5, 0, 5), (0, 3, 3), (2, 6, 6), (6, 2, 6)]
    )
    def test_pages_before_p_or_e_stay_dead(
        self, engine: Engine, protected: int, evicted: int, revived: int
    ) -> None:
        """S7: a tombstoned page is revived where it starts at or after both; the node is split there."""
        leaf = engine.put(KEY, evicted=8)
        slots = engine.slots(12, evicted=evicted)
        result = engine.insert(KEY, slots, protected, evicted)
        assert result.adopted == ((revived, 8),)
        assert len(leaf.parent.key) == 8 - revived
        assert not leaf.parent.swa_tombstone
        assert leaf.parent.parent.swa_tombstone

    def test_p_inside_a_page_protects_the_whole_page(self) -> None:
        """S7: a page is revived where it starts at or after p."""
        engine = Engine(window=4, page_size=4)
        engine.put(KEY, evicted=8)
        result = engine.insert(KEY, engine.slots(12), protected=1)
        assert result.adopted == ((4, 8),)

    def test_own_pages_between_foreign_ones_are_split_off(self, engine: Engine) -> None:
        """S7, R4: revived runs are nodes of their own, and adopted has one range for each."""
        leaf = engine.put(KEY, evicted=8)
        slots = torch.tensor(engine.found(KEY), dtype=torch.int32)
        slots[1:3] = engine.slots(2)
        slots[5:7] = engine.slots(2)
        result = engine.insert(KEY, slots)
        assert result.adopted == ((1, 3), (5, 7))
        dead = [len(view.tokens) for view in view_tree(engine.cache.root_node) if not view.is_alive]
        assert sum(dead) == 4
        lengths = []
        node = leaf
        while node is not engine.cache.root_node:
            lengths.append((len(node.key), node.swa_tombstone))
            node = node.parent
        assert lengths == [(4, False), (1, True), (2, False), (2, True), (2, False), (1, True)]

    def test_held_and_free_tombstones_of_one_path_are_revived_together(self) -> None:
        """S7, X2: move_swa first, then one free."""
        engine, trunk, middle = half_held()
        old = engine.found(SEVEN)
        slots = engine.slots(7)
        assert engine.insert(SEVEN, slots).adopted == ((4, 6),)
        moved = Effect("move_swa", tuple(slots[:3].tolist()), tuple(old[:3]))
        assert engine.effects == [moved, Effect("free", tuple(old[4:6]))]
        assert engine.found(SEVEN) == [*old[:4], *slots[4:6].tolist(), old[6]]
        assert not trunk.swa_tombstone
        assert not middle.swa_tombstone

    def test_pool_without_move_leaves_held_tombstones_dead(self) -> None:
        """S7: no move_swa, no revival under a hold, and nothing adopted for it."""
        engine = Engine(inner=TokenToKVPoolAllocator(64, "cpu", 1, True))
        node = engine.put(KEY, evicted=10)
        engine.cache.inc_lock_ref(node)
        old = engine.found(KEY)
        slots = engine.slots(12)
        result = engine.insert(KEY, slots)
        assert result.adopted == ()
        assert engine.effects == []
        assert engine.found(KEY) == old
        assert node.parent.swa_tombstone

    def test_without_a_pool_only_unlocked_tombstones_are_revived(self) -> None:
        """S7: a locked one keeps its slots, and there is nothing to move."""
        cache = RadixCache(1, 2)
        node = cache.insert(RadixKey(KEY), torch.arange(12), swa_evicted_seqlen=10).last_node
        token = cache.inc_lock_ref(node)
        assert cache.insert(RadixKey(KEY), torch.arange(100, 112)).adopted == ()
        assert node.parent.swa_tombstone
        cache.dec_lock_ref(node, token)
        assert cache.insert(RadixKey(KEY), torch.arange(200, 212)).adopted == ((0, 10),)
        assert not node.parent.swa_tombstone
        check_radix_cache(cache)

    def test_a_part_of_a_deep_node_gives_back_the_slots_of_that_part(self) -> None:
        """S4: two pages of four are foreign; the slots of the other two stay where they are."""
        engine = Engine(window=2)
        engine.put(KEY[:2])
        dead = engine.put(KEY[:6])
        engine.put(KEY[:9])
        engine.found(KEY[:2])
        assert engine.cache.evict(0, 4).swa_evicted == 4
        assert dead.value is not None
        own = dead.value.clone()
        slots = engine.slots(9)
        slots[4:6] = own[2:]
        assert engine.insert(KEY[:9], slots).adopted == ((2, 4),)
        assert engine.inner.is_handed_out(own).tolist() == [False, False, True, True]
        assert engine.found(KEY[:9])[2:6] == [*slots[2:4].tolist(), *own[2:].tolist()]

    def test_what_is_alive_above_a_revived_node_counts(self) -> None:
        """S3: a run from the root is usable, however long a window is, also where a revived node joins it."""
        engine = Engine(window=4)
        for end in (2, 5, 9):
            engine.put(KEY[:end])
        engine.found(KEY[:2])
        assert engine.cache.evict(0, 3).swa_evicted == 3
        assert engine.insert(KEY[:5], engine.slots(5)).adopted == ((2, 5),)
        assert len(engine.found(KEY[:5])) == 5


class TestAllOrNothing:
    def test_what_is_dead_above_a_revived_node_does_not_count(self) -> None:
        """S3: three pages are no window of four, however deep in the tree they are."""
        engine = Engine(window=4)
        for end in (2, 5, 9):
            engine.put(KEY[:end])
        assert engine.cache.evict(0, 5).swa_evicted == 5
        before = view_tree(engine.cache.root_node)
        result = engine.insert(KEY[:5], engine.slots(5, evicted=2), evicted=2)
        assert (result.prefix_len, result.adopted) == (5, ())
        assert view_tree(engine.cache.root_node) == before


class TestFaults:
    def test_what_was_moved_stays_revived(self) -> None:
        """X2: even where the pool refuses the displaced slots afterwards."""
        engine, trunk, middle = half_held()
        slots = engine.slots(7)
        engine.pool.fault = Fault("free")
        with pytest.raises(InjectedFault):
            engine.insert(SEVEN, slots)
        assert [effect.call for effect in engine.effects] == ["move_swa"]
        assert (trunk.swa_tombstone, middle.swa_tombstone) == (False, True)
        check_radix_cache(engine.cache)
        assert len(engine.found(KEY[:3])) == 3
