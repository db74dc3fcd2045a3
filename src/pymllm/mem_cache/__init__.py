"""Prefix caches and the memory pools below them.

Every name is also importable from its own module, and the pools from `pymllm.mem_cache.memory_pool`.
"""

from __future__ import annotations

import pymllm.torch_needed  # noqa: F401  # before a module asks for torch itself
from pymllm.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    EvictResult,
    InsertResult,
    MatchResult,
    RadixKey,
    hash_bytes,
    hash_to_int64,
    hash_token_ids,
)
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.mamba_radix_cache import LRUList, MambaRadixCache, MambaTreeNode
from pymllm.mem_cache.memory_pool import make_full_attention_net_mem_pool, make_req_to_token_pool
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.pools.kv_pool import KVPool
from pymllm.mem_cache.pools.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator

__all__ = [
    "BasePrefixCache",
    "ChunkCache",
    "EvictResult",
    "GDNPool",
    "InsertResult",
    "KVPool",
    "LRUList",
    "MambaRadixCache",
    "MambaTreeNode",
    "MatchResult",
    "RadixCache",
    "RadixKey",
    "ReqToTokenPool",
    "SWATokenToKVPoolAllocator",
    "TokenToKVPoolAllocator",
    "TreeNode",
    "hash_bytes",
    "hash_to_int64",
    "hash_token_ids",
    "make_full_attention_net_mem_pool",
    "make_req_to_token_pool",
]
