"""White-box check of a `MambaRadixCache`: walk all of it and compare every field with what the others imply.

What states add is here, the tree itself in `pymllm.invariants.radix_cache`. Nothing here calls what it
checks: locks, sizes, victims and both lists are counted again from the holds and the tree. The cache is only
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from pymllm.invariants.pools import check_subject, fail
from pymllm.invariants.radix_cache import (
    check_hashes,
    check_locks,
    check_order,
    check_owner,
    check_recency,
    check_sizes,
    check_slots,
    check_stamps,
    check_structure,
    check_waiting,
)
from pymllm.mem_cache.mamba_radix_cache import LRUList, MambaRadixCache, MambaTreeNode
from pymllm.mem_cache.tree.cached_states import StateVictims


def check_mamba_radix_cache(cache: MambaRadixCache) -> None:
    """Raise if anything in the cache contradicts anything else, between two operations and outside callbacks.

    Laws: R9 (structure), R6 and M4 (holds), R7 and M6 (sizes), R8 and R10 (recency and hits), R5 and M5 (the
    orders that victims are taken from), M8 (the two lists), H2 (hashes), R1, R9, M1 and M7 (slots, track
    slots and their pools), X5 (memory kept alive), K1 (namespaces), X3 (ids). Cost: O(nodes) in Python, and a
    few NumPy passes over all slots and, with a pool, over the pool's tables. On a device the slots and the
    track slots are copied to the host once each.
    """
    check_subject(cache, MambaRadixCache)
    tree = cache._tree
    nodes = check_structure(tree)
    with_state = [node for node in nodes if node.mamba_value is not None]
    check_locks(nodes)
    _check_state_locks(cache, nodes)
    check_recency(tree, nodes)
    check_stamps(tree, nodes)
    _check_sizes(cache, nodes, with_state)
    _check_victims(cache._states.victims, nodes)
    _check_list("full_lru", cache.full_lru, nodes, nodes)
    _check_list("mamba_lru", cache.mamba_lru, nodes, with_state)
    check_hashes(tree, nodes)
    _check_storage(nodes)
    if with_state:
        _check_track_slots(cache.mamba_pool, with_state)
    check_owner(cache, nodes)
    if cache.pool is not None and nodes:
        values = torch.cat([node.value for node in nodes if node.value is not None])
        check_slots(cache.pool, cache.page_size, values)


def _check_state_locks(cache: MambaRadixCache, nodes: Sequence[MambaTreeNode]) -> None:
    """Compare the lock of each state with the holds at exactly its node, so never above R6's count (M4)."""
    root = cache.root_node
    if root.mamba_value is not None or root.mamba_lock_ref:
        fail("R9", f"the root has state {root.mamba_value}, mamba_lock_ref {root.mamba_lock_ref}")
    for node in nodes:
        holds = node._holds if node.mamba_value is not None else 0
        if node.mamba_lock_ref != holds:
            fail(
                "M4", f"node {node.id} has mamba_lock_ref {node.mamba_lock_ref}, holds of its state: {holds}"
            )


def _check_sizes(
    cache: MambaRadixCache, nodes: Sequence[MambaTreeNode], with_state: Sequence[MambaTreeNode]
) -> None:
    """Sum every size again: tokens of KV, and states (R7, M6)."""
    total = sum(node._length for node in nodes)
    locked = sum(node._length for node in nodes if node.full_lock_ref)
    protected = sum(node.mamba_lock_ref > 0 for node in with_state)
    recounts = {
        "total_size": ("R7", total),
        "evictable_size": ("R7", total - locked),
        "protected_size": ("R7", locked),
        "mamba_evictable_size": ("M6", len(with_state) - protected),
        "mamba_protected_size": ("M6", protected),
    }
    check_sizes(cache, recounts)


# -- victims -------------------------------------------------------------------------------------------


