"""`check_mamba_radix_cache` accepts what the laws allow, and each of its checks can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants import check_mamba_radix_cache
from pymllm.mem_cache import GDNPool, MambaRadixCache, MambaTreeNode, RadixKey, TokenToKVPoolAllocator
from tests.unit.invariants.tree_corruptions import OF_ANY_TREE


class Family:
    """A trunk of 4 tokens without a state, a held and a free leaf of 4 with one, and an old leaf aside."""

    def __init__(self) -> None:
        self.pool: Any = TokenToKVPoolAllocator(32, "cpu", 2, True)
        self.states: Any = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=6)
        self.cache = MambaRadixCache(2, self.pool, self.states)
        self.old = self.insert([90, 91])
        self.held = self.insert([1, 2, 3, 4, 5, 6, 7, 8])
        self.free = self.insert([1, 2, 3, 4, 25, 26, 27, 28])
        trunk = self.held.parent
        assert trunk is not None
        self.trunk = trunk
        self.cache.inc_lock_ref(self.held)
        self.cache.compute_node_hash(self.held)

    def insert(self, tokens: list[int]) -> MambaTreeNode:
        slots = self.pool.alloc(len(tokens))
        track_slot = torch.tensor([self.states.alloc_track_slot()])
        result = self.cache.insert(RadixKey(tokens), slots, mamba_value=track_slot)
        self.pool.free(slots[: result.prefix_len])
        return result.last_node

    @property
    def tree(self) -> Any:
        return self.cache._tree

    @property
    def kept(self) -> Any:
        return self.cache._states

    @property
    def victims(self) -> Any:
        return self.kept.victims


# -- the tree ------------------------------------------------------------------------------------------


def lock_the_root_twice(it: Family) -> None:
    it.cache.root_node.full_lock_ref = 2


def give_the_root_a_state(it: Family) -> None:
    it.cache.root_node.mamba_value = torch.tensor([2])


def lock_the_state_of_the_root(it: Family) -> None:
    it.cache.root_node.mamba_lock_ref = 1


# -- holds, sizes and victims --------------------------------------------------------------------------


def lock_without_a_hold(it: Family) -> None:
    it.free.full_lock_ref = 1


def lock_a_leaf_only(it: Family) -> None:
    it.trunk.full_lock_ref = 0


def lose_a_state_lock(it: Family) -> None:
    it.held.mamba_lock_ref = 0


def lock_a_state_without_a_hold(it: Family) -> None:
    it.free.mamba_lock_ref = 1


def copy_a_state_lock_to_the_upper_half(it: Family) -> None:
    it.trunk.mamba_lock_ref = 1


def lock_a_state_twice(it: Family) -> None:
    it.held.mamba_lock_ref = 2


def forget_the_state_of_a_hold(it: Family) -> None:
    it.held.mamba_value = None


def count_states_in_tokens(it: Family) -> None:
    it.kept.evictable = it.old._length + it.free._length


def miscount_protected_states(it: Family) -> None:
    it.kept.protected += 1


def forget_a_state(it: Family) -> None:
    it.insert([1, 2, 3, 4])
    it.victims.inner.discard(it.trunk)


def offer_a_held_state(it: Family) -> None:
    it.insert([1, 2, 3, 4])
    it.cache.inc_lock_ref(it.trunk)
    it.victims.inner.add(it.trunk)


def offer_a_leaf_without_its_state(it: Family) -> None:
    it.victims.leaves.discard(it.free)
    it.victims.bare_leaves.add(it.free)


def say_that_a_held_leaf_waits(it: Family) -> None:
    it.held._order = it.victims.inner


def confuse_the_oldest_leaf(it: Family) -> None:
    it.victims.leaves.move((it.old,))


# -- the lists -----------------------------------------------------------------------------------------


def forget_a_node_in_the_list(it: Family) -> None:
    it.cache.full_lru.remove(it.free)


def forget_a_state_in_the_list(it: Family) -> None:
    it.cache.mamba_lru.remove(it.free)


def list_a_node_without_a_state(it: Family) -> None:
    it.cache.mamba_lru.insert_mru(it.trunk)


def list_a_stranger(it: Family) -> None:
    it.cache.full_lru.insert_mru(MambaTreeNode())


def touch_an_old_node(it: Family) -> None:
    it.cache.full_lru.touch_mru(it.old)


def touch_an_old_state(it: Family) -> None:
    it.cache.mamba_lru.touch_mru(it.held)


def list_a_parent_before_its_child(it: Family) -> None:
    it.cache.full_lru.touch_mru(it.trunk)


def cut_the_way_back(it: Family) -> None:
    it.free.prev = None


def skip_a_node_on_the_way_back(it: Family) -> None:
    it.cache.mamba_lru.tail.mamba_prev = it.held


def cut_the_way_forward(it: Family) -> None:
    it.held.mamba_next = None


def walk_in_a_circle(it: Family) -> None:
    it.old.next = it.free


def go_on_beyond_the_head(it: Family) -> None:
    it.cache.full_lru.head.prev = it.free


def go_on_beyond_the_tail(it: Family) -> None:
    it.cache.mamba_lru.tail.mamba_next = it.free


def lose_a_member_and_keep_its_place(it: Family) -> None:
    it.free._mamba_list = None


def miscount_the_members(it: Family) -> None:
    it.cache.full_lru._size -= 1


def leave_a_link_at_a_node_without_a_state(it: Family) -> None:
    it.trunk.mamba_next = it.free


# -- slots and track slots -----------------------------------------------------------------------------


def hold_a_track_slot_twice(it: Family) -> None:
    it.free.mamba_value.copy_(it.held.mamba_value)
    it.free._track_slot = it.held._track_slot


def mistake_a_track_slot(it: Family) -> None:
    it.free._track_slot += 1


def free_a_cached_track_slot(it: Family) -> None:
    it.states.free_track_slot(it.free._track_slot)


def narrow_a_track_slot(it: Family) -> None:
    it.free.mamba_value = it.free.mamba_value.int()


def hold_two_track_slots(it: Family) -> None:
    it.free.mamba_value = torch.tensor([it.free._track_slot, 7])


def keep_a_view_of_more_slots(it: Family) -> None:
    it.free.value = torch.cat([it.free.value, it.free.value])[:4]


def keep_a_view_of_more_pages(it: Family) -> None:
    it.free._starts = it.free._starts.repeat(2)[:2]


def keep_pages_and_slots(it: Family) -> None:
    it.free._value = it.free.value


def keep_a_view_of_a_table_of_states(it: Family) -> None:
    it.free.mamba_value = it.free.mamba_value.repeat(4)[1:2]


CORRUPTIONS: list[tuple[str, Callable[[Family], None]]] = [
    *OF_ANY_TREE,
    ("R9", lock_the_root_twice),
    ("R9", give_the_root_a_state),
    ("R9", lock_the_state_of_the_root),
    ("R6", lock_without_a_hold),
    ("R6", lock_a_leaf_only),
    ("M4", lose_a_state_lock),
    ("M4", lock_a_state_without_a_hold),
    ("M4", copy_a_state_lock_to_the_upper_half),
    ("M4", lock_a_state_twice),
    ("M4", forget_the_state_of_a_hold),
    ("M6", count_states_in_tokens),
    ("M6", miscount_protected_states),
    ("M5", forget_a_state),
    ("M5", offer_a_held_state),
    ("R5", offer_a_leaf_without_its_state),
    ("M5", say_that_a_held_leaf_waits),
    ("R5", confuse_the_oldest_leaf),
    ("M8", forget_a_node_in_the_list),
    ("M8", forget_a_state_in_the_list),
    ("M8", list_a_node_without_a_state),
    ("M8", list_a_stranger),
    ("M8", touch_an_old_node),
    ("M8", touch_an_old_state),
    ("M8", list_a_parent_before_its_child),
    ("M8", cut_the_way_back),
    ("M8", skip_a_node_on_the_way_back),
    ("M8", cut_the_way_forward),
    ("M8", walk_in_a_circle),
    ("M8", go_on_beyond_the_head),
    ("M8", go_on_beyond_the_tail),
    ("M8", lose_a_member_and_keep_its_place),
    ("M8", miscount_the_members),
    ("M8", leave_a_link_at_a_node_without_a_state),
    ("M7", hold_a_track_slot_twice),
    ("M7", mistake_a_track_slot),
    ("M7", free_a_cached_track_slot),
    ("M1", narrow_a_track_slot),
    ("M1", hold_two_track_slots),
    ("X5", keep_a_view_of_more_slots),
    ("X5", keep_a_view_of_more_pages),
    ("X5", keep_pages_and_slots),
    ("X5", keep_a_view_of_a_table_of_states),
]


@pytest.mark.parametrize(("law", "corrupt"), CORRUPTIONS, ids=[act.__name__ for _, act in CORRUPTIONS])
def test_every_corruption_is_reported_under_its_law(law: str, corrupt: Callable[[Family], None]) -> None:
    """K1, X3, X5, R1, R5-R9, M1, M4-M8, H2: the walk names the law that a corrupted field breaks."""
    family = Family()
    check_mamba_radix_cache(family.cache)
    corrupt(family)
    with pytest.raises(InvariantViolation) as caught:
        check_mamba_radix_cache(family.cache)
    assert caught.value.law == law


def test_cache_passes_from_filled_to_empty() -> None:
    """M5, M6: held and free states, tombstones, a reset and an empty tree break no law."""
    family = Family()
    assert family.cache.evict(0, 2).mamba_evicted == 2
    check_mamba_radix_cache(family.cache)
    family.cache.dec_lock_ref(family.held)
    check_mamba_radix_cache(family.cache)
    family.cache.evict(100)
    assert family.cache.total_size() == 0
    check_mamba_radix_cache(family.cache)
    family.insert([1, 2])
    family.cache.reset()
    check_mamba_radix_cache(family.cache)


def test_namespaces_and_bigrams_pass_side_by_side() -> None:
    """K1, R9: nodes of different namespaces and token widths are filed apart below the root."""
    cache = MambaRadixCache(page_size=2)
    for number, extra_key in enumerate((None, "1", 1)):
        cache.insert(RadixKey([1, 2, 3, 4], extra_key), mamba_value=torch.tensor([number + 1]))
    cache.insert(RadixKey([(1, 2), (3, 4)]), torch.arange(2), mamba_value=torch.tensor([7]))
    assert len(cache.root_node.children) == 4
    check_mamba_radix_cache(cache)


def test_pool_that_cannot_be_asked_is_not_asked() -> None:
    """R9, M7: pools of somebody else's leave only the tree's own slots and track slots to compare."""

    class Pool:
        def free(self, indices: torch.Tensor) -> None:
            raise AssertionError("nothing is freed here")

        free_track_slot = free

    cache = MambaRadixCache(1, Pool(), Pool())
    one = cache.insert(RadixKey([1]), torch.tensor([4]), mamba_value=torch.tensor([8])).last_node
    two = cache.insert(RadixKey([2]), torch.tensor([5]), mamba_value=torch.tensor([9])).last_node
    check_mamba_radix_cache(cache)
    one.mamba_value[0] = two._track_slot
    one._track_slot = two._track_slot
    with pytest.raises(InvariantViolation, match="both have track slot 9"):
        check_mamba_radix_cache(cache)
