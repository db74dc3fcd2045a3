"""What pools, caches and their nodes say about themselves to people who print or log them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.kv_pool import KVPool
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.memory_pool import make_full_attention_net_mem_pool, make_req_to_token_pool
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator


def test_pools_say_what_they_are() -> None:
    """P1, A1: sizes, where they are, and how much is left."""
    rows = ReqToTokenPool(3, 5, "cpu")
    rows.alloc(2)
    assert repr(rows) == "ReqToTokenPool(max_reqs=3, max_context_len=5, device='cpu', available=1)"
    tokens = TokenToKVPoolAllocator(8, "cpu", 2)
    tokens.alloc(3)
    assert repr(tokens) == "TokenToKVPoolAllocator(size=8, page_size=2, device='cpu', available=4)"
    pairs = SWATokenToKVPoolAllocator(8, 6, "cpu", 2)
    pairs.alloc(1)
    shown = "SWATokenToKVPoolAllocator(size=8, swa_size=6, page_size=2, device='cpu', available=6+4)"
    assert repr(pairs) == shown


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        ([], "RadixKey(; extra_key=None)"),
        (range(8), "RadixKey(0, 1, 2, 3, 4, 5, 6, 7; extra_key=None)"),
        (range(9), "RadixKey(0, 1, 2, 3, 4, 5, 6, 7, ... 1 more; extra_key=None)"),
        (range(20), "RadixKey(0, 1, 2, 3, 4, 5, 6, 7, ... 12 more; extra_key=None)"),
    ],
)
def test_a_key_shows_its_first_tokens(tokens: Any, shown: str) -> None:
    """K1: eight of them, and how many follow."""
    assert repr(RadixKey(list(tokens))) == shown


def test_a_tree_is_printed_node_by_node(capsys: pytest.CaptureFixture[str]) -> None:
    """Section 4: children below and right of their parent; tombstones and holds are marked."""
    cache = RadixCache(2, 2)
    first = cache.insert(RadixKey([1, 2, 3, 4], "lora"), torch.arange(2, 6)).last_node
    other = cache.insert(RadixKey([1, 2, 5, 6], "lora"), torch.tensor([2, 3, 8, 9])).last_node
    cache.inc_lock_ref(other)
    cache.match_prefix(RadixKey([1, 2, 3, 4], "lora"))
    cache.evict(0, 2)
    cache.pretty_print()
    assert capsys.readouterr().out.splitlines() == [
        "RadixCache: 6 tokens, 2 evictable, page 2",
        "  #3 RadixKey(1, 2; extra_key='lora') last_access_time=3 lock_ref=1 tombstone",
        "    #2 RadixKey(3, 4; extra_key='lora') last_access_time=3 lock_ref=0",
        "    #4 RadixKey(5, 6; extra_key='lora') last_access_time=2 lock_ref=1 swa_lock_ref=1",
    ]
    assert repr(first) == "TreeNode(id=2, tokens=2, depth=4, lock_ref=0)"


def test_a_tree_of_states_is_printed_node_by_node(capsys: pytest.CaptureFixture[str]) -> None:
    """Section 7: with the state of each node that has one."""
    cache = MambaRadixCache(2)
    cache.insert(RadixKey([1, 2, 3, 4]), torch.arange(4), mamba_value=torch.tensor([7]))
    node = cache.insert(RadixKey([1, 2]), torch.arange(2), mamba_value=torch.tensor([8])).last_node
    cache.inc_lock_ref(node)
    cache.pretty_print()
    assert capsys.readouterr().out.splitlines() == [
        "MambaRadixCache: 4 tokens, 2 evictable, 2 states, 1 evictable, page 2",
        "  #3 RadixKey(1, 2; extra_key=None) last_access_time=2 full_lock_ref=1 state=8 mamba_lock_ref=1",
        "    #2 RadixKey(3, 4; extra_key=None) last_access_time=1 full_lock_ref=0 state=7 mamba_lock_ref=0",
    ]


def test_the_factories_say_how_much_memory_they_took(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is the scarce thing: one line for each pool, in GiB."""
    monkeypatch.setattr(KVPool, "mem_bytes", lambda self: 3 * 2**29)
    with caplog.at_level(logging.INFO, logger="pymllm.mem_cache.memory_pool"):
        pool, _ = make_full_attention_net_mem_pool(4, 1, 1, 1, 1, 1, device="cpu")
        rows = make_req_to_token_pool(1023, 1024, "cpu")
    assert [record.getMessage() for record in caplog.records] == [
        f"{pool!r} takes 1.500 GiB",
        f"{rows!r} takes 0.004 GiB",
    ]
