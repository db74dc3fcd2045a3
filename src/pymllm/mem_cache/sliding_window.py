"""What a sliding window adds to a radix tree: alive and dead nodes, window locks, and their sizes.

A node is alive while its tokens have KV of the sliding-window layers, and a tombstone once that half was
freed. Only a prefix that ends in a whole window of alive tokens can be continued from (S1).
"""

from __future__ import annotations

from itertools import count
from typing import Generic, Protocol, TypeVar

from pymllm.errors import LockError
from pymllm.mem_cache.eviction import LeafPlan
from pymllm.mem_cache.radix_tree import RadixNode, RadixTree, Walk
from pymllm.mem_cache.victim_order import VictimOrder

__all__ = ["SlidingWindow", "WindowPlan", "WindowedNode"]


class WindowedNode(RadixNode, Protocol):
    """What a window needs of a node."""

    swa_lock_ref: int
    swa_tombstone: bool
    swa_boundary_id: int | None


NodeT = TypeVar("NodeT", bound=WindowedNode)


class SlidingWindow(Generic[NodeT]):
    """The windows over one tree.

    Parameters
    ----------
    tree : RadixTree
        The nodes.
    size : int
        Tokens that a window layer looks back (W).
    """

    def __init__(self, tree: RadixTree[NodeT], size: int) -> None:
        self.tree = tree
        self.size = size
        self.span = -(-size // tree.page_size) * tree.page_size  # whole pages that cover the window
        self._boundary_ids = count(1)
        self.clear()

    def clear(self) -> None:
        """Start empty, together with the tree."""
        self.evictable_tokens = 0
        self.protected_tokens = 0
        self.unlocked: VictimOrder[NodeT] = VictimOrder()  # alive nodes that no window lock protects

    # -- usable prefixes -----------------------------------------------------------------------------

    def usable_part(self, walk: Walk[NodeT]) -> tuple[list[NodeT], bool]:
        """Return the whole nodes of a walk's longest usable prefix, and whether the partial one is in it.

        The usable prefixes that end inside a node are shorter than the one at its end, so only ends count
        (S1).
        """
        run, from_root, usable = 0, True, 0
        for position, node in enumerate(walk.path, 1):
            if node.swa_tombstone:
                run, from_root = 0, False
                continue
            run += node._length
            if from_root or run >= self.size:
                usable = position
        partial = walk.partial
        alive = partial is not None and walk.shared > 0 and not partial.swa_tombstone
        if alive and (from_root or run + walk.shared >= self.size):
            return walk.path, True
        return walk.path[:usable], False

    def is_usable(self, node: NodeT) -> bool:
        """Tell whether the prefix that ends with ``node`` can be continued from (S1)."""
        run = 0
        at: NodeT | None = node
        while at is not None and at is not self.tree.root and run < self.size:
            if at.swa_tombstone:
                return False
            run += at._length
            at = at.parent
        return True

    # -- nodes that change ---------------------------------------------------------------------------

    def split(self, node: NodeT, tokens: int) -> NodeT:
        """Split a node; the upper half takes the boundary id, because it now starts the window (R10, S5)."""
        upper = self.tree.split(node, tokens)
        upper.swa_lock_ref, upper.swa_tombstone = node.swa_lock_ref, node.swa_tombstone
        upper.swa_boundary_id, node.swa_boundary_id = node.swa_boundary_id, None
        if self._is_unlocked(upper):
            self.unlocked.add(upper)
        return upper

    def enter(self, node: NodeT) -> None:
        """Count a node that is alive from now on: a new one, or a tombstone with KV again."""
        node.swa_tombstone = False
        self.evictable_tokens += node._length
        self.unlocked.add(node)

    def stamp(self, path: list[NodeT], now: float) -> None:
        """Make the nodes of a path the most recent."""
        for node in path:
            if self._is_unlocked(node):
                self.unlocked.discard(node)
                node.last_access_time = now
                self.unlocked.add(node)
            else:
                node.last_access_time = now

    @staticmethod
    def _is_unlocked(node: NodeT) -> bool:
        return not node.swa_tombstone and not node.swa_lock_ref

    # -- holds ---------------------------------------------------------------------------------------

    def hold(self, node: NodeT) -> int | None:
        """Hold ``node`` and protect the window before its end (S5).

        Returns
        -------
        int or None
            Boundary id of the node at the window's edge; ``None`` where the window covers the whole path.

        Raises
        ------
        ValueError
            The prefix is not usable.
        """
        if not self.is_usable(node):
            raise ValueError(
                f"node {node.id} ends in a window with freed KV (sliding_window_size={self.size}): "
                "hold the last_node of a match or insert"
            )
        edge = self._edge_of(node)
        if edge is not None and edge.swa_boundary_id is None:
            edge.swa_boundary_id = next(self._boundary_ids)
        self.tree.hold(node)
        for covered in self._window_of(node):
            if not covered.swa_lock_ref:
                self.unlocked.discard(covered)
                self.evictable_tokens -= covered._length
                self.protected_tokens += covered._length
            covered.swa_lock_ref += 1
        return None if edge is None else edge.swa_boundary_id

    def check_token(self, node: NodeT, boundary_id: int | None) -> None:
        """Refuse a token that `hold` did not return for ``node``."""
        expected = None
        if node._depth > self.span:
            expected = self._window_of(node)[-1].swa_boundary_id
        if boundary_id != expected or isinstance(boundary_id, bool):
            raise LockError(
                f"swa_boundary_id is {boundary_id!r}, but the hold at node {node.id} was given {expected!r}: "
                "pass what inc_lock_ref returned"
            )

    def release(self, node: NodeT) -> None:
        """Take back what one hold at ``node`` protects."""
        for covered in self._window_of(node):
            covered.swa_lock_ref -= 1
            if not covered.swa_lock_ref:
                self.unlocked.add(covered)
                self.evictable_tokens += covered._length
                self.protected_tokens -= covered._length
        self.tree.release(node)

    def _edge_of(self, node: NodeT) -> NodeT | None:
        """Return the node that starts the window of ``node``, splitting it off where it must."""
        boundary = node._depth - self.span
        if boundary <= 0:
            return None
        edge = self._window_of(node)[-1]
        above = boundary - (edge._depth - edge._length)
        if above:
            self.split(edge, above)
        return edge

    def _window_of(self, node: NodeT) -> list[NodeT]:
        """List the nodes from ``node`` up to the one that has the window's first token."""
        boundary = node._depth - self.span
        covered = []
        at: NodeT | None = node
        while at is not None and at is not self.tree.root and at._depth > boundary:
            covered.append(at)
            at = at.parent
        return covered


class WindowPlan(Generic[NodeT]):
    """An eviction in a windowed tree: leaves that go, and inner nodes that lose their window KV (S3, S4).

    Parameters
    ----------
    window : SlidingWindow
        Its `unlocked` nodes lose what is chosen; the nodes stay untouched until `tombstone`.
    """

    def __init__(self, window: SlidingWindow[NodeT]) -> None:
        self._window = window
        self._dying: dict[int, NodeT] = {}
        self.leaves = LeafPlan(window.tree, must_go=self._is_dead, on_choose=self._forget)
        self.alive_tokens = 0  # alive tokens that go, in removed and in tombstoned nodes

    @property
    def tombstoned(self) -> list[NodeT]:
        """Nodes that stay without window KV, in the order chosen."""
        return list(self._dying.values())

    def take_windows(self, tokens: int) -> None:
        """Choose the least recent alive node without a window lock until ``tokens`` alive tokens are gone."""
        while self.alive_tokens < tokens:
            node = self._window.unlocked.oldest()
            if node is None:
                return
            if self.leaves.is_leaf(node):
                self.leaves.take(node)
                continue
            self._window.unlocked.discard(node)
            self._dying[node.id] = node
            self.alive_tokens += node._length

    def commit_tombstones(self) -> None:
        """Mark the tombstoned nodes, whose window KV the pool has taken."""
        for node in self._dying.values():
            node.swa_tombstone = True
            self._window.evictable_tokens -= node._length
        self._dying.clear()

    def commit_removal(self) -> None:
        """Count the alive nodes among the removed ones out."""
        self._window.evictable_tokens -= sum(
            node._length for node in self.leaves.removed if not node.swa_tombstone
        )

    def call_off(self) -> None:
        """Put everything back that was not committed."""
        self.leaves.call_off()
        for node in (*self.leaves.removed, *self._dying.values()):
            if not node.swa_tombstone:
                self._window.unlocked.add(node)

    def _is_dead(self, node: NodeT) -> bool:
        return node.swa_tombstone or node.id in self._dying

    def _forget(self, node: NodeT) -> None:
        if node.swa_tombstone or self._dying.pop(node.id, None) is not None:
            return
        self._window.unlocked.discard(node)
        self.alive_tokens += node._length
