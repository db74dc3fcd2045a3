"""Plans of evictions, which choose all victims before any memory is given back.

Law X2 wants the whole plan first: only then are the pools asked, and what a pool refuses is still in the
tree. A plan looks at the tree as it will be, with what it has chosen already gone, and can be called off.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pymllm.mem_cache.tree.node import BaseTreeNode
from pymllm.mem_cache.tree.radix_tree import RadixTree
from pymllm.mem_cache.tree.slot_exchange import return_slots

NodeT = TypeVar("NodeT", bound=BaseTreeNode)


class LeafPlan(Generic[NodeT]):
    """Leaves to remove in the order of the policy, with the parents that must go with them.

    Where inner nodes have something to lose, too, the plan is a subclass. ``tree``: its `victims` lose what
    is chosen and gain the parents that become leaves; the nodes stay untouched until `commit`. ``pool``: gets
    the slots back. ``removed``: what goes, children before parents. ``tokens``: their tokens.
    ``alive_tokens``, ``states``: what goes beside them, until `commit`. Cost: O(1) per node chosen, whatever
    else is in the tree; with ranks O(log n). Laws: R5, S4, X2.
    """

    alive_tokens = 0
    states = 0

    __slots__ = ("_children_left", "_pool", "_tree", "removed", "tokens")

    def __init__(self, tree: RadixTree[NodeT], pool: Any) -> None:
        self.removed: list[NodeT] = []
        self.tokens = 0
        self._tree = tree
        self._pool = pool
        self._children_left: dict[int, tuple[NodeT, int]] = {}

    def fill(self, tokens: int, parts: int) -> None:
        """Choose the nodes and parts to evict, whole nodes first (R5)."""
        self.take_leaves(tokens)
        if parts > 0:
            self.take_parts(parts)

    def take_leaves(self, tokens: int) -> None:
        """Choose the unlocked leaves to evict next, until ``tokens`` are chosen or none is left."""
        while self.tokens < tokens:
            leaf = self._tree.victims.first_leaf()
            if leaf is None:
                return
            self.take(leaf)

    def take_parts(self, wanted: int) -> None:
        """Choose up to ``wanted`` parts that nodes can lose while they stay; none in this class."""

    def take(self, leaf: NodeT) -> None:
        """Choose a waiting leaf, and every ancestor that must go with it."""
        tree = self._tree
        assert leaf._order is not None
        self._choose(leaf)
        leaf._order.discard(leaf)
        parent = leaf.parent
        while parent is not None and parent is not tree.root and self._loses_last_child(parent):
            if parent.lock_ref:
                return
            if not self._must_go(parent):
                tree.victims.promote(parent)
                return
            self._choose(parent)
            parent = parent.parent

    def _choose(self, node: NodeT) -> None:
        self.removed.append(node)
        self.tokens += node._length
        self._note(node)

    def _must_go(self, node: NodeT) -> bool:
        """Tell whether an unlocked node must go because it has just lost its last child (S4, M5)."""
        return False

    def _note(self, node: NodeT) -> None:
        """Count the window or state of a chosen node; this class has neither."""

    def _loses_last_child(self, parent: NodeT) -> bool:
        known = self._children_left.get(parent.id)
        left = (len(parent.children) if known is None else known[1]) - 1
        self._children_left[parent.id] = parent, left
        return not left

    def commit(self) -> None:
        """Give the slots back, and remove the nodes from the tree (X2)."""
        removed = self.removed
        if removed:
            if self._pool is not None:
                return_slots(self._pool, self._tree, removed)
            self._tree.remove(removed)

    def call_off(self) -> None:
        """Return nodes that were not evicted to their orders."""
        for parent, _ in self._children_left.values():
            self._tree.victims.place(parent)
        for node in self.removed:
            self._tree.victims.place(node)
