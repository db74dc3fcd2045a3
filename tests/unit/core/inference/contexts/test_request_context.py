"""Requests between steps: added, given chunks, paused, resumed, released, and refused without a trace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.core.inference.contexts.kv_block_allocator import PrefixCachingEvictionPolicy
from pymllm.errors import OwnershipError, UsageError
from pymllm.invariants.blocks import check_dynamic_context

STATES = {
    "num_mamba_layers": 2,
    "conv_states_shape": (3,),
    "ssm_states_shape": (2, 2),
    "mamba_chunk_size": 2,
    "mamba_slots": 4,
}


def make_context(**changes: Any) -> DynamicInferenceContext:
    sizes = {"max_requests": 3, "num_blocks": 9, "max_blocks_per_request": 6, "block_size_tokens": 4}
    return DynamicInferenceContext(**(sizes | changes))


def request(*tokens: int) -> SimpleNamespace:
    return SimpleNamespace(prompt_tokens=list(tokens), finished_chunk_token_count=0)


def compute(batch: ForwardBatch) -> list[int]:
    """Stand in for a model: every next token is 99."""
    return [99] * len(batch)


def finish(context: DynamicInferenceContext, *tokens: int) -> None:
    """Let a request compute its prompt and go, so that its blocks are cached."""
    req = request(*tokens)
    assert context.add_request(req)
    context.step(compute)
    context.release(req)


def trace_of(context: DynamicInferenceContext) -> tuple[Any, ...]:
    """All that a refused call must leave as it was."""
    kv = context.kv_block_allocator
    return (
        context.prefix_cache_lru_clock,
        context.requests,
        context.request_to_kv_block_ids.tolist(),
        context.mamba_metadata.request_to_mamba_state_idx.tolist(),
        kv._free[: kv.pool_avail].tolist(),
        kv.block_ref_counts.tolist(),
        kv.block_hashes.tolist(),
        kv.block_timestamps.tolist(),
        kv.evictable_blocks,
    )


def test_a_context_offers_what_the_slot_allocator_reads(device: torch.device) -> None:
    """Specification, blocks: shapes, dtypes and devices; trackers on the host."""
    context = make_context(**STATES, device=device, conv_states_dtype=torch.float16)
    assert context.request_to_kv_block_ids.shape == (3, 6)
    assert context.request_to_kv_block_ids.dtype is torch.int32
    assert context.mamba_conv_states is not None
    assert context.mamba_ssm_states is not None
    assert context.mamba_conv_states.shape == (2, 3, 3)
    assert context.mamba_ssm_states.shape == (2, 3, 2, 2)
    assert (context.mamba_conv_states.dtype, context.mamba_ssm_states.dtype) == (torch.float16, torch.float32)
    assert context.mamba_ssm_states.device.type == device.type
    assert context.request_to_kv_block_ids.device.type == "cpu"
    assert context.mamba_slot_allocator is not None
    assert context.mamba_slot_allocator.max_slots == 4
    assert context.prefix_caching_eviction_policy is PrefixCachingEvictionPolicy.LRU
    assert (context.paused_request_count, context.mamba_metadata.intermediate_count) == (0, 0)


@pytest.mark.notices("B115-requests")
@pytest.mark.parametrize(("length", "computed_from"), [(8, 4), (9, 8), (4, 0), (5, 4), (3, 0)])
def test_a_full_hit_leaves_a_token_to_compute(length: int, computed_from: int) -> None:
    """E4: what is skipped ends before the last token of the prompt."""
    context = make_context()
    finish(context, *range(12))
    context.add_request(request(*range(length)))
    (step,) = context.begin_step().requests
    assert step.start == computed_from
    assert step.tokens.tolist() == list(range(computed_from, length))


@pytest.mark.notices("B188")
def test_a_request_resumes_from_the_deepest_state_and_shares_all_kv() -> None:
    """E1, C7: the live state is the cached one; deeper KV without a state is shared and computed again."""
    context = make_context(**STATES)
    slots = context.mamba_slot_allocator
    assert slots is not None
    finish(context, *range(12))
    kv_blocks = context.kv_block_allocator.block_hashes.nonzero().flatten().tolist()
    assert kv_blocks
    table = [slots.has_state(block) for block in range(3)]
    assert table == [False, True, True], "before the end of the chunk, and the end of the prompt"
    slots.conv_states[:, slots.get_slot(1)] = 7
    context.add_request(request(*range(12)), 2)
    (step,) = context.begin_step().requests
    assert step.start == 8
    assert step.kv_slots.tolist() == [8 * 4, 8 * 4 + 1], "the third block is shared"
    assert context.mamba_conv_states is not None
    assert (context.mamba_conv_states[:, step.state_idx] == 7).all()


@pytest.mark.notices("B76-requests")
def test_a_restore_that_fails_is_no_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """C7, E1, B76: the request computes everything, from zeros."""
    context = make_context(**STATES)
    finish(context, *range(8))
    monkeypatch.setattr(context.mamba_slot_allocator, "restore_to_live", lambda request_idx, block_id: False)
    context.add_request(request(*range(8), 9))
    assert context.begin_step().requests[0].start == 0


@pytest.mark.parametrize("without", [{"enable_prefix_caching": False}, {**STATES, "mamba_slots": 0}])
def test_without_a_cache_every_prompt_is_computed_from_its_first_token(without: dict[str, Any]) -> None:
    """C3, C7: no hash is looked up, or no state was kept to go on from."""
    context = make_context(**without)
    finish(context, *range(9))
    context.add_request(request(*range(9)))
    assert context.begin_step().requests[0].start == 0


def test_paused_requests_keep_no_more_blocks_than_allowed() -> None:
    """C1: who would is told so, and stays where it was."""
    context = make_context(paused_limit=3)
    context.add_request(short := request(1))
    context.add_request(long := request(*range(9)))
    assert context.pause(short)
    before = trace_of(context)
    assert not context.pause(long)
    assert trace_of(context) == before


@pytest.mark.notices("B121-blocks")
@pytest.mark.parametrize("prompt", [range(20), [*range(8), *range(50, 62)]])
def test_a_request_that_finds_no_room_leaves_no_trace(prompt: Any) -> None:
    """X4, E3: no reference to what it matched, no row, no age; E4: it fits once there is room."""
    context = make_context(**STATES, num_blocks=8)
    finish(context, *range(8))
    holder = request(*range(30, 42))
    assert context.add_request(holder)
    context.step(compute)
    before = trace_of(context)
    assert context.add_request(req := request(*prompt)) is False
    assert trace_of(context) == before
    check_dynamic_context(context)
    context.release(holder)
    assert context.add_request(req)
    check_dynamic_context(context)


@pytest.mark.notices("B245")
@pytest.mark.parametrize(
    ("prompt", "most"),
    [
        (range(10, 29), 3),  # nothing of it is cached: 5 of 8 blocks
        (range(9), 5),  # its first two blocks are found, and no longer there to be evicted
        (range(8), 6),
    ],
)
def test_whoever_would_touch_the_reserve_is_not_taken_up(prompt: range, most: int) -> None:
    """E4: the whole prompt counts and not the first chunk only; what is shared is held, and is no room."""
    context = make_context()
    finish(context, *range(8))
    before = trace_of(context)
    assert not context.add_request(request(*prompt), 1, reserve=most + 1)
    assert trace_of(context) == before
    req = request(*prompt)
    assert context.add_request(req, 1, reserve=most)
    while context.waiting_requests or context.batch_dimensions.prefill_req_count:
        context.step(compute)
        for waiting in context.waiting_requests:
            assert context.schedule_chunk(waiting, 1)
    kv = context.kv_block_allocator
    assert kv.pool_avail + kv.evictable_blocks == most
    context.release(req)
    check_dynamic_context(context)


def test_a_prompt_that_the_pool_can_never_hold_is_refused() -> None:
    """E4: False means later; this would be never."""
    with pytest.raises(ValueError, match="needs 5 blocks, a request may have 4"):
        make_context(num_blocks=5).add_request(request(*range(17)))


@pytest.mark.notices("B164-blocks", shows_as=OwnershipError)
def test_what_was_found_is_not_evicted_to_make_room() -> None:
    """X6, B164: the match is held before anything is allocated."""
    context = make_context(num_blocks=5)
    finish(context, *range(8))
    finish(context, *range(50, 58))
    assert context.add_request(request(*range(8), *range(70, 78)))
    (step,) = context.begin_step().requests
    assert step.start == 8
    assert len(set(step.blocks)) == 4
    check_dynamic_context(context)


@pytest.mark.parametrize("act", ["add_request", "schedule_chunk", "pause", "resume", "release", "begin_step"])
def test_an_observer_moves_no_request(act: str) -> None:
    """X6: while blocks are dropped for one request, a call for another is refused and changes nothing."""
    context = make_context(num_blocks=4, paused_limit=8)
    finish(context, *range(8))
    context.add_request(other := request(70))
    before: list[tuple[Any, ...]] = []

    def meddle(blocks: list[int], hashes: set[int]) -> None:
        before.append(trace_of(context))
        getattr(context, act)(*([] if act == "begin_step" else [other]))

    context.kv_block_allocator.on_blocks_deregistered = meddle
    with pytest.raises(RuntimeError) as raised:
        context.add_request(request(*range(50, 58)))
    assert str(raised.value) == (
        f"{act} was called from inside on_blocks_deregistered, which may only read: "
        "act after the call that it was told about"
    )
    ((clock, requests, *_),) = before
    assert (clock, len(requests)) == (context.prefix_cache_lru_clock + 1, 2), "in the middle of another call"
    assert context.requests == [other]
    check_dynamic_context(context)


@pytest.mark.notices("B104-blocks", shows_as=OwnershipError)
@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_every_exit_gives_everything_back(steps: int) -> None:
    """E3: queued, between chunks, in decode, paused; then the pool owns all."""
    context = make_context(**STATES, paused_limit=8)
    reqs = [request(*range(n, n + 7)) for n in (0, 20)]
    for req in reqs:
        assert context.add_request(req, 3)
    for _ in range(steps):
        context.step(compute)
        for req in context.waiting_requests:
            context.schedule_chunk(req, 3)
    context.pause(reqs[0])
    for req in reqs:
        context.release(req)
        check_dynamic_context(context)
    kv = context.kv_block_allocator
    assert kv.pool_avail + kv.evictable_blocks == 8
    assert kv.allocate_memory_blocks(8) is not None
    assert context.mamba_slot_allocator is not None
    assert context.mamba_slot_allocator.free_count == 4


# -- tails ---------------------------------------------------------------------------------------------------


def decoded(context: DynamicInferenceContext, prompt: tuple[int, ...], *tokens: int) -> SimpleNamespace:
    """Return a request that has computed its prompt and all but the last of some tokens."""
    req = request(*prompt)
    assert context.add_request(req)
    for token in tokens:
        context.step(lambda batch, token=token: [token] * len(batch))
    return req


def row_of(context: DynamicInferenceContext, req: SimpleNamespace) -> list[int]:
    """Return the blocks in a request's row."""
    row = context.request_to_kv_block_ids[context.requests.index(req)].tolist()
    return [block for block in row if block >= 0]


