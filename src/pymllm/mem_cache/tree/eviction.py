"""Choose what an eviction takes, before anything is given back, and tell the caller when it is done.

Law X2 wants the whole plan first: only then are the pools asked, and what a pool refuses is still in the
tree. A plan looks at the tree as it will be, with what it has chosen already gone, and can be called off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from pymllm.mem_cache.ownership import refuse_other_thread
from pymllm.mem_cache.tree.radix_tree import RadixNode, RadixTree

_IN_A_POOL: Final = "a pool that the cache was calling"

_CALLING: Final = frozenset({"pymllm.mem_cache.radix_cache", "pymllm.mem_cache.mamba_radix_cache"})
"""Modules with the calls amid which somebody else's code runs."""

NodeT = TypeVar("NodeT", bound=RadixNode)


class LeafPlan(Generic[NodeT]):
    """Leaves to remove, in the order of the policy, together with the parents that must not stay behind.

    Where inner nodes have something to lose, too, the plan is a subclass. ``tree``: its `victims` lose what
    is chosen and gain the parents that become leaves; the nodes stay untouched. ``removed``: what goes,
    children before parents. ``tokens``: their tokens. Cost: O(1) per node chosen, whatever else is in the
    tree; with ranks O(log n). Laws: R5, S4, X2.
    """

    __slots__ = ("_children_left", "_tree", "removed", "tokens")

    def __init__(self, tree: RadixTree[NodeT]) -> None:
        self.removed: list[NodeT] = []
        self.tokens = 0
        self._tree = tree
        self._children_left: dict[int, tuple[NodeT, int]] = {}

    def take_leaves(self, tokens: int) -> None:
        """Choose the unlocked leaf that goes next until ``tokens`` are gone or none is left."""
        while self.tokens < tokens:
            leaf = self._tree.victims.first_leaf()
            if leaf is None:
                return
            self.take(leaf)

    def take(self, leaf: NodeT) -> None:
        """Choose a leaf that waits, and then every ancestor that has to follow it."""
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
        """Tell of an unlocked node that just lost its last child whether it has to go as well (S4, M5)."""
        return False

    def _note(self, node: NodeT) -> None:
        """Take down what else goes with a node that was chosen."""

    def _loses_last_child(self, parent: NodeT) -> bool:
        known = self._children_left.get(parent.id)
        left = (len(parent.children) if known is None else known[1]) - 1
        self._children_left[parent.id] = parent, left
        return not left

    def call_off(self) -> None:
        """Put the tree's `victims` back to what they were."""
        for parent, _ in self._children_left.values():
            self._tree.victims.place(parent)
        for node in self.removed:
            self._tree.victims.place(node)


class EvictionCallbacks:
    """Tell a cache's user which nodes went, and keep others' code out of the cache meanwhile (X2, X6).

    ``inside``: whose code runs now, in words; whoever called it takes that back. ``unsettled``: a pool has
    been given slots that may still be in the tree. True outside of a call only where an interrupt has left
    it. It remembers which thread runs that code, so that a refusal can tell a callback from a second thread.
    That is best effort: two threads that meet where no pool and no callback runs are not noticed. Laws: X2,
    X6.
    """

    def __init__(self) -> None:
        self.inside: str | None = None
        self.unsettled = False
        self._thread = 0

    def enter_pool(self) -> None:
        """Say that a cache calls a pool amid its work; it says itself when that is over. Cost: 0.1 us."""
        self.unsettled = True
        self._thread = get_ident()
        self.inside = _IN_A_POOL

    def is_left_over(self) -> bool:
        """Tell whether an interrupt has left `inside` as it was in the middle of a call.

        Then no frame of any thread is in a call of this cache but the one that asks, a ``reset``.
        """
        if self.inside is None:
            return False
        asking = sys._getframe(1)
        for frame in sys._current_frames().values():
            at: FrameType | None = frame
            while at is not None:
                if at is not asking and at.f_globals.get("__name__") in _CALLING:
                    caller = at.f_locals.get("self")
                    if getattr(caller, "_callbacks", None) is self:
                        return False
                at = at.f_back
        return True

    def run(self, callback: Callable[[int], Any] | None, removed: Sequence[RadixNode]) -> None:
        """Call ``callback`` with the id of every node, in order, and raise the first error at the end.

        Only an ``Exception`` waits for the rest: an interrupt leaves at once, as it does everywhere.
        """
        if callback is None:
            return
        errors = []
        self._thread = get_ident()
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
        inside = self.inside
        if inside is not None:
            refuse_other_thread(call, "cache", self._thread, f"is inside {inside}")
            raise RuntimeError(
                f"{call} was called from {inside}: only sizes, hashes and pretty_print may be, "
                "do it after the cache has returned"
            )
