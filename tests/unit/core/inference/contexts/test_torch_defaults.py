"""Tests of a block context under other default devices and dtypes of torch, which change nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts import request_context, slot_states
from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.mem_cache.arguments import as_row_dtype
from pymllm.mem_cache.uploads import constant_index, row_index

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("other_defaults")


def test_blocks_are_on_the_host() -> None:
    """C1: int32, on the CPU."""
    allocator = KVBlockAllocator(SimpleNamespace(prefix_cache_lru_clock=0), 5)
    blocks = allocator.allocate_memory_blocks(2)
    assert blocks is not None
    assert (blocks.device, blocks.dtype, blocks.tolist()) == (CPU, torch.int32, [0, 1])
    allocator.release_memory_blocks([0])
    assert allocator.block_ref_counts.tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("make", [row_index, constant_index])
def test_an_index_is_where_it_was_asked_for(make: Callable[..., torch.Tensor]) -> None:
    """C7: int64, on the device of what it will index."""
    index = make(np.array([4, 2]), CPU)
    assert (index.device, index.dtype, index.tolist()) == (CPU, torch.int64, [4, 2])


def make_context() -> DynamicInferenceContext:
    return DynamicInferenceContext(
        max_requests=2,
        num_blocks=9,
        max_blocks_per_request=4,
        block_size_tokens=4,
        mamba_chunk_size=2,
        num_mamba_layers=2,
        conv_states_shape=(3,),
        ssm_states_shape=(2, 2),
        mamba_slots=2,
    )


def request() -> SimpleNamespace:
    return SimpleNamespace(prompt_tokens=list(range(9)), finished_chunk_token_count=0)


def test_states_are_where_their_slots_are() -> None:
    """C7: stored, restored and written layer by layer."""
    context = make_context()
    slots = context.mamba_slot_allocator
    assert slots is not None
    assert context.add_request(request())
    assert context.add_request(request())
    assert slots.allocate_slots_batch([0, 1]) == [0, 1]
    slots.store_from_live_batch([0, 1], [0, 1])
    slots.store_from_live_batch([1], [0])
    assert slots.restore_to_live(1, 0)
    ssm = torch.ones(2, 2, dtype=torch.float32, device="cpu")
    slots.store_from_tensors(0, 1, ssm, torch.ones(3, dtype=torch.float32, device="cpu"))
    assert slots.ssm_states[1].tolist() == [[[1, 1], [1, 1]], [[0, 0], [0, 0]]]
    assert slots.conv_states[1].tolist() == [[1, 1, 1], [0, 0, 0]]
    for states in (slots.intermediate_conv_out, slots.intermediate_ssm_out):
        assert (states.device, states.dtype) == (CPU, torch.float32)


def test_a_request_runs_where_its_context_is() -> None:
    """C7, C8, C9: with cached states and snapshots, from its prompt to its end."""
    context = make_context()
    assert context.mamba_conv_states is not None
    assert (context.mamba_conv_states.device, context.mamba_conv_states.dtype) == (CPU, torch.float32)
    assert context.mamba_slot_allocator is not None
    starts = []
    for _ in range(2):
        req = request()
        assert context.add_request(req)
        batch = context.begin_step()
        starts.append(batch.requests[0].start)
        offsets, counts = context.mamba_slot_allocator.get_intermediate_gpu_data()
        if offsets is not None:
            assert counts is not None
            assert (offsets.device, offsets.dtype, counts.tolist()) == (CPU, torch.int32, [1])
        context.commit_step([1])
        context.step(lambda batch: [1])
        context.release(req)
    assert starts == [0, 8]
    context.reset()
    assert not context.mamba_conv_states.any()


def test_whether_rows_can_be_read_is_asked_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """C7: another device may read other dtypes by index."""
    asked: list[tuple[torch.dtype, str]] = []

    def ask(dtype: torch.dtype, device: torch.device) -> torch.dtype:
        asked.append((dtype, device.type))
        return as_row_dtype(dtype, device)

    for module in (request_context, slot_states):
        monkeypatch.setattr(module, "as_row_dtype", ask)
    DynamicInferenceContext(
        max_requests=2,
        num_blocks=9,
        max_blocks_per_request=4,
        block_size_tokens=4,
        num_mamba_layers=1,
        conv_states_shape=(3,),
        ssm_states_shape=(2, 2),
        conv_states_dtype=torch.float16,
        mamba_slots=2,
        device="meta",
    )
    assert asked == [(torch.float16, "meta"), (torch.float32, "meta")] * 2
