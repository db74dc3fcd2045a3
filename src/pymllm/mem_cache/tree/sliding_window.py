"""The sliding window of a radix tree: alive and dead nodes, window locks, and their sizes.

A node is alive while its tokens have KV of the sliding-window layers, and a tombstone once that half was
freed. Only a prefix that ends in a whole window of alive tokens can be continued from (S1).
"""

from __future__ import annotations

from itertools import count
from typing import Any

from pymllm.errors import LockError
from pymllm.mem_cache.cache_events import Part
from pymllm.mem_cache.tree.eviction import LeafPlan
from pymllm.mem_cache.tree.node import TreeNode
from pymllm.mem_cache.tree.radix_tree import RadixTree, Split, Walk
from pymllm.mem_cache.tree.slot_exchange import return_halves
from pymllm.mem_cache.tree.victims import InnerVictims, VictimOrder


class WindowVictims(InnerVictims[TreeNode]):
    """The unlocked leaves of a windowed tree, all alive (S4), and its inner nodes with window KV to evict.

    The latter are the alive nodes with children that no window lock protects.
    """

    def order_of(self, node: TreeNode) -> VictimOrder[TreeNode] | None:
        """Return the order that a node belongs to in its present form, or ``None``."""
        if not node.children and not node.lock_ref:
            return self.leaves
        return None if node.swa_tombstone or node.swa_lock_ref else self.inner


