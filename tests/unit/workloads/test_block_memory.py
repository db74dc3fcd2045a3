"""Tests of a measured context: it counts evictions, and its calls are timed and watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.errors import CapacityError
from pymllm.workloads.block_engine import BlockMemory, MeasuredContext
from pymllm.workloads.block_watch import BlockWatch, snapshots_of
from pymllm.workloads.engine_report import MemoryUse
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]
ContextOf = Callable[..., MeasuredContext]
MemoryOf = Callable[..., BlockMemory]


# -- a context ---------------------------------------------------------------------------------------------


def forward(batch: ForwardBatch) -> list[int | None]:
    """Compute nothing: zeros are states like others."""
    return [0] * len(batch)


def run(context: MeasuredContext, request: Request) -> BlockRequest:
    """Add a request, let it compute its prompt, and leave it there."""
    live = BlockRequest(request, place=1)
    assert context.add_request(live)
    context.note_hit(live)
    context.step(forward)
    return live


def test_a_configuration_becomes_a_context(context_of: ContextOf) -> None:
    """Sizes are those that were asked for; the dummy block comes on top."""
    context = context_of(
        capacity=50, track_slots=3, max_context=20, paused_capacity=17, eviction_policy="ref_zero"
    )
    kv, slots = context.kv_block_allocator, context.mamba_slot_allocator
    assert (kv.pool_size, kv.paused_limit, context.max_blocks_per_request) == (13, 4, 5)
    assert kv.prefix_caching_eviction_policy.value == "ref_zero"
    assert slots is not None
    assert slots.max_slots == 3
    bare = context_of(track_slots=0)
    assert bare.mamba_slot_allocator is None
    assert bare.mamba_ssm_states is not None
    assert bare.cached_states() == 0


def test_evictions_are_counted_with_what_they_took(context_of: ContextOf, ask: Ask) -> None:
    """C1, E4: exactly the missing blocks go; what is free costs no eviction, and what is referenced stays."""
    context = context_of()
    first = run(context, ask(0, 40))
    assert not context.add_request(BlockRequest(ask(2, 28), place=2))
    assert context.room() == 6
    context.release(first)
    assert (context.evict_calls, context.evicted_blocks) == (0, 0)
    run(context, ask(1, 33))
    assert (context.evict_calls, context.evicted_blocks) == (1, 3)
    assert context.evict_ns > 0


def test_a_hit_is_what_was_cached_and_what_was_restored(context_of: ContextOf, ask: Ask) -> None:
    """C3, E4: KV in whole blocks, short of the last token; computing goes on behind the last state."""
    context = context_of()
    prompt = range(100, 118)
    first = run(context, ask(0, 18, tokens=prompt))
    assert (first.cached_tokens, first.resumed_tokens, context.cached_states()) == (0, 0, 1)
    second = run(context, ask(1, 14, tokens=prompt[:14]))
    assert (second.cached_tokens, second.resumed_tokens) == (12, 0)
    third = run(context, ask(2, 18, tokens=prompt))
    assert (third.hit_tokens, third.stateless_tokens) == (16, 0)
    assert run(context, ask(3, 16, tokens=prompt[:16])).cached_tokens == 12


def test_what_a_prompt_still_takes_is_known(context_of: ContextOf, ask: Ask) -> None:
    """E4: promised blocks are those without a chunk, and a chunk counts what it computes."""
    context: Any = context_of()
    live = BlockRequest(ask(0, 18, 9), place=1)
    assert context.add_request(live, 6)
    assert (context.missing_blocks(live), context.scheduled_tokens(live)) == (3, 6)
    context.step(forward)
    assert (context.missing_blocks(live), context.scheduled_tokens(live)) == (3, 0)
    assert context.schedule_chunk(live)
    assert (context.missing_blocks(live), context.scheduled_tokens(live)) == (0, 12)
    for _ in range(5):
        context.step(forward)
    assert context.missing_blocks(live) == 0
    assert (context.blocks_for(16), context.blocks_for(17)) == (4, 5)


# -- its memory --------------------------------------------------------------------------------------------


@pytest.fixture
def memory_of(context_of: ContextOf, block_config: Callable[..., Any]) -> MemoryOf:
    """Make the memory of a context of 16 blocks of 4 tokens."""

    def make(check_every: int = 0, **changes: object) -> BlockMemory:
        context = context_of(**changes)
        watch = BlockWatch(block_config(content_check=False, **changes), context)
        return BlockMemory(context, watch, check_every)

    return make


def compute(memory: BlockMemory, *lives: BlockRequest) -> None:
    """Run a step; requests go on as far as it says."""
    batch = memory.begin(lives)
    left = snapshots_of(batch, 4)
    memory.commit(batch, [0] * len(batch), left)
    for step in batch.requests:
        step.req.length = step.start + len(step.tokens)


def added(memory: BlockMemory, *requests: Request) -> list[BlockRequest]:
    """Add requests whole, to be computed in one step."""
    lives = [BlockRequest(request, place=request.request_id) for request in requests]
    assert all(memory.add(live, live.prompt_length, reserve=0) for live in lives)
    return lives


def test_a_prompt_is_held_then_cached(memory_of: MemoryOf, ask: Ask) -> None:
    """E3: what is held cannot be evicted, what is stored is not free; each n-th operation has a look."""
    memory = memory_of(check_every=2)
    [live] = added(memory, ask(0, 18))
    assert memory.use() == MemoryUse(20, 20, 0)
    compute(memory)
    assert memory.use() == MemoryUse(20, 20, 1)
    memory.release(live)
    assert memory.use() == MemoryUse(0, 16, 1)
    assert (live.length, live.finished_chunk_token_count) == (0, 0)
    assert min(live.times.match_ns, live.times.insert_ns, live.times.lock_ns) > 0 == live.times.evict_ns
    assert (memory.counts().cache_operations, memory.counts().invariant_checks) == (4, 2)


def test_an_eviction_is_paid_by_who_needs_it(memory_of: MemoryOf, ask: Ask) -> None:
    """C1, C6: blocks and states that went are counted, and no time twice."""
    memory = memory_of()
    [first] = added(memory, ask(0, 42))
    compute(memory)
    memory.release(first)
    second = BlockRequest(ask(1, 64), place=2)
    assert memory.add(second, 4, reserve=0)
    assert second.times.evict_ns == 0
    compute(memory)
    assert memory.schedule(second, 60)
    assert second.times.evict_ns > 0
    counts = memory.counts()
    assert (counts.evict_calls, counts.evicted_tokens, counts.evicted_states) == (1, 40, 1)
    assert counts.dead_window_tokens is None


def test_a_shared_eviction_is_shared_evenly(memory_of: MemoryOf, ask: Ask) -> None:
    """X4: two requests that begin a block in one step pay half each."""
    memory = memory_of()
    [old] = added(memory, ask(9, 36))
    compute(memory)
    memory.release(old)
    lives = added(memory, ask(0, 12, 9), ask(1, 12, 9))
    compute(memory)
    added(memory, ask(5, 8))
    before = [live.times.evict_ns for live in lives]
    compute(memory, *lives)
    paid = [live.times.evict_ns - earlier for live, earlier in zip(lives, before, strict=True)]
    assert paid[0] == paid[1] > 0


def test_what_finds_no_room_is_counted_as_asked_for(memory_of: MemoryOf, ask: Ask) -> None:
    """E4, X2: whoever is refused has looked, and is told of no hit; a step without room costs nobody."""
    memory, refused = memory_of(), BlockRequest(ask(0, 18), place=1)
    assert not memory.add(refused, 18, reserve=12)
    assert refused.times.match_ns > 0
    assert (memory.counts().cache_operations, memory.changes) == (1, 0)
    half = BlockRequest(ask(1, 60), place=1)
    assert memory.add(half, 32, reserve=0)
    assert memory.context.add_request(BlockRequest(ask(2, 60), place=2), 32)
    compute(memory)
    assert not memory.schedule(half, 64)
    full = memory_of()
    lives = added(full, ask(0, 32, 9), ask(1, 32, 9))
    compute(full)
    before = full.counts()
    with pytest.raises(CapacityError):
        full.begin(lives)
    assert full.counts() == before
    assert [live.times.evict_ns for live in lives] == [0, 0]


def test_states_that_find_no_slot_are_left_out(memory_of: MemoryOf, ask: Ask) -> None:
    """C7: a commit drops what does not fit, and evicts what nobody holds."""
    memory = memory_of(track_slots=1)
    lives = added(memory, ask(0, 10), ask(1, 10))
    compute(memory)
    assert (memory.counts().skipped_snapshots, memory.counts().evicted_states) == (1, 0)
    for live in lives:
        memory.release(live)
    added(memory, ask(2, 10))
    compute(memory)
    counts = memory.counts()
    assert (counts.skipped_snapshots, counts.evicted_states, counts.evict_calls) == (1, 1, 1)


def test_what_may_help_a_waiting_request_is_a_change(memory_of: MemoryOf, ask: Ask) -> None:
    """E4: a prompt that was computed, a pause, a resumption and an exit; not a token more."""
    memory, live = memory_of(paused_capacity=32), BlockRequest(ask(0, 10, 9), place=1)
    seen = [memory.changes]
    for act in (
        lambda: memory.add(live, 10, reserve=0),
        lambda: compute(memory),
        lambda: compute(memory, live),
        lambda: memory.pause(live),
        lambda: memory.resume(live),
        lambda: memory.release(live),
    ):
        act()
        seen.append(memory.changes)
    assert seen == [0, 0, 1, 1, 2, 3, 4]
