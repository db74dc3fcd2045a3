"""Prefix caches and the memory pools under them."""

from __future__ import annotations

from pymllm.mem_cache.gdn_pool import GDNPool
from pymllm.mem_cache.kv_pool import KVPool
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool

__all__ = ["GDNPool", "KVPool", "ReqToTokenPool"]
