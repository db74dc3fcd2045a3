"""What a call means that names only what it must: defaults are part of the interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.mem_cache import arguments
from pymllm.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    EvictResult,
    InsertResult,
    MatchResult,
    RadixKey,
    hash_token_ids,
)
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.device_store import DeviceSlotStore
from pymllm.mem_cache.fused_rows import FusedRows
from pymllm.mem_cache.gdn_pool import GDNPool
from pymllm.mem_cache.host_pages import HostPages
from pymllm.mem_cache.kv_pool import KVPool
from pymllm.mem_cache.lru_list import LRUList
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.memory_pool import make_full_attention_net_mem_pool, make_req_to_token_pool
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.slot_store import SlotStore
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator
from pymllm.mem_cache.token_encoding import encode_tokens

ALLOCATORS = {"device": "cuda", "page_size": 1, "need_sort": True, "check_ownership": None, "store": "auto"}
CALLBACK = {"token_to_kv_pool_allocator": None, "on_node_evict": None}

DEFAULTS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (ReqToTokenPool, {"device": "cuda", "check_bounds": None}),
    (ReqToTokenPool.alloc, {"n": 1}),
    (
        KVPool,
        {
            "device": "cuda",
            "dtype": torch.float16,
            "v_head_num": None,
            "v_head_dim": None,
            "pin_memory": True,
            "page_size": 1,
            "check_bounds": None,
            "fused": None,
        },
    ),
    (
        GDNPool,
        {
            "device": "cuda",
            "dtype": torch.bfloat16,
            "max_track_slots": 0,
            "check_bounds": None,
            "fused": None,
        },
    ),
    (TokenToKVPoolAllocator, ALLOCATORS),
    (SWATokenToKVPoolAllocator, ALLOCATORS),
    (
        make_full_attention_net_mem_pool,
        {"device": "cuda", "dtype": torch.float16, "page_size": 1, "need_sort": True, "pin_memory": True},
    ),
    (make_req_to_token_pool, {"device": "cuda"}),
    (RadixCache, {"page_size": 1, "sliding_window_size": None, **CALLBACK}),
    (RadixCache.insert, {"value": None, "prev_prefix_len": 0, "swa_evicted_seqlen": 0}),
    (RadixCache.evict, {"swa_num_tokens": 0}),
    (RadixCache.dec_lock_ref, {"swa_boundary_id": None}),
    (MambaRadixCache, {"page_size": 1, "mamba_pool": None, **CALLBACK}),
    (MambaRadixCache.insert, {"value": None, "mamba_value": None}),
    (MambaRadixCache.evict, {"swa_num_tokens": 0}),
    (ChunkCache, {"token_to_kv_pool_allocator": None, "device": "cpu"}),
    (ChunkCache.insert, {"value": None}),
    (ChunkCache.evict, {"swa_num_tokens": 0}),
    (BasePrefixCache.insert, {"value": None}),
    (BasePrefixCache.evict, {"swa_num_tokens": 0}),
    (LRUList, {"mamba": False}),
    (RadixKey, {"extra_key": None}),
    (hash_token_ids, {"prior_hash": None}),
    (MatchResult, {"last_node": None, "prefix_len": 0, "mamba_branching_seqlen": None}),
    (InsertResult, {"prefix_len": 0, "last_node": None, "mamba_exist": False, "adopted": ()}),
    (EvictResult, {"full_evicted": 0, "swa_evicted": 0, "mamba_evicted": 0}),
    (HostPages.locate, {"check_range": False}),
    (DeviceSlotStore.locate, {"check_range": False}),
    (SlotStore.locate, {"check_range": False}),
    (encode_tokens, {"page_size": 1}),
    (FusedRows, {"row_limits": (), "clears": False}),
    (arguments.as_size, {"minimum": 1}),
    (arguments.as_pool, {"name": "token_to_kv_pool_allocator", "method": "free"}),
    (arguments.as_callback, {"name": "on_node_evict"}),
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
