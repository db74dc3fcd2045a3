"""What states add to a radix tree: which nodes have one, which of them may go, and in which order.

A state belongs to the last token of its node and to no other. It has a lock of its own, the holds at exactly
its node, while the KV below it is locked by every hold at or beneath (M4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymllm.mem_cache.eviction import LeafPlan
from pymllm.mem_cache.lru_list import LRUList
from pymllm.mem_cache.mamba_tree_node import MambaTreeNode
from pymllm.mem_cache.radix_tree import RadixTree
from pymllm.mem_cache.victim_order import VictimOrder

__all__ = ["CachedStates", "StatePlan"]


class CachedStates:
    """The states in a tree.

    Parameters
    ----------
    tree : RadixTree
        Its nodes carry the states.

    Attributes
    ----------
    unlocked : VictimOrder
        Nodes whose state may be evicted.
    evictable, protected : int
        States without and with a lock.
    lru : LRUList
        Every node with a state, by recency.
    """

    def __init__(self, tree: RadixTree[MambaTreeNode]) -> None:
        self.tree = tree
        self.lru = LRUList(mamba=True)
        self.clear()

    def clear(self) -> None:
        """Take every state from its node, whatever is held."""
        for node in self.lru:
            node.mamba_value = None
            node.mamba_lock_ref = 0
        self.lru.clear()
        self.unlocked: VictimOrder[MambaTreeNode] = VictimOrder()
        self.evictable = 0
        self.protected = 0

    def adopt(self, node: MambaTreeNode, track_slot: int) -> None:
        """Give a state to a node of the current access that has none; its holds protect it at once (M4)."""
        node._track_slot = track_slot
        node.mamba_lock_ref = node._holds
        self.lru.insert_mru(node)
        if node.mamba_lock_ref:
            self.protected += 1
        else:
            self.evictable += 1
            self.unlocked.add(node)

    def forget(self, node: MambaTreeNode) -> None:
        """Take an unlocked state from its node; the caller has taken the node out of `unlocked`."""
        node._track_slot = node._track_index = None
        self.evictable -= 1
        self.lru.remove(node)

    def stamp(self, path: Sequence[MambaTreeNode], now: float) -> None:
        """Set the recency of the nodes of a path, at least one, to that of a new access; list its states."""
        states = [node for node in path if node._track_slot is not None]
        if states:
            if states[0].last_access_time == states[-1].last_access_time:
                self.lru.touch_stretch_mru(states[-1], states[0])
            else:
                self.lru.touch_path_mru(states)
            if self.protected:
                states = [node for node in states if not node.mamba_lock_ref]
            self.unlocked.move(states, now)
        for node in path:
            node.last_access_time = now

    def hold(self, node: MambaTreeNode) -> None:
        """Protect the state of ``node``, if it has one, by one more hold."""
        if node._track_slot is None:
            return
        if not node.mamba_lock_ref:
            self.unlocked.discard(node)
            self.evictable -= 1
            self.protected += 1
        node.mamba_lock_ref += 1

    def release(self, node: MambaTreeNode) -> None:
        """Take back what one hold at ``node`` protects."""
        if node._track_slot is None:
            return
        node.mamba_lock_ref -= 1
        if not node.mamba_lock_ref:
            self.evictable += 1
            self.protected -= 1
            self.unlocked.add(node)


class StatePlan:
    """An eviction in a tree with states: leaves that go, and inner nodes that lose their state (M5).

    Parameters
    ----------
    states : CachedStates
        Its `unlocked` nodes lose what is chosen; the nodes keep their states until `give_back`.
    """

    __slots__ = ("_going", "_states", "leaves")

    def __init__(self, states: CachedStates) -> None:
        self._states = states
        self._going: dict[int, MambaTreeNode] = {}  # nodes whose state goes, in the order chosen
        self.leaves: LeafPlan[MambaTreeNode] = LeafPlan(states.tree, self._is_stateless, self._choose_state)

    @property
    def states(self) -> int:
        """States that go, with their nodes or without."""
        return len(self._going)

    def take_states(self, wanted: int) -> None:
        """Choose the least recent unlocked state until ``wanted`` are gone or none is left."""
        going = self._going
        while len(going) < wanted:
            node = self._states.unlocked.oldest()
            if node is None:
                return
            if self.leaves.is_leaf(node):
                self.leaves.take(node)
            else:
                self._choose_state(node)

    def give_back(self, pool: Any) -> None:
        """Return the states one by one; each node that gave its state is a valid stateless node (X2).

        Raises
        ------
        Exception
            What the pool raised; everything that was chosen and not returned is called off.
        """
        for node in list(self._going.values()):
            if pool is not None:
                try:
                    pool.free_track_slot(node._track_slot)
                except BaseException:
                    self.call_off()
                    raise
            del self._going[node.id]
            self._states.forget(node)

    def call_off(self) -> None:
        """Put everything back that was not given back."""
        self.leaves.call_off()
        for node in self._going.values():
            self._states.unlocked.add(node)

    def _is_stateless(self, node: MambaTreeNode) -> bool:
        return node._track_slot is None or node.id in self._going

    def _choose_state(self, node: MambaTreeNode) -> None:
        if node._track_slot is not None and node.id not in self._going:
            self._states.unlocked.discard(node)
            self._going[node.id] = node
