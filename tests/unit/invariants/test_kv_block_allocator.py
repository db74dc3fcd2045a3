"""The white-box check of blocks notices every kind of damage that it looks for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.errors import InvariantViolation
from pymllm.invariants.blocks import check_kv_block_allocator

LRU, REF_ZERO = PrefixCachingEvictionPolicy.LRU, PrefixCachingEvictionPolicy.REF_ZERO


def make_pool(policy: PrefixCachingEvictionPolicy = LRU) -> KVBlockAllocator:
    """Blocks 0, 1: a cached chain; 2: registered and held; 3: held; 4 to 7: free; 8: the dummy."""
    allocator = KVBlockAllocator(
        SimpleNamespace(prefix_cache_lru_clock=3), 9, prefix_caching_eviction_policy=policy
    )
    allocator.allocate_memory_blocks(4)
    allocator.register_kv_block_hashes([0, 1, 2], [10, 11, 12], [0, 10, 0])
    if policy is LRU:
        allocator.release_memory_blocks([0, 1])
    return allocator


@pytest.mark.parametrize("policy", [LRU, REF_ZERO])
def test_a_sound_pool_passes(policy: PrefixCachingEvictionPolicy) -> None:
    """C1, C3: with blocks in every place."""
    allocator = make_pool(policy)
    check_kv_block_allocator(allocator)
    assert allocator.pool_avail == 4


def lose_a_free_block(pool: KVBlockAllocator) -> None:
    pool.pool_avail -= 1


def free_a_block_twice(pool: KVBlockAllocator) -> None:
    pool._free[pool.pool_avail] = pool._free[0]
    pool.pool_avail += 1


def free_a_cached_block(pool: KVBlockAllocator) -> None:
    pool._free[pool.pool_avail] = 1
    pool.pool_avail += 1


def hand_out_the_dummy(pool: KVBlockAllocator) -> None:
    pool._ref_counts[8] = 1


def count_below_zero(pool: KVBlockAllocator) -> None:
    pool._ref_counts[5] = -1


def forget_a_free_mark(pool: KVBlockAllocator) -> None:
    pool._is_free[7] = False


def keep_an_unreferenced_block(pool: KVBlockAllocator) -> None:
    pool.prefix_caching_eviction_policy = REF_ZERO


def register_without_caching(pool: KVBlockAllocator) -> None:
    pool.enable_prefix_caching = False


def lose_a_hash(pool: KVBlockAllocator) -> None:
    del pool.kv_hash_to_block_id[12]


def point_a_hash_elsewhere(pool: KVBlockAllocator) -> None:
    pool.kv_hash_to_block_id[12] = 3


def register_a_negative_hash(pool: KVBlockAllocator) -> None:
    pool._known.of_block[2] = -12
    pool.kv_hash_to_block_id.pop(12)
    pool.kv_hash_to_block_id[-12] = 2


def lose_a_registered_block(pool: KVBlockAllocator) -> None:
    del pool._forest._children[2]


def orphan_a_block(pool: KVBlockAllocator) -> None:
    pool._forest.parents[1] = 3


def disown_a_child(pool: KVBlockAllocator) -> None:
    pool._forest._children[0].clear()


def give_an_unregistered_block_a_parent(pool: KVBlockAllocator) -> None:
    pool._forest.parents[3] = 2


def make_a_block_its_own_ancestor(pool: KVBlockAllocator) -> None:
    pool._forest.parents[0] = 1
    pool._forest._children[1][0] = None


def miscount_the_active_children(pool: KVBlockAllocator) -> None:
    pool._forest._active_children[0] = 1


def miscount_the_evictable(pool: KVBlockAllocator) -> None:
    pool._forest._idle.remove(0)


def let_a_leaf_wait_nowhere(pool: KVBlockAllocator) -> None:
    pool._forest._queued_at.clear()


def let_an_inner_block_wait(pool: KVBlockAllocator) -> None:
    pool._forest._queued_at[0] = 3


def lose_a_heap_entry(pool: KVBlockAllocator) -> None:
    pool._forest._heap.clear()


def lower_a_stamp_in_secret(pool: KVBlockAllocator) -> None:
    pool._timestamps[1] = 1


DAMAGE: list[tuple[Callable[[KVBlockAllocator], None], str, str]] = [
    (lose_a_free_block, "C1", "not free, referenced or cached once each"),
    (free_a_block_twice, "C1", "not free, referenced or cached once each"),
    (free_a_cached_block, "C1", "not free, referenced or cached once each"),
    (hand_out_the_dummy, "C1", "not free, referenced or cached once each"),
    (count_below_zero, "C1", "block 5 has -1 references"),
    (forget_a_free_mark, "C1", "are marked free"),
    (keep_an_unreferenced_block, "C1", "are cached without a reference"),
    (register_without_caching, "C1", "a block is registered"),
    (lose_a_hash, "C3", "but the index has"),
    (point_a_hash_elsewhere, "C3", "but the index has"),
    (register_a_negative_hash, "C3", "are not positive"),
    (lose_a_registered_block, "C1", "the forest differs"),
    (orphan_a_block, "C1", r"\[1\] have parents that are not registered"),
    (disown_a_child, "C1", "disagree"),
    (give_an_unregistered_block_a_parent, "C1", "not registered has a parent"),
    (make_a_block_its_own_ancestor, "C1", "its own ancestor"),
    (miscount_the_active_children, "C1", "has 0 active children and counts 1"),
    (miscount_the_evictable, "C1", "are kept as such"),
    (let_a_leaf_wait_nowhere, "C1", "may be evicted, set"),
    (let_an_inner_block_wait, "C1", "may be evicted"),
    (lose_a_heap_entry, "C1", "not in the heap"),
    (lower_a_stamp_in_secret, "C1", "later than its stamp 1"),
]


@pytest.mark.parametrize(("damage", "law", "message"), DAMAGE, ids=[d.__name__ for d, _, _ in DAMAGE])
def test_damage_is_noticed(damage: Callable[[KVBlockAllocator], None], law: str, message: str) -> None:
    """Each check is seen to fail, and names its law."""
    allocator = make_pool()
    damage(allocator)
    with pytest.raises(InvariantViolation, match=message) as caught:
        check_kv_block_allocator(allocator)
    assert caught.value.law == law
