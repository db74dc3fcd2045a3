"""The recurrent states in a radix tree: their nodes, and the order in which they may be evicted.

A state belongs to the last token of its node and to no other. It has a lock of its own, the holds at exactly
its node, while the KV below it is locked by every hold at or beneath (M4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymllm.mem_cache.cache_events import Part
from pymllm.mem_cache.tree.eviction import LeafPlan
from pymllm.mem_cache.tree.lru_list import LRUList
from pymllm.mem_cache.tree.node import MambaTreeNode
from pymllm.mem_cache.tree.radix_tree import RadixTree, Split
from pymllm.mem_cache.tree.victims import InnerVictims, VictimOrder, make_order


class StateVictims(InnerVictims[MambaTreeNode]):
    """The unlocked leaves of a tree with states, and its inner nodes with a state that may be evicted.

    The latter are the nodes with children whose state no hold protects. Here `leaves` are those with a state.
    ``bare_leaves``: unlocked leaves without a state.
    """

    def clear(self) -> None:
        """Start empty; the caller must unlink the nodes in the orders."""
        bare_leaves: VictimOrder[MambaTreeNode] = make_order(self.policy)
        super().clear()
        self.bare_leaves = bare_leaves

    def order_of(self, node: MambaTreeNode) -> VictimOrder[MambaTreeNode] | None:
        """Return the order that a node belongs to in its present form, or ``None``."""
        if not node.children and not node.lock_ref:
            return self.leaf_order_of(node)
        return None if node._track_slot is None or node.mamba_lock_ref else self.inner

    def leaf_order_of(self, node: MambaTreeNode) -> VictimOrder[MambaTreeNode]:
        """Return the order to which an unlocked node belongs once it is a leaf."""
        return self.bare_leaves if node._track_slot is None else self.leaves

    def first_leaf(self) -> MambaTreeNode | None:
        """Return the unlocked leaf, with or without a state, to evict next, or ``None`` (R5)."""
        return self.leaves.first_of_both(self.bare_leaves)


class CachedStates:
    """The states in a tree, and lists of its nodes by recency (M8).

    ``tree``: its nodes carry the states. ``victims``: the tree's. ``evictable``, ``protected``: states
    without and with a lock. ``full_lru``: every node but the root. ``lru``: every node with a state.
    """

    def __init__(self, tree: RadixTree[MambaTreeNode], victims: StateVictims) -> None:
        self.tree = tree
        self.victims = victims
        self.full_lru = LRUList()
        self.lru = LRUList(mamba=True)
        self.clear(())

    def clear(self, nodes: Sequence[MambaTreeNode]) -> None:
        """Take every state from its node, held or not; ``nodes`` are all nodes of the old tree."""
        for node in nodes:
            node._track_slot = node._track_index = None
            node.mamba_lock_ref = 0
        self.full_lru.clear()
        self.lru.clear()
        self.evictable = 0
        self.protected = 0

    # -- nodes that change ---------------------------------------------------------------------------

    def append(self, leaf: MambaTreeNode) -> None:
        """Add a new leaf to the tree as its most recent node."""
        self.tree.append(leaf)
        # Here and in `adopt`: insert_mru asks first whether it may, 0.2 us.
        self.full_lru.insert_behind(leaf, self.full_lru.head)

    def split(self, split: Split[MambaTreeNode]) -> None:
        """Split a node; the state stays with the lower half, since it belongs to the end (M3)."""
        self.tree.split(split)
        self.full_lru.insert_behind(split.upper, split.node)

    def stamp(self, path: Sequence[MambaTreeNode]) -> None:
        """Make exactly the nodes of a path the most recent (R8, M8)."""
        if path:
            first, last = path[0], path[-1]
            # Equal ends: all were last used together, and stand together in both lists.
            is_stretch = first.last_access_time == last.last_access_time
            if is_stretch:
                self.full_lru.touch_stretch_mru(last, first)
            else:
                self.full_lru.touch_path_mru(path)
            if is_stretch and first._track_slot is not None and last._track_slot is not None:
                self.lru.touch_stretch_mru(last, first)
            else:
                self.lru.touch_path_mru(path)
        self.tree.stamp(path)

    # -- states --------------------------------------------------------------------------------------

    def adopt(self, node: MambaTreeNode, track_slot: int) -> None:
        """Give a state to a node without one, which becomes most recent; its holds protect the state (M4)."""
        node._track_slot = track_slot
        node.mamba_lock_ref = node._holds
        self.lru.insert_behind(node, self.lru.head)
        if node.mamba_lock_ref:
            self.protected += 1
        else:
            self.evictable += 1
        self.victims.place(node)
        if self.tree.log is not None:
            self.tree.note_stored(node, Part.STATE)

    def give_up(self, node: MambaTreeNode) -> None:
        """Remove a state, which its pool has taken back, from its node, which stays in the tree."""
        if node.mamba_lock_ref:
            node.mamba_lock_ref = 0
            self.protected -= 1
            self.evictable += 1
        self.forget(node)
        self.victims.place(node)

    def forget(self, node: MambaTreeNode) -> None:
        """Remove an unlocked state from its node, which the caller has removed from `victims`."""
        node._track_slot = node._track_index = None
        self.evictable -= 1
        self.lru.take_out(node)
        if self.tree.log is not None:
            self.tree.log.remove(Part.STATE, node.hash_values or ())

    def hold(self, node: MambaTreeNode) -> None:
        """Protect the state of ``node``, if any, for a new hold that the tree counts afterwards."""
        if node._track_slot is None:
            return
        if not node.mamba_lock_ref:
            self.evictable -= 1
            self.protected += 1
        node.mamba_lock_ref += 1

    def release(self, node: MambaTreeNode) -> None:
        """Remove the protection of one hold at ``node``, which the tree will release next."""
        if node._track_slot is None:
            return
        node.mamba_lock_ref -= 1
        if not node.mamba_lock_ref:
            self.evictable += 1
            self.protected -= 1


class StatePlan(LeafPlan[MambaTreeNode]):
    """An eviction in a tree with states: leaves to remove, and inner nodes that lose their state (M5).

    ``cached``: its `victims` lose what is chosen. ``pool``, ``mamba_pool``: get slots and states back.
    """

    __slots__ = ("_cached", "_going", "_mamba_pool", "states")

    def __init__(self, cached: CachedStates, pool: Any, mamba_pool: Any) -> None:
        LeafPlan.__init__(self, cached.tree, pool)  # `super` takes 0.1 us, twice of an eviction's 6
        self._cached = cached
        self._mamba_pool = mamba_pool
        self._going: dict[int, MambaTreeNode] = {}  # nodes whose state goes, in the order chosen
        self.states = 0

    def take_parts(self, wanted: int) -> None:
        """Choose the least recent unlocked states until ``wanted`` are chosen or none is left."""
        victims = self._cached.victims
        while self.states < wanted:
            node = victims.oldest_of_all()
            if node is None:
                return
            if node._order is victims.inner:
                self._note(node)
                victims.inner.discard(node)
            else:
                self.take(node)

    def call_off(self) -> None:
        """Return nodes that were not evicted to their orders."""
        super().call_off()
        for node in self._going.values():
            self._cached.victims.place(node)

    def commit(self) -> None:
        """Give states back one by one, with the tree valid after each, and then remove whole nodes."""
        cached, pool = self._cached, self._mamba_pool
        for node in list(self._going.values()):
            if pool is not None:
                pool.free_track_slot(node._track_slot)
            del self._going[node.id]
            cached.forget(node)
        LeafPlan.commit(self)
        take_out = cached.full_lru.take_out
        for node in self.removed:
            take_out(node)

    def _must_go(self, node: MambaTreeNode) -> bool:
        return node._track_slot is None or node.id in self._going

    def _note(self, node: MambaTreeNode) -> None:
        if node._track_slot is not None and node.id not in self._going:
            self._going[node.id] = node
            self.states += 1
