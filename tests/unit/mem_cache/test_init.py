"""The names of `pymllm.mem_cache`."""

from __future__ import annotations

import importlib

import pytest

import pymllm.mem_cache

DOCUMENTED = {
    "base_prefix_cache": [
        "BasePrefixCache",
        "EvictResult",
        "InsertResult",
        "MatchResult",
        "RadixKey",
        "hash_bytes",
        "hash_to_int64",
        "hash_token_ids",
    ],
    "chunk_cache": ["ChunkCache"],
    "mamba_radix_cache": ["LRUList", "MambaRadixCache", "MambaTreeNode"],
    "memory_pool": [
        "GDNPool",
        "KVPool",
        "ReqToTokenPool",
        "SWATokenToKVPoolAllocator",
        "TokenToKVPoolAllocator",
        "make_full_attention_net_mem_pool",
        "make_req_to_token_pool",
    ],
    "radix_cache": ["RadixCache", "TreeNode"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in DOCUMENTED.items() for name in names]
)
def test_a_documented_name_is_the_same_object_in_both_places(module: str, name: str) -> None:
    """The reference names a module for each class; the package offers them all."""
    documented = getattr(importlib.import_module(f"pymllm.mem_cache.{module}"), name)
    assert getattr(pymllm.mem_cache, name) is documented


def test_the_package_offers_exactly_the_documented_names() -> None:
    """A name that is offered is a promise; none is offered by accident."""
    assert sorted(pymllm.mem_cache.__all__) == sorted(name for names in DOCUMENTED.values() for name in names)
