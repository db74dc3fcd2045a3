"""Steps of a context: what a batch is, what a commit takes over, and what an abort leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.invariants.blocks import check_dynamic_context


def make_context(**changes: Any) -> DynamicInferenceContext:
    sizes = {
        "max_requests": 4,
        "num_blocks": 13,
        "max_blocks_per_request": 4,
        "block_size_tokens": 4,
        "num_mamba_layers": 1,
        "conv_states_shape": (2,),
        "ssm_states_shape": (2,),
        "mamba_chunk_size": 2,
        "mamba_slots": 8,
        "paused_limit": 4,
    }
    return DynamicInferenceContext(**(sizes | changes))


def request(*tokens: int) -> SimpleNamespace:
    return SimpleNamespace(prompt_tokens=list(tokens), finished_chunk_token_count=0)


def count_up(batch: ForwardBatch) -> list[int]:
    """Each next token is one more than the last that was computed."""
    return [int(step.tokens[-1]) + 1 for step in batch.requests]


def test_a_batch_is_decoding_requests_and_then_chunks() -> None:
    """Specification, blocks: rows [paused | decode | prefill | waiting], outputs packed behind each other."""
    context = make_context()
    decoding, paused = request(1), request(2)
    for req in (decoding, paused):
        context.add_request(req)
    context.step(count_up)
    context.pause(paused)
    context.add_request(long := request(*range(10, 22)))
    context.add_request(other := request(*range(30, 39)))
    batch = context.begin_step()
    assert [step.req for step in batch.requests] == [decoding, long, other]
    assert [step.row for step in batch.requests] == [1, 2, 3]
    assert [step.tokens.tolist() for step in batch.requests] == [[2], [*range(10, 22)], [*range(30, 39)]]
    assert [step.offsets for step in batch.requests] == [(), (8,), (8,)]
    assert [step.first_output for step in batch.requests] == [0, 0, 1]
    rows_of_states = context.mamba_metadata.request_to_mamba_state_idx.tolist()
    assert sorted(rows_of_states) == [0, 1, 2, 3]
    assert [step.state_idx for step in batch.requests] == rows_of_states[1:]
    assert [step.is_sampled for step in batch.requests] == [True, True, True]
    assert [step.start for step in batch.requests] == [1, 0, 0]
    assert context.mamba_metadata.per_request_intermediate_counts == [1, 1]
    assert context.mamba_metadata.intermediate_count == 2
    assert (context.batch_dimensions.decode_req_count, context.batch_dimensions.prefill_req_count) == (1, 2)
    check_dynamic_context(context)
    context.commit_step([3, 22, 39])
    check_dynamic_context(context)
    assert context.mamba_metadata.intermediate_count == 0
    slots = context.mamba_slot_allocator
    assert slots is not None
    assert [slots.has_state(block) for block in batch.requests[1].blocks] == [False, True, True]
    assert [slots.has_state(block) for block in batch.requests[2].blocks] == [False, True, False]


@pytest.mark.notices("B79-requests")
def test_a_step_without_requests_wipes_nothing() -> None:
    """C1, C4, B79: an idle step leaves blocks and states cached."""
    context = make_context()
    context.add_request(req := request(*range(8)))
    context.step(count_up)
    context.release(req)
    kv, slots = context.kv_block_allocator, context.mamba_slot_allocator
    assert slots is not None
    known, states = dict(kv.kv_hash_to_block_id), dict(slots.hash_to_block_id)
    assert len(context.step(count_up)) == 0
    assert (kv.kv_hash_to_block_id, slots.hash_to_block_id) == (known, states)
    assert known
    assert states


@pytest.mark.notices("B130")
def test_nothing_is_registered_before_it_is_computed() -> None:
    """C3, B130: equal prompts of one batch share nothing, and the first of them is registered."""
    context = make_context()
    context.add_request(one := request(*range(8)))
    context.add_request(request(*range(8)))
    assert context.kv_block_allocator.kv_hash_to_block_id == {}
    batch = context.step(count_up)
    known = sorted(context.kv_block_allocator.kv_hash_to_block_id.values())
    assert known == sorted(batch.requests[0].blocks)
    assert batch.requests[0].req is one
    check_dynamic_context(context)


def test_a_forward_pass_may_reset_the_context_and_fail() -> None:
    """X2: its own error comes out; there is no step to abort any more."""
    context = make_context()
    context.add_request(request(1, 2))

    def fail(batch: ForwardBatch) -> list[int]:
        context.reset()
        raise MemoryError("no room on the device")

    with pytest.raises(MemoryError, match="no room"):
        context.step(fail)
    check_dynamic_context(context)
    assert context.requests == []


def test_a_chunk_without_offsets_leaves_no_state_behind() -> None:
    """C8: those of a chunk are known from the start of its step."""
    context = make_context()
    slots = context.mamba_slot_allocator
    assert slots is not None
    context.add_request(request(*range(8)))
    context.add_request(request(1))
    assert slots.intermediate_offsets() == [(), ()]
    context.begin_step()
    assert slots.intermediate_offsets() == [(4,), ()]


def test_a_step_that_cannot_begin_frees_the_blocks_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2, C6: nobody can use them, and nobody has to give them back."""
    context = make_context()
    context.add_request(request(*range(4)))
    context.step(count_up)
    kv = context.kv_block_allocator
    free = kv.free_among(range(kv.pool_size))

    def fail(*arguments: object) -> None:
        raise MemoryError("no room on the host")

    context.add_request(request(*range(10, 18)))
    added = kv.free_among(range(kv.pool_size))
    monkeypatch.setattr(context.mamba_slot_allocator, "compute_and_store_offsets", fail)
    with pytest.raises(MemoryError, match="no room"):
        context.begin_step()
    assert len(added) == len(free) - 2
    assert kv.free_among(range(kv.pool_size)) == added
    assert kv.block_ref_counts[added].tolist() == [0] * len(added)


