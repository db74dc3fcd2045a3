"""Who may be evicted next: the orders in which the nodes of a tree wait, each node in one at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from pymllm.mem_cache.tree.eviction_policy import LRU, EvictionPolicy
from pymllm.mem_cache.tree.victim_order import Aged, VictimOrder, make_order, older_of


class Victim(Aged, Protocol):
    """A node as far as its eviction is concerned."""

    lock_ref: int

    children: dict[Any, Self]


NodeT = TypeVar("NodeT", bound=Victim)


class Victims(Generic[NodeT]):
    """The unlocked leaves of a tree, in the order of a policy.

    Where inner nodes have something to lose, too, there are more orders: see `InnerVictims`. A node is in one
    at most, and so touched, chosen and linked in one place only. ``leaves``: nodes without children and
    without a hold.
    """

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self.policy: EvictionPolicy = LRU() if policy is None else policy
        self.clear()

    def clear(self) -> None:
        """Start empty; who waited is the caller's to cut loose."""
        self.leaves: VictimOrder[NodeT] = make_order(self.policy)

    def become(self, fresh: Victims[NodeT]) -> None:
        """Start with the empty orders of a new object of this class."""
        self.__dict__.update(fresh.__dict__)

    def order_of(self, node: NodeT) -> VictimOrder[NodeT] | None:
        """Return the order in which a node belongs as it is now, or ``None``; a root is locked for ever."""
        return None if node.children or node.lock_ref else self.leaves

    def leaf_order_of(self, node: NodeT) -> VictimOrder[NodeT]:
        """Return the order in which an unlocked node belongs once it is a leaf."""
        return self.leaves

    def first_leaf(self) -> NodeT | None:
        """Return the unlocked leaf that goes next, or ``None`` (R5)."""
        return self.leaves.first()

    def place(self, node: NodeT) -> None:
        """Put a node whose children, holds or content have changed where it belongs now."""
        self._put(node, self.order_of(node))

    def promote(self, node: NodeT) -> None:
        """Let an unlocked node wait as a leaf, since its last child is about to go."""
        self._put(node, self.leaf_order_of(node))

    def touch(self, path: Sequence[NodeT]) -> None:
        """Make the nodes of a path, at least one, the most recent; the caller stamps them then (R8)."""
        last = path[-1]  # the only one that can be a leaf
        if last._order is not None:
            last._order.move((last,))

    def _put(self, node: NodeT, order: VictimOrder[NodeT] | None) -> None:
        before = node._order
        if before is order:
            return
        if before is not None:
            before.discard(node)
        if order is not None:
            order.add(node)


class InnerVictims(Victims[NodeT]):
    """The unlocked leaves of a tree, and its inner nodes that may lose something and stay.

    ``inner``: the latter.
    """

    def clear(self) -> None:
        """Start empty; who waited is the caller's to cut loose."""
        inner: VictimOrder[NodeT] = VictimOrder()
        super().clear()
        self.inner = inner

    def oldest_of_all(self) -> NodeT | None:
        """Return the least recent node that may lose what an inner node can lose, or ``None`` (S3, M5)."""
        leaf, inner = self.leaves.oldest(), self.inner.oldest()
        return leaf if inner is None else older_of(leaf, inner)

    def touch(self, path: Sequence[NodeT]) -> None:
        """Make the nodes of a path, at least one, the most recent; the caller stamps them then (R8)."""
        inner, order = self.inner, path[-1]._order
        if order is not inner:
            if order is not None:
                order.move((path[-1],))
            path = path[:-1]
        if path and not path[0]._order is path[-1]._order is inner:
            path = [node for node in path if node._order is inner]
        if path:
            inner.move(path)
