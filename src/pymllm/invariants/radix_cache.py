"""White-box check of a `RadixCache`: walk all of it and compare every field with what the others imply.

Nothing here calls what it checks: locks, sizes, windows and victims are counted again from the holds and the
tree. The cache is only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from pymllm.mem_cache.token_encoding import BYTES_PER_ID
from pymllm.mem_cache.victim_order import VictimOrder

__all__ = ["check_radix_cache"]


def check_radix_cache(cache: RadixCache) -> None:
    """Raise if anything in the cache contradicts anything else.

    Parameters
    ----------
    cache : RadixCache
        Between two operations; not from inside one of its callbacks.

    Raises
    ------
    InvariantViolation
        Naming the law: R9 (structure), R6 and S5 (holds), R7 and S6 (sizes), R8 (recency), R5 and S3 (the
        orders that victims are taken from), S4 (tombstones), H2 (hashes), R1, R9, S2 and A7 (slots and
        the pool), K1 (namespaces), X3 (ids).

    Notes
    -----
    Cost: O(nodes) in Python, and a few NumPy passes over all slots and, with a pool, over the pool's tables.
    On a device the slots are copied to the host once. Laws: K1, X3, R1, R5-R9, S2-S6, A7, H2.
    """
    nodes = _check_structure(cache)
    _check_locks(cache, nodes)
    _check_recency(cache, nodes)
    if cache.sliding_window_size is None:
        _check_no_window(cache, nodes)
    else:
        _check_window_locks(cache, nodes, cache.sliding_window_size)
        _check_tombstones(cache, nodes)
    _check_sizes(cache, nodes)
    _check_victims(cache, nodes)
    _check_hashes(cache, nodes)
    if cache.pool is not None and nodes:
        _check_slots(cache, nodes)


def _fail(law: str, message: str) -> NoReturn:
    raise InvariantViolation(law, message)


# -- structure -----------------------------------------------------------------------------------------


def _check_structure(cache: RadixCache) -> list[TreeNode]:
    """Compare every edge with both its ends (R9); return all nodes but the root, parents first."""
    root = cache.root_node
    if root.parent is not None or root.lock_ref != 1 or root._depth or len(root.key or ()) or root._holds:
        _fail("R9", f"the root has parent {root.parent}, lock_ref {root.lock_ref}, depth {root._depth}")
    epoch = cache._tree.epoch
    nodes: list[TreeNode] = []
    pending = [root]
    for node in pending:
        for filed_under, child in node.children.items():
            if child.parent is not node:
                _fail("R9", f"node {child.id} is a child of node {node.id} but names another parent")
            if child._owner is not epoch:
                _fail("R9", f"node {child.id} is in the tree but marked as gone")
            _check_edge(cache, node, child, filed_under)
            nodes.append(child)
            pending.append(child)
    ids = {node.id for node in nodes} | {root.id}
    if len(ids) != len(nodes) + 1:
        _fail("X3", f"{len(nodes) + 1} nodes carry {len(ids)} different ids")
    return nodes


def _check_edge(cache: RadixCache, parent: TreeNode, node: TreeNode, filed_under: Any) -> None:
    key, value, length = node.key, node.value, node._length
    if key is None or value is None or not length:
        _fail("R9", f"node {node.id} is empty: key {key}, value {value}, length {length}")
    if not len(key) == len(value) == length or length % cache.page_size:
        sizes = f"{len(key)} tokens, {len(value)} slots, length {length}"
        _fail("R9", f"node {node.id} has {sizes}, page {cache.page_size}")
    if value.dtype != torch.int64 or value.dim() != 1:
        _fail("R9", f"node {node.id} holds {value.dtype} slots of shape {tuple(value.shape)}")
    if node._depth != parent._depth + length:
        _fail("R9", f"node {node.id} ends at {node._depth}, {length} below {parent._depth}")
    width = len(node._raw) // (length * BYTES_PER_ID)
    page = node._raw[: cache.page_size * width * BYTES_PER_ID]
    expected: Any = page
    if parent is cache.root_node:
        expected = (key.extra_key, width, page)
    elif parent.key is not None and key.extra_key != parent.key.extra_key:
        _fail("K1", f"node {node.id} of {key.extra_key!r} hangs below {parent.key.extra_key!r}")
    if filed_under != expected or node._filed_under != expected:
        _fail("R9", f"node {node.id} is filed under {filed_under!r}, its first page is {expected!r}")
    if np.asarray(key.token_ids).tobytes() != node._raw:
        _fail("R9", f"node {node.id}: its key is not what its edge is compared by")


# -- holds and sizes -----------------------------------------------------------------------------------


def _check_locks(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    """Count the holds at or below each node, children first (R6)."""
    below: dict[int, int] = {}
    for node in reversed(nodes):
        holds = node._holds + sum(below[child.id] for child in node.children.values())
        if node._holds < 0 or node.lock_ref != holds:
            _fail("R6", f"node {node.id} has lock_ref {node.lock_ref}, holds at or below it: {holds}")
        below[node.id] = holds


def _check_sizes(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    """Sum every size again (R7, S6)."""
    windowed = cache.sliding_window_size is not None
    total = sum(node._length for node in nodes)
    locked = sum(node._length for node in nodes if node.lock_ref)
    alive = sum(node._length for node in nodes if not node.swa_tombstone) if windowed else 0
    covered = sum(node._length for node in nodes if node.swa_lock_ref)
    counted = {
        "total_size": ("R7", total),
        "evictable_size": ("R7", total - locked),
        "protected_size": ("R7", locked),
        "swa_evictable_size": ("S6", alive - covered),
        "swa_protected_size": ("S6", covered),
    }
    for name, (law, expected) in counted.items():
        found = getattr(cache, name)()
        if found != expected:
            _fail(law, f"{name}() is {found}, a recount gives {expected}")


# -- recency and victims -------------------------------------------------------------------------------


def _check_recency(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    """One access stamps one path from the root: never younger below, and never in two branches (R8)."""
    heads: dict[float, int] = {}
    root = cache.root_node
    for node in nodes:
        now, parent = node.last_access_time, node.parent
        if now != int(now) or not 0 < now <= cache._tree.clock:
            _fail("R8", f"node {node.id} was last used at {now}, the clock is at {cache._tree.clock}")
        if parent is not root and parent is not None:
            if now > parent.last_access_time:
                _fail("R8", f"node {node.id} was used at {now}, its parent at {parent.last_access_time}")
            if now == parent.last_access_time:
                if sum(child.last_access_time == now for child in parent.children.values()) > 1:
                    _fail("R8", f"two children of node {parent.id} were used at {now}")
                continue
        if now in heads:
            _fail("R8", f"nodes {heads[now]} and {node.id} were both used at {now}, on different paths")
        heads[now] = node.id


def _check_victims(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    """Compare the orders that victims are taken from with the nodes that may be taken (R5, S3)."""
    leaves = [node for node in nodes if not node.children and not node.lock_ref]
    _check_order("R5", "unlocked leaves", cache._tree.leaves, leaves)
    if cache._window is not None:
        alive = [node for node in nodes if not node.swa_tombstone and not node.swa_lock_ref]
        _check_order("S3", "alive nodes without a window lock", cache._window.unlocked, alive)


def _check_order(law: str, what: str, order: VictimOrder[TreeNode], members: Sequence[TreeNode]) -> None:
    if len(order) != len(members):
        _fail(law, f"the order of {what} has {len(order)} members, there are {len(members)}")
    for node in members:
        if node not in order:
            _fail(law, f"node {node.id} is missing from the order of {what}")
    oldest = min(members, key=lambda node: (node.last_access_time, node._depth), default=None)
    if order.oldest() is not oldest:
        _fail(law, f"the oldest of the {what} is {oldest}, the order says {order.oldest()}")


# -- windows -------------------------------------------------------------------------------------------


def _check_no_window(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    for node in nodes:
        if node.swa_tombstone or node.swa_lock_ref or node.swa_boundary_id is not None:
            _fail("S6", f"node {node.id} has window state in a cache without a window")


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
            _fail("S5", f"the window of node {node.id} starts at {outside}, inside node {edge.id}")
        if outside and edge.swa_boundary_id is None:
            _fail("S5", f"node {edge.id} is the edge of a held window and has no swa_boundary_id")
    for node in nodes:
        if node.swa_lock_ref != covering[node.id] or node.swa_lock_ref > node.lock_ref:
            found = f"swa_lock_ref {node.swa_lock_ref} and lock_ref {node.lock_ref}"
            _fail("S6", f"node {node.id} has {found}, windows over it: {covering[node.id]}")
    ids = [node.swa_boundary_id for node in nodes if node.swa_boundary_id is not None]
    if len(set(ids)) != len(ids):
        _fail("S5", f"two nodes carry one swa_boundary_id: {sorted(ids)}")


def _check_tombstones(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    for node in nodes:
        if node.swa_tombstone and not node.children:
            _fail("S4", f"leaf {node.id} is a tombstone")
        if node.swa_tombstone and node.swa_lock_ref:
            _fail("S6", f"tombstone {node.id} has swa_lock_ref {node.swa_lock_ref}")


# -- hashes and slots ----------------------------------------------------------------------------------


def _check_hashes(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    for node in nodes:
        if node.hash_values is not None and len(node.hash_values) * cache.page_size != node._length:
            _fail("H2", f"node {node.id} has {len(node.hash_values)} hashes for {node._length} tokens")


def _check_slots(cache: RadixCache, nodes: Sequence[TreeNode]) -> None:
    """Compare the tree's slots with each other and with the pool's books (R1, R9, S2, A7)."""
    pool = cache.pool
    values = torch.cat([node.value for node in nodes if node.value is not None])
    slots = values.cpu().numpy()
    if slots.min() < cache.page_size:
        _fail("R9", f"slot {slots.min()} is padding and no pool hands it out")
    _check_distinct("R9", "slot", slots)
    if getattr(pool, "check_ownership", False):
        _check_pages(slots, cache.page_size)
    if hasattr(pool, "is_handed_out"):
        free = ~pool.is_handed_out(values).cpu().numpy()
        if free.any():
            _fail("R9", f"slots {slots[free][:8].tolist()} are in the tree and free in the pool")
    if cache.sliding_window_size is not None and hasattr(pool, "translate_to_swa"):
        _check_halves(pool.translate_to_swa(values).cpu().numpy(), slots, nodes)


def _check_distinct(law: str, what: str, numbers: np.ndarray[Any, Any]) -> None:
    # Marking is a third of the price of sorting or of a bincount at a million slots.
    marked = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.bool_)
    marked[numbers] = True
    if np.count_nonzero(marked) != len(numbers):
        counts = np.bincount(numbers)
        _fail(law, f"{what}s {np.flatnonzero(counts > 1)[:8].tolist()} stand in the tree twice")


def _check_pages(slots: np.ndarray[Any, Any], page_size: int) -> None:
    pages = slots.reshape(-1, page_size)
    wrong = (pages != pages[:, :1] // page_size * page_size + np.arange(page_size)).any(axis=1)
    if wrong.any():
        _fail("R1", f"slots {pages[wrong][0].tolist()} of a key page are not one page of the pool, in order")


def _check_halves(
    halves: np.ndarray[Any, Any], slots: np.ndarray[Any, Any], nodes: Sequence[TreeNode]
) -> None:
    lengths = [node._length for node in nodes]
    alive = np.repeat([not node.swa_tombstone for node in nodes], lengths)
    wrong = (halves > 0) != alive
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        state = "alive" if alive[at] else "dead"
        _fail("S2", f"slot {slots[at]} is {state} in the tree, and its SWA half is {halves[at]} in the pool")
    _check_distinct("A7", "SWA half", halves[alive])
