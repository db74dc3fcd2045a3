"""White-box check of a `DynamicInferenceContext`: rows, references, and what registered blocks hold."""

from __future__ import annotations

import numpy as np

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.live_request import LiveRequest, Region
from pymllm.core.inference.contexts.prefix_index import block_hash
from pymllm.errors import InvariantViolation
from pymllm.invariants.free_numbers import check_free_numbers
from pymllm.invariants.kv_block_allocator import check_kv_block_allocator
from pymllm.invariants.mamba_slot_allocator import check_mamba_slot_allocator
from pymllm.invariants.subject import check_subject

__all__ = ["check_dynamic_context"]

_NONE = -1


def check_dynamic_context(context: DynamicInferenceContext) -> None:
    """Raise if a row, a reference or a registered block is not what the requests say.

    Parameters
    ----------
    context : DynamicInferenceContext
        Between two calls, during a step or not.

    Raises
    ------
    InvariantViolation
        Naming the law: E2 (rows), E3 (references that nobody has), C1 (paused requests, too few blocks), C3
        (registered content), X3 (stamps), or what the checks of its allocators find.
    TypeError
        It is no `DynamicInferenceContext`.

    Notes
    -----
    Cost: O(rows * blocks + registered tokens), a digest for each registered block.
    Laws: C1-C8, E2, E3, X3.
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


def _check(holds: bool, law: str, message: str) -> None:
    if not holds:
        raise InvariantViolation(law, message)


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
    """Check that each block is referenced as often as requests have it."""
    counts = np.zeros(context.kv_block_allocator.pool_size, np.int32)
    for live in context._rows:
        _check(len(set(live.blocks)) == len(live.blocks), "E2", f"row {live.row} has a block twice")
        counts[live.blocks] += 1
    found = context.kv_block_allocator.block_ref_counts.numpy()
    wrong = np.flatnonzero(counts != found).tolist()
    _check(not wrong, "E3", f"blocks {wrong} are referenced {found[wrong]} times, in {counts[wrong]} rows")


def _check_stamps(context: DynamicInferenceContext) -> None:
    """Check that no block was used later than now: recency is the context's clock and nothing else."""
    stamps, now = context.kv_block_allocator.block_timestamps.numpy(), context.prefix_cache_lru_clock
    later = np.flatnonzero((stamps < 0) | (stamps > now)).tolist()
    _check(not later, "X3", f"blocks {later} have stamps {stamps[later]}, the clock is at {now}")


def _check_request(context: DynamicInferenceContext, live: LiveRequest) -> None:
    """Check that a request has room for what it computes, and that what it shares is a registered path."""
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