def hit_of(context: DynamicInferenceContext, *prompt: int) -> int:
    """Return how many tokens of a prompt are found in the cache."""
    req = request(*prompt)
    assert context.add_request(req)
    found = context._live_by_id[id(req)].matched * context.block_size_tokens
    context.release(req)
    return found


@pytest.mark.notices("B291")
def test_a_lone_decode_has_its_own_blocks_and_not_those_of_the_last_one() -> None:
    """E2: as many blocks, and the first is the same, which both prompts begin with."""
    context = make_context(paused_limit=2)
    first = decoded(context, (1, 2, 3, 4, 5), 6, 7)
    assert context.pause(first)
    second = decoded(context, (1, 2, 3, 4, 9), 6)
    (step,) = context.step(compute).requests
    assert (row_of(context, first), row_of(context, second)) == ([0, 1], [0, 2])
    assert (step.req, step.blocks, step.kv_slots.tolist()) == (second, (0, 2), [2 * 4 + 1])


@pytest.mark.notices("B290")
def test_a_block_that_is_cut_and_written_again_is_not_found_by_its_old_tokens() -> None:
    """C3, E1: 99 made the block whole and got it a hash; 11 takes its place."""
    context = make_context()
    req = decoded(context, (1, 2, 3), 99, 5)
    assert hit_of(context, 1, 2, 3, 99, 7) == 4
    context.truncate(req, 3, 11)
    assert hit_of(context, 1, 2, 3, 99, 7) == 0, "nor before it is written"
    (step,) = context.step(compute).requests
    assert (step.start, step.tokens.tolist(), step.blocks) == (3, [11], (0,))
    assert hit_of(context, 1, 2, 3, 99, 7) == 0
    assert hit_of(context, 1, 2, 3, 11, 7) == 4
    check_dynamic_context(context)


