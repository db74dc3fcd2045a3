"""`check_radix_cache` accepts what the laws allow, and each of its checks can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants import check_radix_cache
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.memory_pool import SWATokenToKVPoolAllocator, TokenToKVPoolAllocator
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from tests.unit.invariants.tree_corruptions import OF_ANY_TREE


class Family:
    """A windowed cache of three nodes: a dead trunk of 8 tokens, a held leaf and a free leaf of 4 each."""

    def __init__(self) -> None:
        self.pool: Any = SWATokenToKVPoolAllocator(32, 32, "cpu", 2, True)
        self.cache = RadixCache(2, 4, self.pool)
        first, second = list(range(12)), [*range(8), 20, 21, 22, 23]
        self.held = self.insert(first)
        self.free = self.insert(second)
        trunk = self.held.parent
        assert trunk is not None
        self.trunk = trunk
        self.token = self.cache.inc_lock_ref(self.held)
        self.cache.compute_node_hash(self.held)

    def insert(self, tokens: list[int]) -> TreeNode:
        slots = self.pool.alloc(len(tokens))
        result = self.cache.insert(RadixKey(tokens), slots)
        self.pool.free(slots[: result.prefix_len])
        return result.last_node

    def tombstone_trunk(self) -> None:
        self.cache.evict(0, 1)
        assert self.trunk.swa_tombstone

    @property
    def tree(self) -> Any:
        return self.cache._tree

    @property
    def window(self) -> Any:
        return self.cache._window


def lock_the_root_twice(it: Family) -> None:
    it.cache.root_node.lock_ref = 2


def narrow_the_slots(it: Family) -> None:
    it.free.value = it.free.value.int()


def end_elsewhere(it: Family) -> None:
    it.free._depth += 2


def change_the_key(it: Family) -> None:
    it.free.key = RadixKey([20, 21, 22, 99])


def lock_without_a_hold(it: Family) -> None:
    it.free.lock_ref = 1


def lock_a_leaf_only(it: Family) -> None:
    it.trunk.lock_ref = 0


def count_a_negative_hold(it: Family) -> None:
    it.free._holds = it.free.lock_ref = -1


def use_after_the_clock(it: Family) -> None:
    it.free.last_access_time = it.tree.clock + 1


def use_between_two_accesses(it: Family) -> None:
    it.free.last_access_time -= 0.5


def use_before_the_first_access(it: Family) -> None:
    it.held.last_access_time = 0.0


def use_two_children_at_once(it: Family) -> None:
    it.held.last_access_time = it.free.last_access_time


def use_two_branches_at_once(it: Family) -> None:
    it.insert([40, 41, 42, 43])
    it.cache.root_node.children[next(reversed(it.cache.root_node.children))].last_access_time = 1.0


def move_the_window(it: Family) -> None:
    it.cache.sliding_window_size = 2


def lose_a_boundary_id(it: Family) -> None:
    it.held.swa_boundary_id = None


def copy_a_boundary_id(it: Family) -> None:
    it.trunk.swa_boundary_id = it.held.swa_boundary_id


def lose_a_window_lock(it: Family) -> None:
    it.held.swa_lock_ref = 0


def lock_a_window_outside(it: Family) -> None:
    it.trunk.swa_lock_ref = 1


def tombstone_a_leaf(it: Family) -> None:
    it.free.swa_tombstone = True


def tombstone_a_held_window(it: Family) -> None:
    it.cache.inc_lock_ref(it.trunk)
    it.trunk.swa_tombstone = True


def miscount_window(it: Family) -> None:
    it.window.evictable_tokens += 2


def miscount_held_window(it: Family) -> None:
    it.window.protected_tokens += 2


def confuse_the_oldest_leaf(it: Family) -> None:
    it.insert([90, 91])
    it.tree.victims.leaves.move((it.free,))


def forget_an_alive_node(it: Family) -> None:
    it.window.victims.inner.discard(it.trunk)


def say_that_a_held_leaf_waits(it: Family) -> None:
    it.held._order = it.window.victims.inner


def free_a_half_of_an_alive_page(it: Family) -> None:
    it.pool.free_swa(it.free.value[:2])


def leave_a_half_to_a_dead_page(it: Family) -> None:
    it.tombstone_trunk()
    spare = it.pool.alloc(2)
    it.pool.move_swa(spare, it.trunk.value[:2])
    it.pool.free(spare)


def share_a_half(it: Family) -> None:
    pages = [int(node.value[0]) // 2 for node in (it.free, it.held)]
    it.pool._half_of[pages[0]] = it.pool._half_of[pages[1]]


CORRUPTIONS: list[tuple[str, Callable[[Family], None]]] = [
    *OF_ANY_TREE,
    ("R9", lock_the_root_twice),
    ("R9", narrow_the_slots),
    ("R9", end_elsewhere),
    ("R9", change_the_key),
    ("R6", lock_without_a_hold),
    ("R6", lock_a_leaf_only),
    ("R6", count_a_negative_hold),
    ("R8", use_after_the_clock),
    ("R8", use_between_two_accesses),
    ("R8", use_before_the_first_access),
    ("R8", use_two_children_at_once),
    ("R8", use_two_branches_at_once),
    ("S5", move_the_window),
    ("S5", lose_a_boundary_id),
    ("S5", copy_a_boundary_id),
    ("S6", lose_a_window_lock),
    ("S6", lock_a_window_outside),
    ("S4", tombstone_a_leaf),
    ("S6", tombstone_a_held_window),
    ("S6", miscount_window),
    ("S6", miscount_held_window),
    ("R5", confuse_the_oldest_leaf),
    ("S3", forget_an_alive_node),
    ("S3", say_that_a_held_leaf_waits),
    ("S2", free_a_half_of_an_alive_page),
    ("S2", leave_a_half_to_a_dead_page),
    ("A7", share_a_half),
]


@pytest.mark.parametrize(("law", "corrupt"), CORRUPTIONS, ids=[act.__name__ for _, act in CORRUPTIONS])
def test_every_corruption_is_reported_under_its_law(law: str, corrupt: Callable[[Family], None]) -> None:
    """K1, X3, R1, R5-R9, S2-S6, A7, H2: the walk names the law that a corrupted field breaks."""
    family = Family()
    check_radix_cache(family.cache)
    corrupt(family)
    with pytest.raises(InvariantViolation) as caught:
        check_radix_cache(family.cache)
    assert caught.value.law == law


def test_a_cache_with_dead_and_held_nodes_passes() -> None:
    """S4, S6: a dead trunk under a hold, a held window and a free leaf break no law."""
    family = Family()
    family.tombstone_trunk()
    check_radix_cache(family.cache)
    family.cache.dec_lock_ref(family.held, family.token)
    check_radix_cache(family.cache)
    family.cache.evict(100)
    check_radix_cache(family.cache)


@pytest.mark.parametrize("field", ["swa_tombstone", "swa_lock_ref", "swa_boundary_id"])
def test_window_state_without_a_window_is_reported(field: str) -> None:
    """S6: a cache without a window has no dead node, no window lock and no boundary id."""
    cache = RadixCache()
    node = cache.insert(RadixKey([1, 2, 3])).last_node
    check_radix_cache(cache)
    setattr(node, field, 1)
    with pytest.raises(InvariantViolation, match="S6"):
        check_radix_cache(cache)


def test_namespaces_and_bigrams_pass_side_by_side() -> None:
    """K1, R9: nodes of different namespaces and token widths are filed apart below the root."""
    cache = RadixCache(page_size=2)
    for extra_key in (None, "1", 1):
        cache.insert(RadixKey([1, 2, 3, 4], extra_key))
        cache.match_prefix(RadixKey([1, 2], extra_key))
    cache.insert(RadixKey([(1, 2), (3, 4), (5, 6), (7, 8)]), torch.arange(4))
    cache.match_prefix(RadixKey([(1, 2), (3, 4), (9, 9), (9, 9)]))
    assert len(cache.root_node.children) == 4
    check_radix_cache(cache)


def test_pool_without_window_halves_is_asked_for_slots_only() -> None:
    """S2: a window over a pool of full slots only has no halves to compare."""
    pool = TokenToKVPoolAllocator(16, "cpu", 1, True)
    cache = RadixCache(1, 2, pool)
    cache.insert(RadixKey([1, 2, 3, 4]), pool.alloc(4))
    cache.match_prefix(RadixKey([1, 2]))
    cache.evict(0, 1)
    assert cache.swa_evictable_size() == 2
    check_radix_cache(cache)


def test_unchecked_pool_may_hold_pages_in_any_order() -> None:
    """R1: that a key page is one page of the pool is verified where the pool checks ownership."""
    pool = TokenToKVPoolAllocator(16, "cpu", 2, True, check_ownership=False)
    cache = RadixCache(2, token_to_kv_pool_allocator=pool)
    cache.insert(RadixKey([1, 2, 3, 4]), pool.alloc(4).flip(0))
    check_radix_cache(cache)


def test_pool_that_cannot_be_asked_is_not_asked() -> None:
    """R9: a pool of somebody else's, with ``free`` alone, leaves only the tree's own slots to compare."""

    class Pool:
        def free(self, indices: torch.Tensor) -> None:
            raise AssertionError("nothing is freed here")

    cache = RadixCache(1, token_to_kv_pool_allocator=Pool())
    node = cache.insert(RadixKey([1, 2, 3]), torch.tensor([4, 5, 6])).last_node
    check_radix_cache(cache)
    node.value[0] = 5
    with pytest.raises(InvariantViolation, match="twice"):
        check_radix_cache(cache)
