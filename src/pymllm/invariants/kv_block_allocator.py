"""White-box check of a `KVBlockAllocator`: where each block is, and the forest of what is registered."""

from __future__ import annotations

import numpy as np

from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.errors import InvariantViolation
from pymllm.invariants.subject import check_subject

__all__ = ["check_kv_block_allocator"]

_NONE = -1


def check_kv_block_allocator(allocator: KVBlockAllocator) -> None:
    """Raise if a block is lost, a hash points astray, or an eviction would go wrong.

    Parameters
    ----------
    allocator : KVBlockAllocator
        Between two calls.

    Raises
    ------
    InvariantViolation
        Naming the law: C1 (places of blocks, parents before children, what is evictable, who goes first) or
        C3 (hashes).
    TypeError
        It is no `KVBlockAllocator`.

    Notes
    -----
    Cost: O(pool_size + registered log registered). Laws: C1, C3.
    """
    check_subject(allocator, KVBlockAllocator)
    _check_places(allocator)
    _check_hashes(allocator)
    _check_family(allocator)
    _check_activity(allocator)
    _check_leaves(allocator)


def _check(holds: bool, law: str, message: str) -> None:
    if not holds:
        raise InvariantViolation(law, message)


def _check_places(allocator: KVBlockAllocator) -> None:
    """Check that free, referenced and cached blocks are all blocks but the dummy, once."""
    free = allocator._free[: allocator.pool_avail].tolist()
    refs, hashes = allocator._ref_counts, allocator._known.of_block
    _check(int(refs.min()) >= 0, "C1", f"block {int(refs.argmin())} has {refs.min()} references")
    taken = np.flatnonzero((refs > 0) | (hashes != _NONE)).tolist()
    expected = list(range(allocator.dummy_block_idx))
    _check(
        sorted([*free, *taken]) == expected,
        "C1",
        f"blocks are not free, referenced or cached once each: free {sorted(free)}, taken {taken}",
    )
    marked = np.flatnonzero(allocator._is_free).tolist()
    free_and_dummy = [*sorted(free), allocator.dummy_block_idx]
    _check(marked == free_and_dummy, "C1", f"blocks {marked} are marked free, {free_and_dummy} should be")
    if allocator.prefix_caching_eviction_policy is PrefixCachingEvictionPolicy.REF_ZERO:
        cached = np.flatnonzero((refs == 0) & (hashes != _NONE)).tolist()
        _check(not cached, "C1", f"under REF_ZERO blocks {cached} are cached without a reference")
    _check(allocator.enable_prefix_caching or hashes.max() == _NONE, "C1", "a block is registered")


def _check_hashes(allocator: KVBlockAllocator) -> None:
    """Check that hashes and blocks name each other."""
    hashes = allocator._known.of_block
    known = {int(hashes[block]): int(block) for block in np.flatnonzero(hashes != _NONE)}
    found = allocator.kv_hash_to_block_id
    _check(known == found, "C3", f"blocks carry the hashes {known}, but the index has {found}")
    wrong = [value for value in known if value <= 0]
    _check(not wrong, "C3", f"hashes {wrong} are not positive")


def _check_family(allocator: KVBlockAllocator) -> None:
    """Check that each registered block has a registered parent that knows it."""
    forest = allocator._forest
    registered = np.flatnonzero(allocator._known.of_block != _NONE).tolist()
    _check(sorted(forest._children) == registered, "C1", f"{registered} are registered, the forest differs")
    parents = {block: int(forest.parents[block]) for block in registered}
    strays = [block for block, parent in parents.items() if parent != _NONE and parent not in parents]
    _check(not strays, "C1", f"registered blocks {strays} have parents that are not registered")
    claimed = {child: block for block, children in forest._children.items() for child in children}
    having = {block: parent for block, parent in parents.items() if parent != _NONE}
    _check(claimed == having, "C1", f"parents {having} and children {claimed} disagree")
    unregistered = np.delete(forest.parents, registered)
    _check(bool((unregistered == _NONE).all()), "C1", "a block that is not registered has a parent")


def _active_blocks(allocator: KVBlockAllocator) -> set[int]:
    """Recount which registered blocks are referenced, or have a referenced registered descendant."""
    parents: list[int] = allocator._forest.parents.tolist()
    rooted, active = {_NONE}, {_NONE}
    for block in allocator._forest._children:
        rooted.update(_path_up(parents, block, rooted))
        if allocator._ref_counts[block] > 0:
            active.update(_path_up(parents, block, active))
    return active - {_NONE}


def _path_up(parents: list[int], block: int, known: set[int]) -> list[int]:
    """List a block and those above it, up to one that is known."""
    path: list[int] = []
    while block not in known and len(path) <= len(parents):
        path.append(block)
        block = parents[block]
    _check(len(path) <= len(parents), "C1", f"block {path[:1]} is its own ancestor")
    return path


def _check_activity(allocator: KVBlockAllocator) -> None:
    forest, active = allocator._forest, _active_blocks(allocator)
    for block, children in forest._children.items():
        count = sum(child in active for child in children)
        kept = forest._active_children[block]
        _check(count == kept, "C1", f"block {block} has {count} active children and counts {kept}")
    evictable = set(forest._children) - active
    _check(forest._idle == evictable, "C1", f"{evictable} may be evicted, {forest._idle} are kept as such")


def _check_leaves(allocator: KVBlockAllocator) -> None:
    """Check that exactly the evictable blocks without children wait, none with a stamp that is too high."""
    forest, active = allocator._forest, _active_blocks(allocator)
    leaves = {block for block, children in forest._children.items() if not children} - active
    _check(leaves == set(forest._queued_at), "C1", f"{leaves} may be evicted, {set(forest._queued_at)} wait")
    entries = set(forest._heap)
    for block, stamp in forest._queued_at.items():
        current = int(allocator._timestamps[block])
        _check((stamp, block) in entries, "C1", f"block {block} waits, but not in the heap")
        _check(stamp <= current, "C1", f"block {block} waits at {stamp}, later than its stamp {current}")
