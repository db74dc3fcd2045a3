"""The checks of both prefix caches accept what the laws allow, and each of their looks can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants import check_mamba_radix_cache, check_radix_cache
from pymllm.invariants.radix_cache import (
    check_distinct,
    check_leaf_order,
    check_order,
    check_slots,
    check_structure,
)
from pymllm.mem_cache import (
    GDNPool,
    MambaRadixCache,
    MambaTreeNode,
    RadixCache,
    RadixKey,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
    TreeNode,
)
from pymllm.mem_cache.tree.radix_tree import PagedKey, RadixTree
from pymllm.mem_cache.tree.victims import VictimOrder
from tests.unit.invariants.damage import OF_ANY_TREE, law_of


class WindowedFamily:
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


class FamilyWithStates:
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


OF_A_WINDOW = [
    ("it.cache.root_node.lock_ref = 2", "R9"),
    ("it.free.value = it.free.value.int()", "R9"),
    ("it.free._depth += 2", "R9"),
    ("it.free.key = RadixKey([20, 21, 22, 99])", "R9"),
    ("it.free.lock_ref = 1", "R6"),
    ("it.trunk.lock_ref = 0", "R6"),
    ("it.free._holds = it.free.lock_ref = -1", "R6"),
    ("it.free.last_access_time = it.tree.clock + 1", "R8"),
    ("it.free.last_access_time -= 0.5", "R8"),
    ("it.held.last_access_time = 0.0", "R8"),
    ("it.held.last_access_time = it.free.last_access_time", "R8"),
    (
        "it.insert([40, 41, 42, 43]); [*it.cache.root_node.children.values()][-1].last_access_time = 1.0",
        "R8",
    ),
    ("it.cache.sliding_window_size = 2", "S5"),
    ("it.held.swa_boundary_id = None", "S5"),
    ("it.trunk.swa_boundary_id = it.held.swa_boundary_id", "S5"),
    ("it.held.swa_lock_ref = 0", "S6"),
    ("it.trunk.swa_lock_ref = 1", "S6"),
    ("it.free.swa_tombstone = True", "S4"),
    ("it.cache.inc_lock_ref(it.trunk); it.trunk.swa_tombstone = True", "S6"),
    ("it.window.evictable_tokens += 2", "S6"),
    ("it.window.protected_tokens += 2", "S6"),
    ("it.insert([90, 91]); it.tree.victims.leaves.move((it.free,))", "R5"),
    ("it.window.victims.inner.discard(it.trunk)", "S3"),
    ("it.held._order = it.window.victims.inner", "S3"),
    ("it.pool.free_swa(it.free.value[:2])", "S2"),
    (
        "it.tombstone_trunk(); spare = it.pool.alloc(2); "
        "it.pool.move_swa(spare, it.trunk.value[:2]); it.pool.free(spare)",
        "S2",
    ),
    (
        "one, two = (int(node.value[0]) // 2 for node in (it.free, it.held)); "
        "it.pool._half_of[one] = it.pool._half_of[two]",
        "A7",
    ),
]
OF_STATES = [
    ("it.cache.root_node.full_lock_ref = 2", "R9"),
    ("it.cache.root_node.mamba_value = torch.tensor([2])", "R9"),
    ("it.cache.root_node.mamba_lock_ref = 1", "R9"),
    ("it.free.full_lock_ref = 1", "R6"),
    ("it.trunk.full_lock_ref = 0", "R6"),
    ("it.held.mamba_lock_ref = 0", "M4"),
    ("it.free.mamba_lock_ref = 1", "M4"),
    ("it.trunk.mamba_lock_ref = 1", "M4"),
    ("it.held.mamba_lock_ref = 2", "M4"),
    ("it.held.mamba_value = None", "M4"),
    ("it.kept.evictable = it.old._length + it.free._length", "M6"),
    ("it.kept.protected += 1", "M6"),
    ("it.insert([1, 2, 3, 4]); it.victims.inner.discard(it.trunk)", "M5"),
    ("it.insert([1, 2, 3, 4]); it.cache.inc_lock_ref(it.trunk); it.victims.inner.add(it.trunk)", "M5"),
    ("it.victims.leaves.discard(it.free); it.victims.bare_leaves.add(it.free)", "R5"),
    ("it.held._order = it.victims.inner", "M5"),
    ("it.victims.leaves.move((it.old,))", "R5"),
    ("it.cache.full_lru.remove(it.free)", "M8"),
    ("it.cache.mamba_lru.remove(it.free)", "M8"),
    ("it.cache.mamba_lru.insert_mru(it.trunk)", "M8"),
    ("it.cache.full_lru.insert_mru(MambaTreeNode())", "M8"),
    ("it.cache.full_lru.touch_mru(it.old)", "M8"),
    ("it.cache.mamba_lru.touch_mru(it.held)", "M8"),
    ("it.cache.full_lru.touch_mru(it.trunk)", "M8"),
    ("it.free.prev = None", "M8"),
    ("it.cache.mamba_lru.tail.mamba_prev = it.held", "M8"),
    ("it.held.mamba_next = None", "M8"),
    ("it.old.next = it.free", "M8"),
    ("it.cache.full_lru.head.prev = it.free", "M8"),
    ("it.cache.mamba_lru.tail.mamba_next = it.free", "M8"),
    ("it.free._mamba_list = None", "M8"),
    ("it.cache.full_lru._size -= 1", "M8"),
    ("it.trunk.mamba_next = it.free", "M8"),
    ("it.free.mamba_value.copy_(it.held.mamba_value); it.free._track_slot = it.held._track_slot", "M7"),
    ("it.free._track_slot += 1", "M7"),
    ("it.states.free_track_slot(it.free._track_slot)", "M7"),
    ("it.free.mamba_value = it.free.mamba_value.int()", "M1"),
    ("it.free.mamba_value = torch.tensor([it.free._track_slot, 7])", "M1"),
    ("it.free.value = torch.cat([it.free.value, it.free.value])[:4]", "X5"),
    ("it.free._starts = it.free._starts.repeat(2)[:2]", "X5"),
    ("it.free._value = it.free.value", "X5"),
    ("it.free.mamba_value = it.free.mamba_value.repeat(4)[1:2]", "X5"),
]


@pytest.mark.parametrize(
    ("family", "check", "damage", "law"),
    [
        *((WindowedFamily, check_radix_cache, *case) for case in OF_ANY_TREE + OF_A_WINDOW),
        *((FamilyWithStates, check_mamba_radix_cache, *case) for case in OF_ANY_TREE + OF_STATES),
    ],
)
def test_every_corruption_is_reported_under_its_law(
    family: Callable[[], Any], check: Callable[[Any], None], damage: str, law: str
) -> None:
    """K1, X3, X5, R1, R5-R10, S2-S6, A7, M1, M4-M8, H2: the walk names the law that a field breaks."""
    it = family()
    check(it.cache)
    exec(damage, {"it": it, "torch": torch, "RadixKey": RadixKey, "MambaTreeNode": MambaTreeNode})
    assert law_of(check, it.cache) == law


def test_a_cache_with_dead_and_held_nodes_passes() -> None:
    """S4, S6: a dead trunk under a hold, a held window and a free leaf break no law."""
    family = WindowedFamily()
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


@pytest.mark.parametrize("states", [False, True])
def test_pages_are_compared_with_those_that_a_watching_pool_counts(states: bool) -> None:
    """R9: a page of the tree that the pool knows nothing of, and one that the tree has lost."""
    pool = TokenToKVPoolAllocator(16, "cpu", 2, check_ownership=True)
    kind, check = (MambaRadixCache, check_mamba_radix_cache) if states else (RadixCache, check_radix_cache)
    cache: Any = kind(2, token_to_kv_pool_allocator=pool)
    check(cache)
    node = cache.insert(RadixKey([1, 2, 3, 4]), pool.alloc(4)).last_node
    other = pool.alloc(2)
    assert other is not None
    check(cache)
    node.value = torch.cat([node.value[:2], other])
    told = r"R9: pages \[3\] are in the tree and not the cache's in the pool, pages \[2\] the other way round"
    with pytest.raises(InvariantViolation, match=told):
        check(cache)


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


def test_cache_passes_from_filled_to_empty() -> None:
    """M5, M6: held and free states, tombstones, a reset and an empty tree break no law."""
    family = FamilyWithStates()
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


def test_states_of_namespaces_and_bigrams_pass_side_by_side() -> None:
    """K1, R9: nodes of different namespaces and token widths are filed apart below the root."""
    cache = MambaRadixCache(page_size=2)
    for number, extra_key in enumerate((None, "1", 1)):
        cache.insert(RadixKey([1, 2, 3, 4], extra_key), mamba_value=torch.tensor([number + 1]))
    cache.insert(RadixKey([(1, 2), (3, 4)]), torch.arange(2), mamba_value=torch.tensor([7]))
    assert len(cache.root_node.children) == 4
    check_mamba_radix_cache(cache)


def test_pool_of_states_that_cannot_be_asked_is_not_asked() -> None:
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


Tree = RadixTree[Any]


@pytest.fixture(params=[TreeNode, MambaTreeNode], ids=["plain", "mamba"])
def tree(request: pytest.FixtureRequest) -> Tree:
    """A trunk of two tokens with two leaves of one token each, all of different accesses."""
    made: Tree = RadixTree(request.param, 1, torch.device("cpu"))
    made.stamp([])
    trunk = made.make_leaf(made.root, PagedKey.of(RadixKey([1, 2]), 1), torch.tensor([10, 11]))
    made.append(trunk)
    for token in (3, 4):
        made.stamp([])
        leaf = made.make_leaf(trunk, PagedKey.of(RadixKey([1, 2, token]), 1), torch.tensor([10 + token]))
        made.append(leaf)
        made.victims.place(leaf)
    trunk.last_access_time = made.clock
    return made


def trunk_of(tree: Tree) -> Any:
    return next(iter(tree.root.children.values()))


def leaves_of(tree: Tree) -> list[Any]:
    return list(trunk_of(tree).children.values())


def broken_law(check: Callable[[], object]) -> str:
    with pytest.raises(InvariantViolation) as caught:
        check()
    return caught.value.law


def test_structure_lists_parents_before_children(tree: Tree) -> None:
    """R9: every node but the root, so that a reversed walk meets children first."""
    assert check_structure(tree) == [trunk_of(tree), *leaves_of(tree)]


def test_empty_tree_passes() -> None:
    """R9: a root alone is a tree."""
    tree: Tree = RadixTree(TreeNode, 4, torch.device("cpu"))
    assert check_structure(tree) == []
    check_leaf_order(tree, [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("_length", 0),
        ("_length", 2),
        ("_depth", 4),
        ("_filed_under", b""),
        ("_raw", b"\0" * 4),
        ("key", RadixKey([])),
        ("page_size", 2),
    ],
)
def test_edge_that_contradicts_itself_is_reported(tree: Tree, field: str, value: Any) -> None:
    """R9: length, depth, place, key and pages of an edge each have to agree with the others."""
    check_structure(tree)
    setattr(tree if field == "page_size" else leaves_of(tree)[0], field, value)
    assert broken_law(lambda: check_structure(tree)) == "R9"


def test_order_is_compared_with_its_members_and_with_a_scan(tree: Tree) -> None:
    """R5, M5: too few, another one, or a wrong oldest."""
    first, second = leaves_of(tree)
    for leaf in (first, second):
        tree.victims.leaves.discard(leaf)
    order: VictimOrder[Any] = VictimOrder()
    order.add(second)
    check_order("M5", "states", order, [second])
    assert broken_law(lambda: check_order("M5", "states", order, [first, second])) == "M5"
    assert broken_law(lambda: check_order("M5", "states", order, [first])) == "M5"
    order.add(first)
    check_order("M5", "states", order, [second, first])
    order._late.at.clear()
    assert broken_law(lambda: check_order("M5", "states", order, [second, first])) == "M5"
    order.discard(second)
    order.add(second)
    order._size += 1
    assert broken_law(lambda: check_order("M5", "states", order, [second, first])) == "M5"


def test_slots_are_compared_with_the_pool() -> None:
    """R1, R9: padding, a slot twice, a broken page, and a slot that is free."""
    pool = TokenToKVPoolAllocator(8, "cpu", 2, True)
    taken = pool.alloc(4)
    assert taken is not None
    assert check_slots(pool, 2, taken).tolist() == taken.tolist()
    wrong = {"R9": ([1, 2], [2, 2], [6, 7]), "R1": ([3, 2], [2, 4])}
    for law, cases in wrong.items():
        for slots in cases:
            assert broken_law(lambda slots=slots: check_slots(pool, 2, torch.tensor(slots))) == law


def test_numbers_stand_once() -> None:
    """R9, A7: the numbers that repeat are named; none is no repetition."""
    check_distinct("A7", "half", np.array([], dtype=np.int64))
    check_distinct("A7", "half", np.array([3, 1, 2]))
    with pytest.raises(InvariantViolation, match=r"A7: halfs \[1, 3\] stand"):
        check_distinct("A7", "half", np.array([3, 1, 2, 1, 3]))
