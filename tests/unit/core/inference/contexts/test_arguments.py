"""Tests of arguments of calls: the accepted values, the documented defaults, and the text of objects."""

from __future__ import annotations

import enum
import inspect
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import plan_step
from pymllm.core.inference.contexts.host_numbers import host_array, host_integers
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.core.inference.contexts.registered_blocks import PrefixCachingEvictionPolicy, is_lru


def test_host_memory_is_seen_not_copied() -> None:
    """A change of the tensor is seen in the array, which is no copy."""
    tensor = torch.arange(3, dtype=torch.int32)
    view = host_array(tensor)
    tensor[0] = 7
    assert view.tolist() == [7, 1, 2]
    assert host_array([1, 2]).tolist() == [1, 2]


def test_numbers_elsewhere_come_to_the_host() -> None:
    """Specification, blocks: a context may keep its tables where it likes."""

    class Far(torch.Tensor):
        is_cpu = False

        def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
            return torch.tensor([4, 2], dtype=torch.int32)

    found = host_array(torch.zeros(2, dtype=torch.int32).as_subclass(Far))
    assert (found.dtype, found.tolist()) == (np.int32, [4, 2])


@pytest.mark.gpu
def test_a_tensor_of_a_gpu_is_read() -> None:
    """Specification, blocks: a context may keep its tables on its device."""
    tensor = torch.arange(3, dtype=torch.int32, device="cuda")
    assert host_array(tensor).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "values",
    [
        [0, 3],
        (0, 3),
        range(0, 6, 3),
        array("q", [0, 3]),
        np.array([0, 3], np.uint8),
        np.array([[0], [3]]),
        torch.tensor([[0, 3]], dtype=torch.int16),
    ],
)
def test_integers_come_as_one_dimension_of_int64(values: Any) -> None:
    """Any container of integers will do."""
    numbers = host_integers("ids", values, 4)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [0, 3]


@pytest.mark.parametrize("count", [1, 16, 17, 100])
@pytest.mark.parametrize("wrong", [-1, 200, -(2**63), 2**63 - 1])
def test_the_first_number_outside_is_named(count: int, wrong: int) -> None:
    """X1: however many there are, of which few are looked at by other means than many."""
    numbers = list(range(count))
    assert host_integers("ids", numbers, 200).tolist() == numbers
    numbers[-1] = wrong
    with pytest.raises(IndexError, match=rf"^ids has {wrong}, outside 0\.\.199$"):
        host_integers("ids", numbers, 200)


class Foreign(enum.Enum):
    """Another engine's enumeration."""

    REF_ZERO = 0
    LRU = 1


@pytest.mark.parametrize("policy", [PrefixCachingEvictionPolicy.LRU, Foreign.LRU, "lru", "LRU"])
def test_lru_is_known_by_its_name(policy: object) -> None:
    """Specification, blocks: the slot allocator works with any context."""
    assert is_lru(policy)


@pytest.mark.parametrize("policy", [PrefixCachingEvictionPolicy.REF_ZERO, Foreign.REF_ZERO, "ref_zero", None])
def test_all_else_is_not(policy: object) -> None:
    """C6: lowest ids go first then."""
    assert not is_lru(policy)


DEFAULTS: dict[Callable[..., Any], str] = {
    KVBlockAllocator: (
        "paused_limit=0, enable_prefix_caching=True, "
        "prefix_caching_eviction_policy=PrefixCachingEvictionPolicy.LRU"
    ),
    KVBlockAllocator.register_kv_block_hashes: "parent_hashes=None",
    MambaSlotAllocator: "fused=None",
    DynamicInferenceContext: (
        "mamba_chunk_size=128, mamba_slots=0, num_mamba_layers=0, conv_states_shape=(), ssm_states_shape=(), "
        "conv_states_dtype=torch.float32, ssm_states_dtype=torch.float32, "
        "prefix_caching_eviction_policy=PrefixCachingEvictionPolicy.LRU, enable_prefix_caching=True, "
        "paused_limit=0, hash_page=None, device='cpu'"
    ),
    DynamicInferenceContext.add_request: "max_tokens=None, reserve=None",
    DynamicInferenceContext.schedule_chunk: "max_tokens=None",
    plan_step: "offsets=(), first_output=0",
}


@pytest.mark.parametrize(("call", "defaults"), DEFAULTS.items(), ids=[it.__qualname__ for it in DEFAULTS])
def test_what_is_left_out_has_its_documented_value(call: Callable[..., Any], defaults: str) -> None:
    """X1: a caller who relies on a default gets just that one."""
    parameters = inspect.signature(call).parameters.values()
    named = [it for it in parameters if it.default is not inspect.Parameter.empty]
    assert ", ".join(f"{it.name}={it.default!r}" for it in named) == defaults


def test_objects_say_what_they_are(make_context: Callable[..., Any]) -> None:
    """Sizes, policy, and how much is left, in one line."""
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


def test_tables_have_their_documented_dtypes(make_context: Callable[..., Any]) -> None:
    """Whoever reads them on a device counts on the width."""
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
