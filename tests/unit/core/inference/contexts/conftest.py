"""A context of plain attributes, as the specification lists them, for a `MambaSlotAllocator` to work with."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator

LAYERS, CONV, SSM = 2, (3,), (2, 2)


class PlainContext(SimpleNamespace):
    """A context with the required parts alone; every block is allocated, so that any may have a state."""

    kv_block_allocator: Any
    slots: MambaSlotAllocator

    def set_batch(self, *, paused: int = 0, decode: int = 0, prefill: int = 0) -> None:
        self.paused_request_count = paused
        self.batch_dimensions = SimpleNamespace(prefill_req_count=prefill, decode_req_count=decode)

    def register(self, blocks: list[int]) -> list[int]:
        """Give each block a hash of its own, a first block's, and return the hashes."""
        hashes = [1000 + block for block in blocks]
        self.kv_block_allocator.register_kv_block_hashes(blocks, hashes, [0] * len(blocks))
        return hashes

    def tracker(self) -> tuple[Any, ...]:
        """Everything of the slots that a refused call must leave as it was."""
        slots = self.slots
        return (
            slots.block_to_slot.tolist(),
            slots.slot_to_block.tolist(),
            slots.free_slots[: slots.free_count].tolist(),
            dict(slots.hash_to_block_id),
        )


def random_bits(states: torch.Tensor, seed: int) -> None:
    """Any bit pattern may stand in a state, the many kinds of NaN included."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (states.nbytes,), dtype=torch.uint8, generator=generator)
    states.copy_(bits.view(states.dtype).view(states.shape).to(states.device))


def bits_of(states: torch.Tensor) -> torch.Tensor:
    """The states as bytes on the host, layer and row first; a copy."""
    rows = states.cpu().contiguous().view(torch.uint8)
    return rows.reshape(states.shape[0], states.shape[1], -1).clone()


def _make_context(
    *,
    blocks: int = 8,
    max_slots: int = 3,
    max_requests: int = 4,
    policy: PrefixCachingEvictionPolicy = PrefixCachingEvictionPolicy.LRU,
    device: torch.device | str = "cpu",
) -> PlainContext:
    context = PlainContext(
        prefix_cache_lru_clock=0,
        prefix_caching_eviction_policy=policy,
        max_requests=max_requests,
        block_size_tokens=4,
        mamba_chunk_size=2,
        device=torch.device(device),
        request_to_kv_block_ids=torch.full((max_requests, 6), -1, dtype=torch.int32),
        mamba_metadata=SimpleNamespace(
            request_to_mamba_state_idx=torch.arange(max_requests, dtype=torch.int32).flip(0),
            intermediate_count=0,
            per_request_intermediate_counts=[],
        ),
        mamba_conv_states=torch.zeros((LAYERS, max_requests, *CONV), dtype=torch.float16, device=device),
        mamba_ssm_states=torch.zeros((LAYERS, max_requests, *SSM), dtype=torch.float32, device=device),
    )
    context.set_batch()
    context.kv_block_allocator = KVBlockAllocator(context, blocks + 1, prefix_caching_eviction_policy=policy)
    context.kv_block_allocator.allocate_memory_blocks(blocks)
    context.slots = MambaSlotAllocator(context, max_slots, LAYERS, CONV, SSM, torch.float16, torch.float32)
    context.kv_block_allocator.on_blocks_deregistered = context.slots.on_kv_blocks_deregistered
    context.mamba_slot_allocator = context.slots
    for seed, states in enumerate(
        (
            context.mamba_conv_states,
            context.mamba_ssm_states,
            context.slots.conv_states,
            context.slots.ssm_states,
            context.slots.intermediate_conv_out,
            context.slots.intermediate_ssm_out,
        )
    ):
        random_bits(states, seed)
    return context


@pytest.fixture
def make_context() -> Callable[..., PlainContext]:
    """Make a context, its blocks allocated, every state full of random bits."""
    return _make_context


@pytest.fixture
def read_bits() -> Callable[[torch.Tensor], torch.Tensor]:
    """Read states as bytes."""
    return bits_of
