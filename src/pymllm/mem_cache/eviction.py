"""Choose what an eviction takes, before anything is given back, and tell the caller when it is done.

Law X2 wants the whole plan first: only then are the pools asked, and what a pool refuses is still in the
tree. A plan looks at the tree as it will be, with what it has chosen already gone, and can be called off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from pymllm.mem_cache.radix_tree import RadixNode, RadixTree

__all__ = ["IN_A_POOL", "EvictionCallbacks", "LeafPlan"]

IN_A_POOL: Final = "a pool that the cache was calling"

NodeT = TypeVar("NodeT", bound=RadixNode)


class LeafPlan(Generic[NodeT]):
    """Leaves to remove, oldest first, together with the parents that must not stay behind.

    Parameters
    ----------
    tree : RadixTree
        Its `leaves` lose what is chosen and gain the parents that become leaves; the nodes stay untouched.
    must_go : callable
        Tells of an unlocked node that just lost its last child whether it has to go as well (S4, M5).
    on_choose : callable, optional
        Called with every node chosen.

    Notes
    -----
    Cost: O(1) per node chosen, whatever else is in the tree. Laws: R5, S4, X2.
    """

    __slots__ = ("_children_left", "_must_go", "_on_choose", "_tree", "removed", "tokens")

    def __init__(
        self,
        tree: RadixTree[NodeT],
        must_go: Callable[[NodeT], bool],
        on_choose: Callable[[NodeT], None] | None = None,
    ) -> None:
        self.removed: list[NodeT] = []
        self.tokens = 0
        self._tree = tree
        self._must_go = must_go
        self._on_choose = on_choose
        self._children_left: dict[int, tuple[NodeT, int]] = {}

    def take_leaves(self, tokens: int) -> None:
        """Choose the least recent unlocked leaf again and again until ``tokens`` are gone or none is left."""
        while self.tokens < tokens:
            leaf = self._tree.leaves.oldest()
            if leaf is None:
                return
            self.take(leaf)

    def is_leaf(self, node: NodeT) -> bool:
        """Tell whether ``node`` has no children left under this plan."""
        left = self._children_left.get(node.id)
        return not (node.children if left is None else left[1])

    def take(self, leaf: NodeT) -> None:
        """Choose one member of the tree's `leaves`, and then every ancestor that has to follow it."""
        tree = self._tree
        tree.leaves.discard(leaf)
        self._choose(leaf)
        parent = leaf.parent
        while parent is not None and parent is not tree.root and self._loses_last_child(parent):
            if parent.lock_ref:
                return
            if not self._must_go(parent):
                tree.leaves.add(parent)
                return
            self._choose(parent)
            parent = parent.parent

    def _choose(self, node: NodeT) -> None:
        self.removed.append(node)
        self.tokens += node._length
        if self._on_choose is not None:
            self._on_choose(node)

    def _loses_last_child(self, parent: NodeT) -> bool:
        known = self._children_left.get(parent.id)
        left = (len(parent.children) if known is None else known[1]) - 1
        self._children_left[parent.id] = parent, left
        return not left

    def call_off(self) -> None:
        """Put the tree's `leaves` back to what they were."""
        leaves = self._tree.leaves
        for parent, left in self._children_left.values():
            if not left and not parent.lock_ref and parent in leaves:
                leaves.discard(parent)
        for node in self.removed:
            if not node.children:
                leaves.add(node)


class EvictionCallbacks:
    """Tell a cache's user which nodes went, and keep others' code out of the cache meanwhile (X2, X6).

    Attributes
    ----------
    inside : str or None
        Whose code runs now, in words; a cache says here when it calls a pool amid its work.
    """

    def __init__(self) -> None:
        self.inside: str | None = None

    def run(self, callback: Callable[[int], Any] | None, removed: Sequence[RadixNode]) -> None:
        """Call ``callback`` with the id of every node, in order, and raise the first error at the end.

        Only an ``Exception`` waits for the rest: an interrupt leaves at once, as it does everywhere.
        """
        if callback is None:
            return
        errors = []
        self.inside = "on_node_evict"
        try:
            for node in removed:
                try:
                    callback(node.id)
                except Exception as error:
                    errors.append(error)
        finally:
            self.inside = None
        if errors:
            raise errors[0]

    def refuse(self, call: str) -> None:
        """Refuse a call on the cache from inside a callback, or from a pool in the middle of a call."""
        if self.inside is not None:
            raise RuntimeError(
                f"{call} was called from {self.inside}: only sizes, hashes and pretty_print may be, "
                "do it after the cache has returned"
            )
