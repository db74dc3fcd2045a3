"""A measured context does what a context does, and counts what it evicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.workloads.block_memory import MeasuredContext
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]
ContextOf = Callable[..., MeasuredContext]


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
    """C1: exactly the missing blocks go, and what the pool has free costs no eviction."""
    context = context_of()
    context.release(run(context, ask(0, 40)))
    assert (context.evict_calls, context.evicted_blocks, context.evict_ns) == (0, 0, 0)
    live = run(context, ask(1, 33))
    assert (context.evict_calls, context.evicted_blocks) == (1, 3)
    assert context.evict_ns > 0
    context.release(live)


def test_an_eviction_that_cannot_be_is_none(context_of: ContextOf, ask: Ask) -> None:
    """E4: what is referenced stays, and nothing is counted."""
    context = context_of()
    run(context, ask(0, 40))
    assert not context.add_request(BlockRequest(ask(1, 28), place=2))
    assert (context.evict_calls, context.evicted_blocks, context.room()) == (0, 0, 6)


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
    aligned = run(context, ask(3, 16, tokens=prompt[:16]))
    assert aligned.cached_tokens == 12


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
    context.step(forward)
    for _ in range(4):
        context.step(forward)
    assert context.missing_blocks(live) == 0
    assert (context.blocks_for(16), context.blocks_for(17)) == (4, 5)
