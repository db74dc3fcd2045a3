"""White-box check of a `RadixCache`, and of the `RadixTree` behind every prefix cache.

Nothing here calls what it checks: locks, sizes, windows and victims are counted again from the holds and the
tree. The cache is only read.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.invariants.pools import check_subject, fail
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from pymllm.mem_cache.tree.node import BaseTreeNode
from pymllm.mem_cache.tree.radix_tree import RadixTree, RankedTree
from pymllm.mem_cache.tree.token_encoding import BYTES_PER_ID
from pymllm.mem_cache.tree.tree_cache import TreeCache
from pymllm.mem_cache.tree.victims import RankedOrder, VictimOrder

NodeT = TypeVar("NodeT", bound=BaseTreeNode)


# -- structure -----------------------------------------------------------------------------------------


def check_structure(tree: RadixTree[NodeT]) -> list[NodeT]:
    """Compare every edge with both its ends (R9, K1, X3); return all nodes but the root, parents first."""
    root = tree.root
    if root.parent is not None or root.lock_ref != 1 or root._depth or len(root.key or ()) or root._holds:
        fail("R9", f"the root has parent {root.parent}, lock_ref {root.lock_ref}, depth {root._depth}")
    nodes: list[NodeT] = []
    pending = [root]
    for node in pending:
        for filed_under, child in node.children.items():
            if child.parent is not node:
                fail("R9", f"node {child.id} is a child of node {node.id} but names another parent")
            if child._owner is not tree.epoch:
                fail("R9", f"node {child.id} is in the tree but marked as gone")
            if node._only_child is not None and (node._only_child is not child or len(node.children) > 1):
                fail("R9", f"node {node.id} takes node {node._only_child.id} for its only child")
            _check_edge(tree, node, child, filed_under)
            nodes.append(child)
            pending.append(child)
    ids = {node.id for node in nodes} | {root.id}
    if len(ids) != len(nodes) + 1:
        fail("X3", f"{len(nodes) + 1} nodes carry {len(ids)} different ids")
    return nodes


def _check_edge(tree: RadixTree[NodeT], parent: NodeT, node: NodeT, filed_under: Any) -> None:
    key, value, length = node.key, node.value, node._length
    if key is None or value is None or not length:
        fail("R9", f"node {node.id} is empty: key {key}, value {value}, length {length}")
    if not len(key) == len(value) == length or length % tree.page_size:
        sizes = f"{len(key)} tokens, {len(value)} slots, length {length}"
        fail("R9", f"node {node.id} has {sizes}, page {tree.page_size}")
    if value.dtype != torch.int64 or value.dim() != 1:
        fail("R9", f"node {node.id} holds {value.dtype} slots of shape {tuple(value.shape)}")
    starts = node._starts
    if starts is not None and (node._value is not None or starts.base is not None):
        fail("X5", f"node {node.id} keeps more than the {len(starts)} pages of its edge alive")
    if node._depth != parent._depth + length:
        fail("R9", f"node {node.id} ends at {node._depth}, {length} below {parent._depth}")
    width = len(node._raw) // (length * BYTES_PER_ID)
    page = node._raw[: tree.page_size * width * BYTES_PER_ID]
    expected: Any = page
    if parent is tree.root:
        if key.extra_key is not None or width > 1:
            expected = (key.extra_key, width, page)
    elif parent.key is not None and key.extra_key != parent.key.extra_key:
        fail("K1", f"node {node.id} of {key.extra_key!r} hangs below {parent.key.extra_key!r}")
    if filed_under != expected or node._filed_under != expected:
        fail("R9", f"node {node.id} is filed under {filed_under!r}, its first page is {expected!r}")
    ids = np.asarray(key.token_ids)
    if (ids if width == 1 else ids.astype(np.uint32)).tobytes() != node._raw:
        fail("R9", f"node {node.id}: its key is not what its edge is compared by")


# -- holds and sizes -----------------------------------------------------------------------------------


def check_locks(nodes: Sequence[NodeT]) -> None:
    """Count the holds at or below each node, children first (R6)."""
    below: dict[int, int] = {}
    for node in reversed(nodes):
        holds = node._holds + sum(below[child.id] for child in node.children.values())
        if node._holds < 0 or node.lock_ref != holds:
            fail("R6", f"node {node.id} has lock_ref {node.lock_ref}, holds at or below it: {holds}")
        below[node.id] = holds


def check_sizes(cache: object, recounts: dict[str, tuple[str, int]]) -> None:
    """Compare the size methods of a cache with recounts, given as name: (law, recount)."""
    for name, (law, expected) in recounts.items():
        found = getattr(cache, name)()
        if found != expected:
            fail(law, f"{name}() is {found}, a recount gives {expected}")


# -- recency and victims -------------------------------------------------------------------------------


def check_recency(tree: RadixTree[NodeT], nodes: Sequence[NodeT]) -> None:
    """One access stamps one path from the root: never younger below, and never in two branches (R8, R10)."""
    heads: dict[float, int] = {}
    root = tree.root
    for node in nodes:
        now, parent = node.last_access_time, node.parent
        if node.hit_count < 0:
            fail("R10", f"node {node.id} has hit_count {node.hit_count}: matches are counted from 0")
        if now != int(now) or not 0 < now <= tree.clock:
            fail("R8", f"node {node.id} was last used at {now}, the clock is at {tree.clock}")
        if parent is not root and parent is not None:
            if now > parent.last_access_time:
                fail("R8", f"node {node.id} was used at {now}, its parent at {parent.last_access_time}")
            if now == parent.last_access_time:
                if sum(child.last_access_time == now for child in parent.children.values()) > 1:
                    fail("R8", f"two children of node {parent.id} were used at {now}")
                continue
        if now in heads:
            fail("R8", f"nodes {heads[now]} and {node.id} were both used at {now}, on different paths")
        heads[now] = node.id


def check_leaf_order(tree: RadixTree[NodeT], nodes: Sequence[NodeT]) -> None:
    """Compare the order that phase 1 takes its victims from with the unlocked leaves (R5)."""
    leaves = [node for node in nodes if not node.children and not node.lock_ref]
    check_order("R5", "unlocked leaves", tree.victims.leaves, leaves)


def check_order(law: str, what: str, order: VictimOrder[NodeT], members: Sequence[NodeT]) -> None:
    """Compare an order of victims with the nodes that may be taken, and its oldest with a scan."""
    waiting = list(order)
    known = set(waiting)
    if not len(order) == len(waiting) == len(members):
        fail(law, f"the order of {what} counts {len(order)}, has {len(waiting)}; there are {len(members)}")
    for node in members:
        if node not in order or node not in known:
            fail(law, f"node {node.id} is missing from the order of {what}")
    if isinstance(order, RankedOrder) and not order._is_lost:
        _check_ranks(what, order, members)
    oldest = min(members, key=lambda node: (node.last_access_time, node._depth), default=None)
    if order.oldest() is not oldest:
        fail(law, f"the oldest of the {what} is {oldest}, the order says {order.oldest()}")


def _check_ranks(what: str, order: RankedOrder[NodeT], members: Sequence[NodeT]) -> None:
    """Rank every member again; a member that has not changed has its rank in the heap (R11)."""
    heap = {id(ranked) for ranked in order._heap}
    for node in members:
        ranked = order._ranked.get(node)
        now = order._policy.rank(node), node.last_access_time, node._depth, node
        if node not in order._changed and (ranked != now or id(ranked) not in heap):
            kept = ranked and ranked[:3]
            fail("R11", f"node {node.id} ranks {now[:3]} among the {what}, the order has {kept}")
    if len(order._ranked.keys() | order._changed.keys()) != len(members):
        fail("R11", f"the order of {what} ranks nodes that are no members")


def check_stamps(tree: RadixTree[Any], nodes: Sequence[Any]) -> None:
    """Compare each node with those below it, which came no earlier and matter no more (R11)."""
    for node in nodes if isinstance(tree, RankedTree) else ():
        if not 0 < node.creation_time <= tree.clock:
            fail("R11", f"node {node.id} came at {node.creation_time}, the clock is at {tree.clock}")
        for child in node.children.values():
            if child.creation_time < node.creation_time or child.priority > node.priority:
                fail(
                    "R11",
                    f"node {node.id} came at {node.creation_time} with priority {node.priority}, "
                    f"its child {child.id} at {child.creation_time} with {child.priority}",
                )


def check_waiting(law: str, nodes: Sequence[NodeT], orders: Sequence[VictimOrder[NodeT]]) -> None:
    """Compare the number of nodes that say that they wait somewhere with the orders' members."""
    waiting = sum(node._order is not None for node in nodes)
    if waiting != sum(map(len, orders)):
        fail(law, f"{waiting} nodes say that they wait, the orders have {sum(map(len, orders))}")


