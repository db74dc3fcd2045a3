"""The times of the slot allocators on a GPU: of their trackers there, and of the states that they move.

As in ``bench_gpu_pools.py``. Trackers on a device are launches, so what matters is what the host pays.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from benchmarks.bench_gpu_pools import SHARE_OF_A_COPY, bytes_to_copy
from benchmarks.gpu_results import GpuResults
from pymllm.core.inference.contexts import KVBlockAllocator, MambaSlotAllocator
from pymllm.mem_cache.pools.rows import bit_view
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
from tests.stress.card import Card

LAYERS, REQUESTS = 12, 64


def make_slots(card: Card) -> tuple[MambaSlotAllocator, SimpleNamespace]:
    """Slots for as many requests as there are rows of live states, over blocks in use, and their context."""
    requests = REQUESTS if card.is_cuda else 4
    conv, ssm = ((8_192, 3), (32, 128, 128)) if card.is_cuda else ((16, 3), (2, 4, 4))
    owner = SimpleNamespace(
        prefix_cache_lru_clock=0,
        prefix_caching_eviction_policy="lru",
        max_requests=requests,
        device=card.device,
        mamba_conv_states=torch.randn((LAYERS, requests, *conv), device=card.device).bfloat16(),
        mamba_ssm_states=torch.randn((LAYERS, requests, *ssm), device=card.device),
        mamba_metadata=SimpleNamespace(
            request_to_mamba_state_idx=torch.arange(requests, dtype=torch.int32), intermediate_count=0
        ),
    )
    owner.kv_block_allocator = KVBlockAllocator(owner, requests + 1)
    assert owner.kv_block_allocator.allocate_memory_blocks(requests) is not None
    return MambaSlotAllocator(owner, requests, LAYERS, conv, ssm, torch.bfloat16, torch.float32), owner


@pytest.mark.parametrize("count", [1, REQUESTS])
def test_store_live_states(card: Card, gpu_results: GpuResults, count: int) -> None:
    """C7: all layers of that many requests into their slots, beside a copy of as many bytes."""
    slots, live = make_slots(card)
    count = min(count, live.max_requests)
    numbers = list(range(count))
    state_bytes = sum(states[:, 0].nbytes for states in (slots.ssm_states, slots.conv_states))
    source, target = bytes_to_copy(card, count * state_bytes, 1)
    contenders = {
        "store_from_live_batch": lambda _: slots.store_from_live_batch(numbers, numbers),
        "copy": lambda _: target[0].copy_(source[0]),
    }
    case = {"states": count, "layers": LAYERS, "state_bytes": state_bytes}
    gpu_results.measure(
        "store live states", case, contenders, moved=2 * count * state_bytes, sets=4, in_graph=False
    )
    if count == REQUESTS:
        gpu_results.judge(
            "share of a copy's speed", "store_from_live_batch", "copy", at_least=SHARE_OF_A_COPY
        )
    for cached, there in (
        (slots.ssm_states, live.mamba_ssm_states),
        (slots.conv_states, live.mamba_conv_states),
    ):
        assert torch.equal(bit_view(cached[:, :count].contiguous()), bit_view(there[:, :count].contiguous()))


def test_restore_a_state(card: Card, gpu_results: GpuResults) -> None:
    """C7: one request resumes, all layers; beside a copy of as many bytes."""
    slots, live = make_slots(card)
    blocks = list(range(live.max_requests))
    slots.allocate_slots_batch(blocks)
    slots.ssm_states.normal_()
    slots.conv_states.normal_()
    state_bytes = sum(states[:, 0].nbytes for states in (slots.ssm_states, slots.conv_states))
    source, target = bytes_to_copy(card, state_bytes, len(blocks))
    contenders = {
        "restore_to_live": lambda number: slots.restore_to_live(number, number),
        "copy": lambda number: target[number].copy_(source[number]),
    }
    case = {"states": 1, "layers": LAYERS, "state_bytes": state_bytes}
    gpu_results.measure(
        "restore a state", case, contenders, moved=2 * state_bytes, sets=len(blocks), in_graph=False
    )
    order = [int(slots.get_slot(block)) for block in blocks]
    assert torch.equal(bit_view(live.mamba_ssm_states), bit_view(slots.ssm_states[:, order]))
    assert torch.equal(bit_view(live.mamba_conv_states), bit_view(slots.conv_states[:, order]))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("count", [16, 4_096])
def test_alloc_and_free(card: Card, gpu_results: GpuResults, count: int, page_size: int) -> None:
    """A2, A3: a piece of a pool of a million slots goes and comes, its trackers on the device."""
    allocator = TokenToKVPoolAllocator(1 << 20, card.device, page_size, store="device")
    sets = 8

    def turn(_: int) -> None:
        slots = allocator.alloc(count)
        assert slots is not None
        allocator.free(slots)

    gpu_results.measure(
        "alloc and free",
        {"slots": count, "page_size": page_size},
        {"alloc and free": turn},
        moved=8 * count,
        sets=sets,
        in_graph=False,
    )
    assert allocator.available_size() == 1 << 20