class SlidingWindow:
    """The sliding windows of holds in one tree.

    ``tree``: the nodes. ``victims``: the tree's. ``size``: tokens that a window layer looks back (W).
    """

    def __init__(self, tree: RadixTree[TreeNode], victims: WindowVictims, size: int) -> None:
        self.tree = tree
        self.victims = victims
        self.size = size
        self.span = -(-size // tree.page_size) * tree.page_size  # whole pages that cover the window
        self._boundary_ids = count(1)
        self.clear()

    def clear(self) -> None:
        """Start empty, together with the tree."""
        self.evictable_tokens = 0
        self.protected_tokens = 0

    # -- usable prefixes -----------------------------------------------------------------------------

    def usable_part(self, walk: Walk[TreeNode]) -> tuple[list[TreeNode], bool]:
        """Return the nodes of a walk's longest usable prefix, and whether it includes the partial node.

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

    def is_usable(self, node: TreeNode) -> bool:
        """Tell whether a request can resume from the prefix that ends at ``node`` (S1)."""
        run = 0
        at: TreeNode | None = node
        while at is not None and at is not self.tree.root and run < self.size:
            if at.swa_tombstone:
                return False
            run += at._length
            at = at.parent
        return True

    # -- nodes that change ---------------------------------------------------------------------------

    def split(self, split: Split[TreeNode]) -> None:
        """Split a node; the upper half takes the boundary id, since it now starts the window (R10, S5)."""
        node, upper = split.node, split.upper
        self.tree.split(split)
        upper.swa_lock_ref, upper.swa_tombstone = node.swa_lock_ref, node.swa_tombstone
        upper.swa_boundary_id, node.swa_boundary_id = node.swa_boundary_id, None
        self.victims.place(upper)

    def enter(self, node: TreeNode) -> None:
        """Count a node that is alive from now on: a new one, or a revived tombstone."""
        node.swa_tombstone = False
        self.evictable_tokens += node._length
        self.victims.place(node)
        if self.tree.log is not None:
            self.tree.note_stored(node, Part.WINDOW)

    # -- holds ---------------------------------------------------------------------------------------

    def hold(self, node: TreeNode) -> int | None:
        """Hold ``node`` and protect the window before its end (S5).

        Returns the boundary id of the node at the window's edge; ``None`` where it covers the whole path.
        """
        if not self.is_usable(node):
            raise ValueError(
                f"node {node.id} ends in a window with freed KV (sliding_window_size={self.size}): "
                "hold the last_node of a match or insert"
            )
        edge = self._edge_of(node)
        if edge is not None and edge.swa_boundary_id is None:
            edge.swa_boundary_id = next(self._boundary_ids)
        for covered in self._window_of(node):
            covered.swa_lock_ref += 1
            if covered.swa_lock_ref == 1:
                self.evictable_tokens -= covered._length
                self.protected_tokens += covered._length
                self.victims.place(covered)
        self.tree.hold(node)
        return None if edge is None else edge.swa_boundary_id

    def check_token(self, node: TreeNode, boundary_id: int | None) -> None:
        """Raise an error for a token that `hold` did not return for ``node``."""
        expected = None
        if node._depth > self.span:
            expected = self._window_of(node)[-1].swa_boundary_id
        if boundary_id != expected or isinstance(boundary_id, bool):
            raise LockError(
                f"swa_boundary_id is {boundary_id!r}, but the hold at node {node.id} was given {expected!r}: "
                "pass the value that inc_lock_ref returned"
            )

    def release(self, node: TreeNode) -> None:
        """Remove the protection of one hold at ``node``."""
        self.tree.release(node)
        for covered in self._window_of(node):
            covered.swa_lock_ref -= 1
            if not covered.swa_lock_ref:
                self.evictable_tokens += covered._length
                self.protected_tokens -= covered._length
                self.victims.place(covered)

    def _edge_of(self, node: TreeNode) -> TreeNode | None:
        """Return the node that starts the window of ``node``, after a split if needed."""
        boundary = node._depth - self.span
        if boundary <= 0:
            return None
        edge = self._window_of(node)[-1]
        above = boundary - (edge._depth - edge._length)
        if above:
            self.split(self.tree.prepare_split(edge, above))
        return edge

    def _window_of(self, node: TreeNode) -> list[TreeNode]:
        """Return the nodes from ``node`` up to the one with the window's first token."""
        boundary = node._depth - self.span
        covered = []
        at: TreeNode | None = node
        while at is not None and at is not self.tree.root and at._depth > boundary:
            covered.append(at)
            at = at.parent
        return covered


class WindowPlan(LeafPlan[TreeNode]):
    """An eviction in a windowed tree: leaves to remove, and inner nodes that lose window KV (S3, S4).

    ``window``: its `victims` lose what is chosen. ``pool``: gets window KV back where it has ``free_swa``.
    ``alive_tokens``: alive tokens that go, in removed and in tombstoned nodes.
    """

    __slots__ = ("_dying", "_window", "alive_tokens")

    def __init__(self, window: SlidingWindow, pool: Any) -> None:
        LeafPlan.__init__(self, window.tree, pool)
        self._window = window
        self._dying: dict[int, TreeNode] = {}  # nodes that stay without window KV, in the order chosen
        self.alive_tokens = 0

    def take_parts(self, wanted: int) -> None:
        """Choose the least recent live nodes without a window lock, until ``wanted`` tokens are chosen."""
        victims = self._window.victims
        while self.alive_tokens < wanted:
            node = victims.oldest_of_all()
            if node is None:
                return
            if node in victims.leaves:
                self.take(node)
                continue
            self._dying[node.id] = node
            self.alive_tokens += node._length
            victims.inner.discard(node)

    def call_off(self) -> None:
        """Return nodes that were not evicted to their orders."""
        super().call_off()
        for node in self._dying.values():
            self._window.victims.place(node)

    def commit(self) -> None:
        """Give back the chosen window KV in one call, mark its nodes dead, and then remove whole nodes."""
        window, dying = self._window, list(self._dying.values())
        if dying and hasattr(self._pool, "free_swa"):
            return_halves(self._pool, self._tree, dying)
        for node in dying:
            node.swa_tombstone = True
            window.evictable_tokens -= node._length
        self._note_dead(dying)
        self._dying.clear()
        LeafPlan.commit(self)
        alive = [node for node in self.removed if not node.swa_tombstone]
        window.evictable_tokens -= sum(node._length for node in alive)
        self._note_dead(alive)

    def _note_dead(self, nodes: list[TreeNode]) -> None:
        log = self._tree.log
        if log is not None:
            for node in nodes:
                log.remove(Part.WINDOW, node.hash_values or ())

    def _must_go(self, node: TreeNode) -> bool:
        return node.swa_tombstone or node.id in self._dying

    def _note(self, node: TreeNode) -> None:
        if node.swa_tombstone or self._dying.pop(node.id, None) is not None:
            return
        self.alive_tokens += node._length
