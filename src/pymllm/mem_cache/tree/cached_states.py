"""What states add to a radix tree: which nodes have one, which of them may go, and in which order.

A state belongs to the last token of its node and to no other. It has a lock of its own, the holds at exactly
its node, while the KV below it is locked by every hold at or beneath (M4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymllm.mem_cache.tree.eviction import LeafPlan
from pymllm.mem_cache.tree.lru_list import LRUList
from pymllm.mem_cache.tree.node import MambaTreeNode
from pymllm.mem_cache.tree.radix_tree import RadixTree
from pymllm.mem_cache.tree.victim_order import VictimOrder, make_order
from pymllm.mem_cache.tree.victims import InnerVictims


class StateVictims(InnerVictims[MambaTreeNode]):
    """The unlocked leaves of a tree with states, and its inner nodes with a state to lose.

    The latter are the nodes with children whose state no hold protects. Here `leaves` are those with a state.
    ``bare_leaves``: unlocked leaves without a state.
    """

    def clear(self) -> None:
        """Start empty; who waited is the caller's to cut loose."""
        bare_leaves: VictimOrder[MambaTreeNode] = make_order(self.policy)
        super().clear()
        self.bare_leaves = bare_leaves

    def order_of(self, node: MambaTreeNode) -> VictimOrder[MambaTreeNode] | None:
        """Return the order in which a node belongs as it is now, or ``None``."""
        if not node.children and not node.lock_ref:
            return self.leaf_order_of(node)
        return None if node._track_slot is None or node.mamba_lock_ref else self.inner

    def leaf_order_of(self, node: MambaTreeNode) -> VictimOrder[MambaTreeNode]:
        """Return the order in which an unlocked node belongs once it is a leaf."""
        return self.bare_leaves if node._track_slot is None else self.leaves

    def first_leaf(self) -> MambaTreeNode | None:
        """Return the unlocked leaf, with a state or without, that goes next, or ``None`` (R5)."""
        return self.leaves.first_of_both(self.bare_leaves)


class CachedStates:
    """The states in a tree.

    ``tree``: its nodes carry the states. ``victims``: the tree's. ``evictable``, ``protected``: states
    without and with a lock. ``lru``: every node with a state, by recency.
    """

    def __init__(self, tree: RadixTree[MambaTreeNode], victims: StateVictims) -> None:
        self.tree = tree
        self.victims = victims
        self.lru = LRUList(mamba=True)
        self.clear(())

    def clear(self, nodes: Sequence[MambaTreeNode]) -> None:
        """Take every state from its node, whatever is held; ``nodes`` are all that the tree had."""
        for node in nodes:
            node._track_slot = node._track_index = None
            node.mamba_lock_ref = 0
        self.lru.clear()
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
        self.victims.place(node)

    def give_up(self, node: MambaTreeNode) -> None:
        """Take a state from its node, which stays, whatever is held: its pool has taken it."""
        if node.mamba_lock_ref:
            node.mamba_lock_ref = 0
            self.protected -= 1
            self.evictable += 1
        self.forget(node)
        self.victims.place(node)

    def forget(self, node: MambaTreeNode) -> None:
        """Take an unlocked state from its node; the caller has taken the node out of `victims`."""
        node._track_slot = node._track_index = None
        self.evictable -= 1
        self.lru.take_out(node)

    def touch(self, path: Sequence[MambaTreeNode]) -> None:
        """List the states of a path, at least one node, as the most recent; the caller stamps them then."""
        states = path
        if path[0]._track_slot is None or path[-1]._track_slot is None:
            states = [node for node in path if node._track_slot is not None]
        if states:
            if states[0].last_access_time == states[-1].last_access_time:
                self.lru.touch_stretch_mru(states[-1], states[0])
            else:
                self.lru.touch_path_mru(states)

    def hold(self, node: MambaTreeNode) -> None:
        """Protect the state of ``node``, if it has one, by one more hold, which the tree is to count next."""
        if node._track_slot is None:
            return
        if not node.mamba_lock_ref:
            self.evictable -= 1
            self.protected += 1
        node.mamba_lock_ref += 1

    def release(self, node: MambaTreeNode) -> None:
        """Take back what one hold at ``node`` protects; the tree is to forget the hold next."""
        if node._track_slot is None:
            return
        node.mamba_lock_ref -= 1
        if not node.mamba_lock_ref:
            self.evictable += 1
            self.protected -= 1


class StatePlan(LeafPlan[MambaTreeNode]):
    """An eviction in a tree with states: leaves that go, and inner nodes that lose their state (M5).

    ``states``: its `victims` lose what is chosen; the nodes keep their states until `give_back`.
    """

    __slots__ = ("_going", "_states")

    def __init__(self, states: CachedStates) -> None:
        super().__init__(states.tree)
        self._states = states
        self._going: dict[int, MambaTreeNode] = {}  # nodes whose state goes, in the order chosen

    @property
    def states(self) -> int:
        """States that go, with their nodes or without."""
        return len(self._going)

    def take_states(self, wanted: int) -> None:
        """Choose the least recent unlocked state until ``wanted`` are gone or none is left."""
        going, victims = self._going, self._states.victims
        while len(going) < wanted:
            node = victims.oldest_of_all()
            if node is None:
                return
            if node._order is victims.inner:
                going[node.id] = node
                victims.inner.discard(node)
            else:
                self.take(node)

    def give_back(self, pool: Any) -> None:
        """Return the states one by one; each node that gave its state is a valid stateless node (X2)."""
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
        super().call_off()
        for node in self._going.values():
            self._states.victims.place(node)

    def _must_go(self, node: MambaTreeNode) -> bool:
        return node._track_slot is None or node.id in self._going

    def _note(self, node: MambaTreeNode) -> None:
        if node._track_slot is not None:
            self._going[node.id] = node
