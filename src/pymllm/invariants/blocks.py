"""White-box checks of block contexts: allocators of blocks and states, rows, registered content."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.host_numbers import host_array
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.live_request import LiveRequest, Region
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.core.inference.contexts.prefix_index import block_hash
from pymllm.invariants.pools import check_free_numbers, check_subject, fail

_NONE = -1


def check_kv_block_allocator(allocator: KVBlockAllocator) -> None:
    """Raise if a block is lost, a hash points astray, or an eviction would go wrong.

    Laws: C1 (places of blocks, parents before children, what is evictable, who goes first), C3 (hashes).
    Cost: O(pool_size + registered log registered).
    """
    check_subject(allocator, KVBlockAllocator)
    _check_places(allocator)
    _check_transfers(allocator)
    _check_hashes(allocator)
    _check_family(allocator)
    _check_activity(allocator)
    _check_leaves(allocator)


def _check(holds: bool, law: str, message: str) -> None:
    if not holds:
        fail(law, message)


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


def _check_transfers(allocator: KVBlockAllocator) -> None:
    """Check that each block has as many references of transfers as there are transfers of it."""
    counts = np.zeros(allocator.pool_size, np.int32)
    for blocks in allocator._under_way.values():
        counts[blocks] += 1
    wrong = np.flatnonzero((counts != allocator._transfers) | (counts > allocator._ref_counts)).tolist()
    _check(not wrong, "C1", f"blocks {wrong} are in {counts[wrong]} transfers, which are not all counted")


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


def check_mamba_slot_allocator(slots: MambaSlotAllocator, in_hands: Iterable[int] = ()) -> None:
    """Raise if a slot is lost, a hash names another content, or a free block has a state.

    ``in_hands`` are slots that the caller took with ``_evict_lru_slots_batch`` and still has. Laws: C2 (slots
    and blocks), C4 (hashes), C6 (free blocks), C8 (offsets). Cost: O(blocks + slots), no state is read;
    synchronises where the context keeps its tables on a device.
    """
    check_subject(slots, MambaSlotAllocator)
    _check_maps(slots, sorted(in_hands))
    _check_state_hashes(slots)
    _check_owners(slots)
    _check_offsets(slots)


def _check_maps(slots: MambaSlotAllocator, in_hands: list[int]) -> None:
    tracker = slots._tracker
    slot_of = {int(block): int(tracker.slot_of[block]) for block in np.flatnonzero(tracker.slot_of != _NONE)}
    block_of = {int(tracker.block_of[slot]): int(slot) for slot in np.flatnonzero(tracker.block_of != _NONE)}
    _check(slot_of == block_of, "C2", f"blocks have the slots {slot_of}, slots the blocks {block_of}")
    free = slots.free_slots[: slots.free_count].tolist()
    places = sorted([*free, *slot_of.values(), *in_hands])
    _check(
        places == list(range(slots.max_slots)),
        "C2",
        f"slots are not free, mapped or in hand once each: free {sorted(free)}, mapped "
        f"{sorted(slot_of.values())}, in hand {in_hands}",
    )


def _check_state_hashes(slots: MambaSlotAllocator) -> None:
    tracker = slots._tracker
    known = {int(tracker.hash_of[block]): int(block) for block in np.flatnonzero(tracker.hash_of != _NONE)}
    _check(
        known == slots.hash_to_block_id, "C4", f"blocks have {known}, the index has {slots.hash_to_block_id}"
    )
    registered = host_array(slots.context.kv_block_allocator.block_hashes)
    for value, block in known.items():
        _check(tracker.slot_of[block] != _NONE, "C4", f"hash {value} names block {block}, which has no slot")
        found = int(registered[block])
        _check(found == value, "C4", f"hash {value} names block {block}, which is registered under {found}")


def _check_owners(slots: MambaSlotAllocator) -> None:
    """Check that no free block has a slot, where the block allocator can tell."""
    free_among = getattr(slots.context.kv_block_allocator, "free_among", None)
    if free_among is not None:
        free = free_among(np.flatnonzero(slots._tracker.slot_of != _NONE))
        _check(not free, "C6", f"free blocks {free} have slots")


def _check_offsets(slots: MambaSlotAllocator) -> None:
    for row, left in slots._offsets.of_request.items():
        ascending = sorted(set(left.offsets)) == list(left.offsets) and min(left.offsets, default=1) > 0
        _check(ascending, "C8", f"row {row} has offsets {left.offsets}, not ascending and positive")
        counts = {len(left.offsets), len(left.depths), len(left.blocks)}
        _check(len(counts) == 1, "C8", f"row {row} has {left.offsets} for blocks {left.blocks}")


def check_dynamic_context(context: DynamicInferenceContext) -> None:
    """Raise if a row, a reference or a registered block of a context disagrees with the requests.

    It may be between any two calls, during a step or not. Laws: E2 (rows), E3 (references that nobody has),
    C1 (paused requests, too few blocks), C3 (registered content), X3 (stamps), and those of its allocators,
    C1-C8. Cost: O(rows * blocks + registered tokens), a digest for each registered block.
    """
    check_subject(context, DynamicInferenceContext)
    check_kv_block_allocator(context.kv_block_allocator)
    if context.mamba_slot_allocator is not None:
        check_mamba_slot_allocator(context.mamba_slot_allocator)
    _check_rows(context)
    _check_regions(context)
    _check_references(context)
    _check_stamps(context)
    for live in context._rows:
        _check_request(context, live)
    _check_content(context)


def _check_rows(context: DynamicInferenceContext) -> None:
    """Check that the table names each request's blocks and nothing else, and each has a state of its own."""
    expected = np.full((context.max_requests, context.max_blocks_per_request), _NONE, np.int32)
    for row, live in enumerate(context._rows):
        _check(live.row == row, "E2", f"the request in row {row} believes to be in row {live.row}")
        expected[row, : len(live.blocks)] = live.blocks
    table = context.request_to_kv_block_ids.numpy()
    wrong = np.flatnonzero((table != expected).any(axis=1)).tolist()
    _check(not wrong, "E2", f"rows {wrong} of the table do not name the blocks of their requests")
    state_of = context.mamba_metadata.request_to_mamba_state_idx
    held = state_of[: len(context._rows)].tolist()
    free = context._rows._free_states
    lost = sorted({*range(context.max_requests)} - {*free, *held})
    _check(not lost or len({*free, *held}) < len(free) + len(held), "E3", f"live states {lost} are lost")
    check_free_numbers("E2", "live state", range(context.max_requests), free, held)
    stale = state_of[len(context._rows) :].tolist()
    _check(set(stale) <= {_NONE}, "E2", f"rows without a request have live states {stale}")
    known = {id(live.req): live for live in context._rows}
    _check(known == context._live_by_id, "E3", "the requests in rows are not those that were added")


