"""White-box check of a `RadixCache`: walk all of it and compare every field with what the others imply.

Nothing here calls what it checks: locks, sizes, windows and victims are counted again from the holds and the
tree. The cache is only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pymllm.invariants.radix_tree import (
    check_distinct,
    check_hashes,
    check_leaf_order,
    check_locks,
    check_order,
    check_recency,
    check_sizes,
    check_slots,
    check_structure,
    check_waiting,
    fail,
)
from pymllm.invariants.subject import check_subject
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode

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
        Naming the law: R9 (structure), R6 and S5 (holds), R7 and S6 (sizes), R8 and R10 (recency and
        hits), R5 and S3 (the orders that victims are taken from), S4 (tombstones), H2 (hashes), R1, R9, S2
        and A7 (slots and the pool), K1 (namespaces), X3 (ids).
    TypeError
        It is no `RadixCache`.

    Notes
    -----
    Cost: O(nodes) in Python, and a few NumPy passes over all slots and, with a pool, over the pool's tables.
    On a device the slots are copied to the host once. Laws: K1, X3, R1, R5-R10, S2-S6, A7, H2.
    """
    check_subject(cache, RadixCache)
    tree = cache._tree
    nodes = check_structure(tree)
    check_locks(nodes)
    check_recency(tree, nodes)
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
    """Compare the tree's slots with each other and with the pool's books (R1, R9, S2, A7)."""
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