def test_a_forward_pass_that_resets_the_context_has_nothing_to_commit() -> None:
    """X7: the error names the reset, and the context is a new one."""
    context = make_context()
    context.add_request(request(1, 2))

    def start_anew(batch: ForwardBatch) -> list[int]:
        context.reset()
        return [3]

    with pytest.raises(RuntimeError, match="ended its own step, with reset"):
        context.step(start_anew)
    check_dynamic_context(context)
    assert context.requests == []


def test_a_hash_function_that_fails_leaves_a_sound_context() -> None:
    """X2: blocks of requests before it are registered, which is true of them, and no token is counted."""
    fails = False

    def hash_page(tokens: np.ndarray, prior: str | None) -> str:
        if fails and int(tokens[0]) == 54:
            raise OSError("the hash service is down")
        return f"{int(tokens[0]) + 1:016x}"

    context = make_context(hash_page=hash_page)
    one, two = request(*range(4)), request(*range(50, 58))
    context.add_request(one)
    context.add_request(two)
    fails = True
    with pytest.raises(OSError, match="down"):
        context.step(count_up)
    check_dynamic_context(context)
    assert one.finished_chunk_token_count == 0
    assert len(context.kv_block_allocator.kv_hash_to_block_id) == 1
    fails = False
    context.step(count_up)
    assert len(context.kv_block_allocator.kv_hash_to_block_id) == 3
    check_dynamic_context(context)


@pytest.mark.parametrize("slots", [0, 8])
def test_reset_makes_a_new_context(slots: int) -> None:
    """C9, X7: in the middle of a step, bit for bit; the same requests then get the same blocks."""
    layers = 1 if slots else 0
    context, new = (make_context(mamba_slots=slots, num_mamba_layers=layers) for _ in range(2))
    for reused in (context, new):
        req = request(*range(9))
        reused.add_request(req, 5)
        reused.step(count_up)
        if reused is context:
            reused.schedule_chunk(req)
            reused.begin_step()
            for states in (reused.mamba_conv_states, reused.mamba_ssm_states):
                if states is not None:
                    states.fill_(3)
            reused.reset()
            check_dynamic_context(reused)
            assert reused.prefix_cache_lru_clock == 0
            assert (reused.requests, reused.kv_block_allocator.pool_avail) == ([], 12)
            for states in (reused.mamba_conv_states, reused.mamba_ssm_states):
                assert states is None or not states.any()
            assert reused.add_request(request(*range(9)), 5)
            reused.step(count_up)
    assert torch.equal(context.request_to_kv_block_ids, new.request_to_kv_block_ids)
    assert torch.equal(context.kv_block_allocator.block_timestamps, new.kv_block_allocator.block_timestamps)