def _check_victims(victims: StateVictims, nodes: Sequence[MambaTreeNode]) -> None:
    """Tell again which leaves and which states may go, and compare the orders with them (R5, M5)."""
    leaves = [node for node in nodes if not node.children and not node.full_lock_ref]
    bare = [node for node in leaves if node.mamba_value is None]
    with_state = [node for node in leaves if node.mamba_value is not None]
    inner = [node for node in nodes if node.children and node.mamba_value is not None]
    unlocked = [node for node in inner if not node.mamba_lock_ref]
    check_order("R5", "unlocked leaves without a state", victims.bare_leaves, bare)
    check_order("R5", "unlocked leaves with a state", victims.leaves, with_state)
    check_order("M5", "inner nodes with a state without a lock", victims.inner, unlocked)
    check_waiting("M5", nodes, (victims.bare_leaves, victims.leaves, victims.inner))


# -- the lists -----------------------------------------------------------------------------------------


def _check_list(
    name: str, lru: LRUList, nodes: Sequence[MambaTreeNode], members: Sequence[MambaTreeNode]
) -> None:
    """Walk a list from both ends and compare it with its members in R8's order (M8)."""
    forward, backward = ("mamba_next", "mamba_prev") if lru.mamba else ("next", "prev")
    if getattr(lru.head, backward) is not None or getattr(lru.tail, forward) is not None:
        fail("M8", f"{name} goes on beyond one of its ends")
    found = _walk(name, lru.head, lru.tail, forward, len(members))
    if _walk(name, lru.tail, lru.head, backward, len(members)) != found[::-1]:
        fail("M8", f"{name} has other members in the other direction")
    known = {node for node in nodes if node in lru}
    if not len(found) == len(lru) == len(members) or set(found) != set(members) or known != set(members):
        ids = sorted(node.id for node in known.union(found).symmetric_difference(members))
        fail("M8", f"{name} links {len(found)} nodes and counts {len(lru)}; these differ: {ids}")
    for newer, older in pairwise(found):
        if (newer.last_access_time, newer._depth) <= (older.last_access_time, older._depth):
            fail("M8", f"{name} has node {newer.id} before node {older.id}, which is no older")
    for node in nodes:
        if node not in lru and (getattr(node, forward), getattr(node, backward)) != (None, None):
            fail("M8", f"node {node.id} is not in {name} and still linked to a neighbour there")


def _walk(
    name: str, start: MambaTreeNode, end: MambaTreeNode, step: str, members: int
) -> list[MambaTreeNode]:
    """Follow one kind of link from a sentinel to the other, and give up where a list is too long."""
    found: list[MambaTreeNode] = []
    at: MambaTreeNode | None = getattr(start, step)
    while at is not end:
        if at is None or len(found) > members:
            fail("M8", f"{name} does not end at its sentinel after {members} members")
        found.append(at)
        at = getattr(at, step)
    return found


# -- memory --------------------------------------------------------------------------------------------


def _check_storage(nodes: Sequence[MambaTreeNode]) -> None:
    """Refuse a tensor that keeps more memory alive than it shows (X5)."""
    for node in nodes:
        for tensor in (node.value, node.mamba_value):
            if tensor is not None and tensor.untyped_storage().nbytes() != tensor.nbytes:
                kept = tensor.untyped_storage().nbytes()
                fail("X5", f"node {node.id} keeps {kept} bytes alive for {tensor.nbytes} bytes of slots")


def _check_track_slots(pool: Any, with_state: Sequence[MambaTreeNode]) -> None:
    """Compare the track slots with each other and with the pool's trackers (M1, M7)."""
    values = [node.mamba_value for node in with_state if node.mamba_value is not None]
    for node, value in zip(with_state, values, strict=True):
        if value.dtype != torch.int64 or value.shape != (1,):
            fail("M1", f"the state of node {node.id} is {value.dtype} of shape {tuple(value.shape)}")
    handed_out = getattr(pool, "_held_track_slots", None)
    holders: dict[int, MambaTreeNode] = {}
    for node, track_slot in zip(with_state, torch.cat(values).tolist(), strict=True):
        if node._track_slot != track_slot:
            fail("M7", f"node {node.id} has track slot {track_slot} and would give {node._track_slot} back")
        if track_slot in holders:
            fail("M7", f"nodes {holders[track_slot].id} and {node.id} both have track slot {track_slot}")
        if handed_out is not None and track_slot not in handed_out:
            fail("M7", f"track slot {track_slot} is at node {node.id} and free in the pool")
        holders[track_slot] = node
