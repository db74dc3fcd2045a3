"""The import path of the pools, the factories, what objects say, and a cache that keeps nothing."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pymllm.mem_cache
from pymllm.mem_cache import base_prefix_cache, chunk_cache, mamba_radix_cache, memory_pool, radix_cache
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.memory_pool import make_full_attention_net_mem_pool, make_req_to_token_pool
from pymllm.mem_cache.pools.kv_pool import KVPool
from pymllm.mem_cache.pools.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.radix_cache import RadixCache


def test_the_package_offers_exactly_the_names_of_its_documented_modules() -> None:
    """The reference names a module for each class; the package has the same objects, and no others."""
    names = {"logger"}
    for module in (base_prefix_cache, chunk_cache, mamba_radix_cache, memory_pool, radix_cache):
        names |= set(module.__all__)
        for name in set(module.__all__) - {"logger"}:
            assert getattr(pymllm.mem_cache, name) is getattr(module, name)
    assert names == {*pymllm.mem_cache.__all__, "logger"}
    assert memory_pool.logger.name == "pymllm.mem_cache.memory_pool"


@pytest.mark.parametrize("page_size", [1, 4])
def test_every_slot_of_the_allocator_is_a_row_of_the_pool(page_size: int) -> None:
    """A1: the factory passes the page size to both, so no slot lies beyond the buffers."""
    pool, allocator = make_full_attention_net_mem_pool(
        16, 2, 1, 2, 3, 4, device="cpu", dtype=torch.float32, page_size=page_size
    )
    slots = allocator.alloc(16)
    assert slots is not None
    assert int(slots.max()) == pool.k_buffer[0].shape[0] - 1
    numbers = slots.to(torch.float32)
    pool.set_kv_buffer(
        1, slots, numbers.repeat_interleave(2).view(16, 1, 2), numbers.repeat_interleave(12).view(16, 12)
    )
    k, v = pool.get_kv_buffer(1)
    assert torch.equal(k[slots.long(), 0, 0], numbers)
    assert torch.equal(v[slots.long(), 2, 3], numbers)


def test_the_factory_passes_everything_on() -> None:
    """The reference's parameters reach both objects."""
    pool, allocator = make_full_attention_net_mem_pool(
        8, 3, 1, 2, 4, 5, "cpu", torch.bfloat16, page_size=2, need_sort=False, pin_memory=False
    )
    assert (pool.size, pool.layer_num, pool.k_head_num, pool.k_head_dim) == (8, 3, 1, 2)
    assert (pool.v_head_num, pool.v_head_dim, pool.dtype, pool.page_size) == (4, 5, torch.bfloat16, 2)
    assert (allocator.size, allocator.page_size, allocator.need_sort) == (8, 2, False)
    assert allocator.device == pool.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("factory", "defaults"),
    [
        (
            make_full_attention_net_mem_pool,
            {"device": "cuda", "dtype": torch.float16, "page_size": 1, "need_sort": True, "pin_memory": True},
        ),
        (make_req_to_token_pool, {"device": "cuda"}),
    ],
)
def test_what_a_factory_is_not_told_is_as_in_the_reference(
    factory: Callable[..., object], defaults: dict[str, object]
) -> None:
    """Of the optional parameters, which a machine without a GPU cannot call them without."""
    parameters = inspect.signature(factory).parameters.values()
    found = {it.name: it.default for it in parameters if it.default is not inspect.Parameter.empty}
    assert found == defaults


def test_the_row_factory_builds_a_table() -> None:
    """P1: the factory of the reference, with its parameters."""
    pool = make_req_to_token_pool(3, 5, "cpu")
    assert isinstance(pool, ReqToTokenPool)
    assert (pool.size, pool.max_context_len) == (3, 5)
    assert pool.alloc(3) == [1, 2, 3]


def test_a_table_says_what_it_is() -> None:
    """P1: sizes, where they are, and how much is left."""
    rows = ReqToTokenPool(3, 5, "cpu")
    rows.alloc(2)
    assert repr(rows) == "ReqToTokenPool(max_reqs=3, max_context_len=5, device='cpu', available=1)"


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
    """Children below and right of their parent; tombstones and holds are marked."""
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
    """With the state of each node that has one."""
    cache = MambaRadixCache(2)
    cache.insert(RadixKey([1, 2, 3, 4]), torch.arange(4))
    node = cache.insert(RadixKey([1, 2]), torch.arange(2), mamba_value=torch.tensor([8])).last_node
    cache.inc_lock_ref(node)
    cache.pretty_print()
    assert capsys.readouterr().out.splitlines() == [
        "MambaRadixCache: 4 tokens, 2 evictable, 1 states, 0 evictable, page 2",
        "  #3 RadixKey(1, 2; extra_key=None) last_access_time=2 full_lock_ref=1 state=8 mamba_lock_ref=1",
        "    #2 RadixKey(3, 4; extra_key=None) last_access_time=1 full_lock_ref=0",
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
