"""The least context that block allocators can be in."""

from __future__ import annotations

import torch

from pymllm.adapters.own_blocks import BlockContext
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator


def make(requests: int = 4) -> BlockContext:
    return BlockContext(requests, 4, "lru", torch.device("cpu"))


def test_requests_and_rows_are_told_apart() -> None:
    """C7: live states lie the other way round, the last request has none, and the last row is nobody's."""
    context = make()
    assert context.mamba_metadata.request_to_mamba_state_idx == [2, 1, 0, -1]
    assert context.live_rows == [2, 1, 0, 3]


def test_it_has_all_that_the_allocators_ask_for() -> None:
    """Specification, blocks: nothing prefills or decodes in it, so there is nothing to extract."""
    context = make()
    context.kv_block_allocator = KVBlockAllocator(context, 4)
    slots = MambaSlotAllocator(context, 2, 1, (1,), (1,), torch.float32, torch.float32)
    assert slots.get_intermediate_gpu_data() == (None, None)
    slots.commit_intermediate_states()
    assert slots.free_count == 2
    assert context.request_to_kv_block_ids.dtype == torch.int32