# -- nodes that have left ------------------------------------------------------------------------------


def check_departed(node: BaseTreeNode) -> None:
    """Follow all that a node names which has left its tree: no other node is among it (X5).

    Whoever kept it, as the ``last_node`` of a match, would keep that one alive, and what that one names.
    """
    seen = {id(node)}
    pending: list[object] = [node]
    for at in pending:
        for named in gc.get_referents(at):
            if named is not node and isinstance(named, BaseTreeNode):
                fail("X5", f"node {node.id} has left the tree and keeps node {named.id} alive")
            if id(named) not in seen and gc.is_tracked(named) and not isinstance(named, type):
                seen.add(id(named))
                pending.append(named)


# -- hashes and slots ----------------------------------------------------------------------------------


def check_hashes(tree: RadixTree[NodeT], nodes: Sequence[NodeT]) -> None:
    """Count the hashes of each node that has any (H2)."""
    for node in nodes:
        if node.hash_values is not None and len(node.hash_values) * tree.page_size != node._length:
            fail("H2", f"node {node.id} has {len(node.hash_values)} hashes for {node._length} tokens")


def check_slots(pool: Any, page_size: int, values: torch.Tensor) -> NDArray[np.int64]:
    """Compare all slots of a tree, at least one, with each other and with the pool's trackers (R1, R9).

    They are returned on the host, to which they are copied once.
    """
    slots: NDArray[np.int64] = values.cpu().numpy()
    if slots.min() < page_size:
        fail("R9", f"slot {slots.min()} is padding and no pool hands it out")
    check_distinct("R9", "slot", slots)
    if getattr(pool, "check_ownership", False):
        _check_pages(slots, page_size)
    if hasattr(pool, "is_handed_out"):
        free = ~pool.is_handed_out(values).cpu().numpy()
        if free.any():
            fail("R9", f"slots {slots[free][:8].tolist()} are in the tree and free in the pool")
    return slots


