"""The table of waits in docs/gpu-maintainers.md is what the far device counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import torch

from pymllm.core.inference.contexts import DynamicInferenceContext
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.memory_pool import (
    GDNPool,
    KVPool,
    ReqToTokenPool,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)
from pymllm.mem_cache.radix_cache import RadixCache
from tests.far_device import DEVICE, far_device

PAGE = Path(__file__).parents[2] / "docs" / "gpu-maintainers.md"
Calls = Iterator[tuple[str, Callable[[], object]]]


def pools() -> Calls:
    """Pools, by indices on the device, by plain ints, and by lists and tensors of the host."""
    rows = ReqToTokenPool(4, 16, DEVICE)
    kv = KVPool(8, 1, 1, 2, DEVICE, torch.float32)
    states = GDNPool(4, 1, 1, 2, 2, 4, 4, DEVICE, max_track_slots=2)
    far, near = torch.tensor([1, 2], device=DEVICE), torch.tensor([1, 2])
    row = torch.zeros(2, 1, 2, device=DEVICE)
    yield "rows", lambda: rows.alloc(3)
    for index in (far, near):
        yield "rows", lambda index=index: rows.write((index, index), index)
        yield "kv", lambda index=index: kv.set_kv_buffer(0, index, row, row)
        yield "states", lambda index=index: states.copy_states(index, index)
        yield "states", lambda index=index: states.reset_states(index)
    yield "rows", lambda: rows.write((1, 3), 5)
    yield "rows", lambda: rows.write((1, slice(0, 2)), [5, 6])
    yield "states", lambda: states.copy_states(1, states.alloc_track_slot())
    yield "rows", lambda: rows.free(3)


def slots() -> Calls:
    """Allocators, single slots and pages, alone and in groups."""
    for kind, sizes in ((TokenToKVPoolAllocator, (64,)), (SWATokenToKVPoolAllocator, (64, 64))):
        pool = kind(*sizes, DEVICE, 1)
        taken = pool.alloc(16)
        yield "single", lambda pool=pool: pool.alloc(16)
        yield "single", lambda pool=pool, taken=taken: pool.free(taken)
        yield "merge", lambda pool=pool: pool.merge_and_sort_free()
        pool = kind(*sizes, DEVICE, 4)
        taken = pool.alloc(32)
        yield "pages", lambda pool=pool: pool.alloc(16)
        yield "starts", lambda pool=pool, taken=taken: pool.free_pages(taken[:8:4])
        if kind is SWATokenToKVPoolAllocator:
            yield "free", lambda pool=pool, taken=taken: pool.free_swa(taken[24:28])
            yield "starts", lambda pool=pool, taken=taken: pool.free_swa_pages(taken[28::4])
        yield "free", lambda pool=pool, taken=taken: pool.free(taken[8:16])
        pool.free_group_begin()
        yield "inside", lambda pool=pool, taken=taken: pool.free(taken[16:20])
        yield "group", lambda pool=pool: pool.free_group_end()
    pool = SWATokenToKVPoolAllocator(64, 64, DEVICE)
    taken = pool.alloc(8)
    pool.free_swa(taken[:4])
    pool.free(taken)
    yield "asked", pool.swa_available_size


def caches() -> Calls:
    """Prefix caches over pages, with a window and with states."""
    key, longer = RadixKey(list(range(16))), RadixKey(list(range(32)))
    pool = SWATokenToKVPoolAllocator(96, 96, DEVICE, 4)
    cache = RadixCache(4, 8, pool)
    first, second, third = pool.alloc(16), pool.alloc(32), pool.alloc(16)
    yield "insert", lambda: cache.insert(key, first)
    yield "insert", lambda: cache.insert(longer, second)
    yield "match", lambda: cache.match_prefix(key)
    yield "evict", lambda: cache.evict(0, 40)
    slots = pool.alloc(32)
    pool.free_swa(slots[:16])
    cache.insert(longer, slots, swa_evicted_seqlen=16)
    yield "revive", lambda: cache.insert(key, third)
    yield "evict", lambda: cache.evict(64)
    tokens = TokenToKVPoolAllocator(32, DEVICE)
    states = GDNPool(4, 1, 1, 2, 2, 4, 4, DEVICE, max_track_slots=2)
    hybrid = MambaRadixCache(1, tokens, states)
    near = torch.tensor([states.alloc_track_slot()])
    far = torch.tensor([states.alloc_track_slot()], device=DEVICE)
    yield "insert", lambda: hybrid.insert(key, tokens.alloc(16), mamba_value=near)
    yield "state", lambda: hybrid.insert(RadixKey([7] * 8), tokens.alloc(8), mamba_value=far)
    yield "evict", lambda: hybrid.evict(16, 1)


def contexts() -> Calls:
    """A step of a block context, with states that are stored, restored and committed."""
    context = DynamicInferenceContext(
        max_requests=4,
        num_blocks=17,
        max_blocks_per_request=4,
        block_size_tokens=4,
        mamba_chunk_size=2,
        mamba_slots=8,
        num_mamba_layers=3,
        conv_states_shape=(6, 3),
        ssm_states_shape=(2, 4, 4),
        conv_states_dtype=torch.bfloat16,
        device=DEVICE,
    )
    slots = context.mamba_slot_allocator
    assert slots is not None
    for number in range(2):
        request = SimpleNamespace(prompt_tokens=[number, *range(1, 13)], finished_chunk_token_count=0)
        yield "context", lambda request=request: context.add_request(request)
    yield "context", context.begin_step
    yield "context", slots.get_intermediate_gpu_data
    blocks = [int(block) for block in context.request_to_kv_block_ids[:2, 0]]
    taken = slots.allocate_slots_batch(blocks)
    yield "context", lambda: slots.store_from_live_batch(taken, [0, 1])
    yield "context", lambda: slots.restore_to_live(0, blocks[0])
    yield "context", lambda: context.commit_step([7, 7])
    yield "context", context.reset


NAMES = {
    "KVPool.set_kv_buffer": "kv",
    "ReqToTokenPool.write, alloc, free": "rows",
    "GDNPool.copy_states, reset_states": "states",
    "alloc and free of single slots": "single",
    "merge_and_sort_free": "merge",
    "alloc of pages": "pages",
    "free_pages, free_swa_pages": "starts",
    "free, free_swa with pages": "free",
    "the same inside a group": "inside",
    "free_group_end after these": "group",
    "match_prefix": "match",
    "evict": "evict",
    "insert": "insert",
    "insert over tombstones": "revive",
    "insert with mamba_value on the device": "state",
    "a step of DynamicInferenceContext and MambaSlotAllocator": "context",
    "swa_available_size after a free of slots without halves": "asked",
}


def test_the_table_of_waits_is_counted() -> None:
    """On the far device, with ownership unchecked as on a GPU; of several calls, the most."""
    counted: dict[str, int] = {}
    with far_device() as waits:
        for calls in (pools(), slots(), caches(), contexts()):
            for name, call in calls:
                waits.clear()
                call()
                counted[name] = max(counted.get(name, 0), len(waits))
    told = re.findall(r"^\| ([^|]+) \| (\d) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    plain = {re.sub("`", "", name): int(count) for name, count in told}
    assert plain == {name: counted[key] for name, key in NAMES.items()}