def _check_regions(context: DynamicInferenceContext) -> None:
    regions = [live.region for live in context._rows]
    _check(regions == sorted(regions), "E2", f"rows are out of order: {[each.name for each in regions]}")
    counts = [regions.count(region) for region in Region]
    _check(counts == context._rows._counts, "E2", f"counts are {context._rows._counts}, not {counts}")
    for live in context._rows:
        expected = {Region.PAUSED: live.region}.get(live.region, _region_of(live))
        _check(live.region is expected, "E2", f"row {live.row} is in {live.region.name}, not {expected.name}")
    paused = {block for live in context._rows.of(Region.PAUSED) for block in live.blocks}
    limit = context.kv_block_allocator.paused_limit
    _check(len(paused) <= limit, "C1", f"paused requests keep {len(paused)} blocks, the limit is {limit}")


def _region_of(live: LiveRequest) -> Region:
    if live.is_prefilled:
        return Region.DECODE
    return Region.PREFILL if live.chunk else Region.WAITING


def _check_references(context: DynamicInferenceContext) -> None:
    """Check that each block is referenced as often as requests and transfers have it."""
    counts = context.kv_block_allocator._transfers.copy()
    for live in context._rows:
        _check(len(set(live.blocks)) == len(live.blocks), "E2", f"row {live.row} has a block twice")
        counts[live.blocks] += 1
    found = context.kv_block_allocator.block_ref_counts.numpy()
    wrong = np.flatnonzero(counts != found).tolist()
    _check(not wrong, "E3", f"blocks {wrong} are referenced {found[wrong]} times, by {counts[wrong]}")


def _check_stamps(context: DynamicInferenceContext) -> None:
    """Check that no block was used later than now: recency is the context's clock and nothing else."""
    stamps, now = context.kv_block_allocator.block_timestamps.numpy(), context.prefix_cache_lru_clock
    later = np.flatnonzero((stamps < 0) | (stamps > now)).tolist()
    _check(not later, "X3", f"blocks {later} have stamps {stamps[later]}, the clock is at {now}")


def _check_request(context: DynamicInferenceContext, live: LiveRequest) -> None:
    """Check that a request has room for its chunk, and that its shared blocks are a registered path."""
    room = len(live.blocks) * context.block_size_tokens
    needed = live.computed + live.chunk
    _check(needed <= room, "C1", f"row {live.row} has room for {room} tokens and needs {needed}")
    kv = context.kv_block_allocator
    for place, block in enumerate(live.blocks[: live.matched]):
        above = live.blocks[place - 1] if place else _NONE
        known = block in kv._forest and int(kv.block_parents[block]) == above
        _check(known, "C3", f"row {live.row} shares block {block}, which is not registered below {above}")


def _check_content(context: DynamicInferenceContext) -> None:
    """Check that each registered block has the hash of its tokens and those before them."""
    kv, index = context.kv_block_allocator, context._index
    parents = kv.block_parents.tolist()
    digests: dict[int, str | None] = {_NONE: None}
    ahead = [block for block in kv._forest._children if parents[block] == _NONE]
    while ahead:
        block = ahead.pop()
        digest = index._hash_page(index._tokens[block], digests[parents[block]])
        digests[block] = digest
        value, found = block_hash(digest), int(kv.block_hashes[block])
        _check(value == found, "C3", f"block {block} holds tokens of hash {value}, registered under {found}")
        ahead.extend(kv._forest._children[block])