def check_owner(cache: TreeCache[Any], nodes: Sequence[BaseTreeNode]) -> None:
    """Compare the pages of a tree with the pages that a watching pool counts as the cache's (R9)."""
    if cache._owner is None:
        return
    size, values = cache.page_size, [node.value for node in nodes if node.value is not None]
    in_tree = {slot // size for value in values for slot in value.tolist()}
    known = cache._owner.pages()
    if in_tree != known:
        fail(
            "R9",
            f"pages {sorted(in_tree - known)[:8]} are in the tree and not the cache's in the pool, "
            f"pages {sorted(known - in_tree)[:8]} the other way round",
        )


def check_distinct(law: str, what: str, numbers: NDArray[Any]) -> None:
    """Refuse a number that stands there twice."""
    # Marking is a third of the price of sorting or of a bincount at a million slots.
    marked = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.bool_)
    marked[numbers] = True
    if np.count_nonzero(marked) != len(numbers):
        counts = np.bincount(numbers)
        fail(law, f"{what}s {np.flatnonzero(counts > 1)[:8].tolist()} stand in the tree twice")


def _check_pages(slots: NDArray[np.int64], page_size: int) -> None:
    pages = slots.reshape(-1, page_size)
    wrong = (pages != pages[:, :1] // page_size * page_size + np.arange(page_size)).any(axis=1)
    if wrong.any():
        fail("R1", f"slots {pages[wrong][0].tolist()} of a key page are not one page of the pool, in order")


def check_radix_cache(cache: RadixCache) -> None:
    """Raise if anything in the cache contradicts anything else, between two operations and outside callbacks.

    Laws: R9 (structure), R6 and S5 (holds), R7 and S6 (sizes), R8 and R10 (recency and hits), R5 and S3 (the
    orders that victims are taken from), S4 (tombstones), H2 (hashes), R1, R9, S2 and A7 (slots and the pool),
    K1 (namespaces), X3 (ids). Cost: O(nodes) in Python, and a few NumPy passes over all slots and, with a
    pool, over the pool's tables. On a device the slots are copied to the host once.
    """
    check_subject(cache, RadixCache)
    tree = cache._tree
    nodes = check_structure(tree)
    check_locks(nodes)
    check_recency(tree, nodes)
    check_stamps(tree, nodes)
    if cache.sliding_window_size is None:
        _check_no_window(cache, nodes)
    else:
        _check_window_locks(cache, nodes, cache.sliding_window_size)
        _check_tombstones(cache, nodes)
    _check_sizes(cache, nodes)
    check_leaf_order(tree, nodes)
    if cache._window is None:
        check_waiting("R5", nodes, (tree.victims.leaves,))
    else:
        inner = [n for n in nodes if n.children and not n.swa_tombstone and not n.swa_lock_ref]
        victims = cache._window.victims
        check_order("S3", "alive inner nodes without a window lock", victims.inner, inner)
        check_waiting("S3", nodes, (victims.leaves, victims.inner))
    check_hashes(tree, nodes)
    check_owner(cache, nodes)
    if cache.pool is not None and nodes:
        _check_slots(cache, nodes)


# -- sizes ---------------------------------------------------------------------------------------------


def _check_sizes(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    """Sum every size again (R7, S6)."""
    windowed = cache.sliding_window_size is not None
    total = sum(node._length for node in nodes)
    locked = sum(node._length for node in nodes if node.lock_ref)
    alive = sum(node._length for node in nodes if not node.swa_tombstone) if windowed else 0
    covered = sum(node._length for node in nodes if node.swa_lock_ref)
    recounts = {
        "total_size": ("R7", total),
        "evictable_size": ("R7", total - locked),
        "protected_size": ("R7", locked),
        "swa_evictable_size": ("S6", alive - covered),
        "swa_protected_size": ("S6", covered),
    }
    check_sizes(cache, recounts)


# -- windows -------------------------------------------------------------------------------------------


def _check_no_window(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    for node in nodes:
        if node.swa_tombstone or node.swa_lock_ref or node.swa_boundary_id is not None:
            fail("S6", f"node {node.id} has window state in a cache without a window")


def _check_window_locks(cache: RadixCache, nodes: Sequence[TreeNode], window: int) -> None:
    """Lay every hold's window over its path again (S5, S6)."""
    covering = dict.fromkeys((node.id for node in nodes), 0)
    for node in nodes:
        if not node._holds:
            continue
        outside = max(0, node._depth - window) // cache.page_size * cache.page_size
        at: TreeNode | None = node
        while at is not None and at._depth > outside:
            covering[at.id] += node._holds
            edge, at = at, at.parent
        if edge._depth - edge._length != outside:
            fail("S5", f"the window of node {node.id} starts at {outside}, inside node {edge.id}")
        if outside and edge.swa_boundary_id is None:
            fail("S5", f"node {edge.id} is the edge of a held window and has no swa_boundary_id")
    for node in nodes:
        if node.swa_lock_ref != covering[node.id] or node.swa_lock_ref > node.lock_ref:
            found = f"swa_lock_ref {node.swa_lock_ref} and lock_ref {node.lock_ref}"
            fail("S6", f"node {node.id} has {found}, windows over it: {covering[node.id]}")
    ids = [node.swa_boundary_id for node in nodes if node.swa_boundary_id is not None]
    if len(set(ids)) != len(ids):
        fail("S5", f"two nodes carry one swa_boundary_id: {sorted(ids)}")


def _check_tombstones(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    for node in nodes:
        if node.swa_tombstone and not node.children:
            fail("S4", f"leaf {node.id} is a tombstone")
        if node.swa_tombstone and node.swa_lock_ref:
            fail("S6", f"tombstone {node.id} has swa_lock_ref {node.swa_lock_ref}")


# -- slots ---------------------------------------------------------------------------------------------


def _check_slots(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    """Compare the tree's slots with each other and with the pool's trackers (R1, R9, S2, A7)."""
    values = torch.cat([node.value for node in nodes if node.value is not None])
    slots = check_slots(cache.pool, cache.page_size, values)
    if cache.sliding_window_size is not None and hasattr(cache.pool, "translate_to_swa"):
        _check_halves(cache.pool.translate_to_swa(values).cpu().numpy(), slots, nodes)


def _check_halves(
    halves: np.ndarray[Any, Any], slots: np.ndarray[Any, Any], nodes: Sequence[TreeNode]
) -> None:
    lengths = [node._length for node in nodes]
    alive = np.repeat([not node.swa_tombstone for node in nodes], lengths)
    wrong = (halves > 0) != alive
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        state = "alive" if alive[at] else "dead"
        fail("S2", f"slot {slots[at]} is {state} in the tree, and its SWA half is {halves[at]} in the pool")
    check_distinct("A7", "SWA half", halves[alive])