@pytest.mark.parametrize("policy", ["lru", "ref_zero"])
@pytest.mark.parametrize(("kept", "cached", "found"), [(4, 2, 12), (5, 0, 4), (11, 0, 8), (13, 0, 12)])
def test_rejected_drafts_of_several_blocks_give_them_back(
    kept: int, cached: int, found: int, policy: str
) -> None:
    """C1, C3, E3: a block behind the cut is cached with its content, unless one above it is written again."""
    context = make_context(prefix_caching_eviction_policy=PrefixCachingEvictionPolicy(policy))
    blocks = context.kv_block_allocator
    req = decoded(context, (1, 2, 3), *range(20, 31))
    assert row_of(context, req) == [0, 1, 2, 3]
    told: list[list[int]] = []
    blocks.on_blocks_deregistered = lambda ids, hashes: told.append(sorted(ids))
    context.truncate(req, kept, 7)
    own = -(-kept // 4)
    is_caching = policy == "lru"
    assert row_of(context, req) == list(range(own))
    assert blocks.evictable_blocks == cached * is_caching
    assert blocks.pool_avail == 8 - own - cached * is_caching
    gone = {*range(own + cached * is_caching, 4)} | ({kept // 4} if kept in (5, 11) else set())
    assert told == ([sorted(gone)] if gone else [])
    assert hit_of(context, 1, 2, 3, *range(20, 31)) == (found if is_caching else min(found, kept // 4 * 4))
    check_dynamic_context(context)
    context.release(req)
    check_dynamic_context(context)
    assert blocks.pool_avail + blocks.evictable_blocks == 8


def test_what_hangs_below_a_block_that_is_cut_goes_with_it() -> None:
    """C1, C3, C6: a longer prompt had built on the block, and left a state at its end."""
    context = make_context(**STATES)
    slots = context.mamba_slot_allocator
    assert slots is not None
    req = decoded(context, (1, 2, 3), 99, 5)
    finish(context, 1, 2, 3, 99, 4, 5, 6, 7)
    assert [slots.has_state(block) for block in range(2)] == [True, True]
    context.truncate(req, 3, 11)
    assert [slots.has_state(block) for block in range(2)] == [False, False]
    assert slots.free_count == slots.max_slots
    assert context.kv_block_allocator.pool_avail == 7
    assert hit_of(context, 1, 2, 3, 99, 4, 5, 6, 7) == 0
    check_dynamic_context(context)


def test_a_state_before_the_cut_stays() -> None:
    """C6, C7: a prompt of whole blocks left it at its end."""
    context = make_context(**STATES)
    slots = context.mamba_slot_allocator
    assert slots is not None
    req = decoded(context, (1, 2, 3, 4), 5, 6, 7)
    assert slots.has_state(0)
    context.truncate(req, 4, 9)
    assert slots.has_state(0)
    assert hit_of(context, 1, 2, 3, 4, 8) == 4


def test_a_block_that_others_read_is_not_cut() -> None:
    """X1, E1: its KV is theirs; where it ends, or behind it, a cut takes nothing from anybody."""
    context = make_context()
    req, other = decoded(context, (1, 2, 3), 99, 5), request(1, 2, 3, 99, 4)
    assert context.add_request(other)
    before = trace_of(context)
    with pytest.raises(UsageError, match="2 requests have block 0, in which token 3 would be replaced"):
        context.truncate(req, 3, 11)
    assert trace_of(context) == before
    context.truncate(req, 4, 6)
    assert hit_of(context, 1, 2, 3, 99) == 4
    context.release(other)
    context.truncate(req, 3, 11)
    assert hit_of(context, 1, 2, 3, 99) == 0
    check_dynamic_context(context)


def test_a_request_that_had_a_block_too_many_is_known_again_once_that_is_cut() -> None:
    """C3: what it computes behind the cut is registered, as its blocks before are."""
    context = make_context()
    finish(context, 1, 2, 3, 4)
    decoded(context, (1, 2, 3), 4, 5, 6)
    req = context.requests[0]
    assert context.kv_block_allocator.block_hashes[row_of(context, req)[0]] == -1, "another has the hash"
    context.truncate(req, 3, 9)
    context.step(compute)
    assert hit_of(context, 1, 2, 3, 9) == 4
    check_dynamic_context(context)


def test_a_paused_request_stays_paused_when_it_is_cut() -> None:
    """C1, E2: its blocks count less, and it goes on with the new token."""
    context = make_context(paused_limit=3)
    req = decoded(context, (1, 2, 3), *range(20, 27))
    assert context.pause(req)
    context.truncate(req, 5, 8)
    assert context.paused_request_count == 1
    other = decoded(context, (9,), 8)
    assert context.pause(other)
    context.resume(req)
    (step,) = context.step(compute).requests
    assert (step.start, step.tokens.tolist(), len(step.blocks)) == (5, [8], 2)
    check_dynamic_context(context)


# -- transfers -----------------------------------------------------------------------------------------------


@pytest.mark.notices("B265", "B266-requests")
def test_blocks_of_a_request_under_transfer_outlive_it() -> None:
    """C1: an aborted request leaves them to the transfer, and its end gives them back."""
    context = make_context()
    req = request(*range(1, 17))
    assert context.add_request(req)
    context.step(compute)
    transfer = context.begin_transfer(req)
    allocator = context.kv_block_allocator
    assert allocator.block_ref_counts[:4].tolist() == [2] * 4
    context.release(req)
    assert (allocator.pool_avail, allocator.evictable_blocks) == (4, 0)
    assert allocator.block_ref_counts[:4].tolist() == [1] * 4
    check_dynamic_context(context)
    assert not context.add_request(request(*range(100, 120)))
    context.end_transfer(transfer)
    assert (allocator.pool_avail, allocator.evictable_blocks) == (4, 4)
    check_dynamic_context(context)
    assert context.add_request(request(*range(100, 120)))
    with pytest.raises(OwnershipError, match=f"transfer {transfer} is not under way"):
        context.end_transfer(transfer)


def test_a_transfer_begins_and_ends_between_steps() -> None:
    """X1: of a request that is here, and not while a step is under way."""
    context = make_context()
    req = request(1, 2, 3)
    with pytest.raises(UsageError):
        context.begin_transfer(req)
    assert context.add_request(req)
    transfer = context.begin_transfer(req)
    context.begin_step()
    for call in (lambda: context.begin_transfer(req), lambda: context.end_transfer(transfer)):
        with pytest.raises(RuntimeError, match="step"):
            call()
    context.abort_step()
    context.end_transfer(transfer)
    check_dynamic_context(context)
