"""What a call means that names only what it must, and what objects say about themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import plan_step
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator

DEFAULTS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (
        KVBlockAllocator,
        {
            "paused_limit": 0,
            "enable_prefix_caching": True,
            "prefix_caching_eviction_policy": PrefixCachingEvictionPolicy.LRU,
        },
    ),
    (KVBlockAllocator.register_kv_block_hashes, {"parent_hashes": None}),
    (MambaSlotAllocator, {"fused": None}),
    (
        DynamicInferenceContext,
        {
            "mamba_chunk_size": 128,
            "mamba_slots": 0,
            "num_mamba_layers": 0,
            "conv_states_shape": (),
            "ssm_states_shape": (),
            "conv_states_dtype": torch.float32,
            "ssm_states_dtype": torch.float32,
            "prefix_caching_eviction_policy": PrefixCachingEvictionPolicy.LRU,
            "enable_prefix_caching": True,
            "paused_limit": 0,
            "hash_page": None,
            "device": "cpu",
        },
    ),
    (DynamicInferenceContext.add_request, {"max_tokens": None, "reserve": None}),
    (DynamicInferenceContext.schedule_chunk, {"max_tokens": None}),
    (plan_step, {"offsets": (), "first_output": 0}),
]


@pytest.mark.parametrize(("call", "defaults"), DEFAULTS, ids=[call.__qualname__ for call, _ in DEFAULTS])
def test_what_is_left_out_has_its_documented_value(
    call: Callable[..., Any], defaults: dict[str, Any]
) -> None:
    """X1: a caller who relies on a default gets just that one."""
    parameters = inspect.signature(call).parameters.values()
    found = {it.name: it.default for it in parameters if it.default is not inspect.Parameter.empty}
    assert found == defaults
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in defaults.items()
    }


def test_objects_say_what_they_are(make_context: Callable[..., Any]) -> None:
    """Section 8: sizes, policy, and how much is left, in one line."""
    slots = make_context().slots
    slots.allocate_slots_batch([2])
    assert repr(slots) == "MambaSlotAllocator(max_slots=3, num_mamba_layers=2, device='cpu', free_count=2)"
    allocator = KVBlockAllocator(SimpleNamespace(prefix_cache_lru_clock=0), 9)
    allocator.allocate_memory_blocks(3)
    allocator.register_kv_block_hashes([0], [5])
    allocator.release_memory_blocks([0, 1])
    shown = "KVBlockAllocator(pool_size=9, policy='lru', pool_avail=6, evictable=1)"
    assert repr(allocator) == shown
    context = DynamicInferenceContext(
        max_requests=3, num_blocks=9, max_blocks_per_request=3, block_size_tokens=4
    )
    context.add_request(SimpleNamespace(prompt_tokens=[1], finished_chunk_token_count=0))
    blocks = "KVBlockAllocator(pool_size=9, policy='lru', pool_avail=7, evictable=0)"
    assert repr(context) == f"DynamicInferenceContext(requests=1 of 3, {blocks}, None)"
    assert repr(context.batch_dimensions) == "BatchDimensions(decode_req_count=0, prefill_req_count=1)"
    assert repr(PrefixCachingEvictionPolicy.REF_ZERO) == "PrefixCachingEvictionPolicy.REF_ZERO"


def test_tables_have_their_documented_dtypes(make_context: Callable[..., Any]) -> None:
    """Section 8: whoever reads them on a device counts on the width."""
    slots = make_context().slots
    context = DynamicInferenceContext(
        max_requests=3, num_blocks=9, max_blocks_per_request=3, block_size_tokens=4
    )
    blocks = context.kv_block_allocator
    narrow = [
        blocks.block_ref_counts,
        blocks.block_parents,
        context.request_to_kv_block_ids,
        context.mamba_metadata.request_to_mamba_state_idx,
        slots.block_to_slot,
        slots.slot_to_block,
        slots.free_slots,
    ]
    assert {table.dtype for table in narrow} == {torch.int32}
    assert {table.dtype for table in (blocks.block_hashes, blocks.block_timestamps)} == {torch.int64}
    shapes = [list(table.shape) for table in narrow]
    assert shapes == [[9], [9], [3, 3], [3], [9], [3], [3]]
