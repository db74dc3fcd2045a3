"""The documented import path of the pools, and the factories."""

from __future__ import annotations

import logging

import pytest
import torch

from pymllm.mem_cache import memory_pool
from pymllm.mem_cache.gdn_pool import GDNPool
from pymllm.mem_cache.kv_pool import KVPool
from pymllm.mem_cache.memory_pool import make_full_attention_net_mem_pool, make_req_to_token_pool
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator


def test_every_pool_has_its_documented_import_path() -> None:
    """The reference puts all pools into one module; the names there are the classes, not copies."""
    classes = (GDNPool, KVPool, ReqToTokenPool, SWATokenToKVPoolAllocator, TokenToKVPoolAllocator)
    for pool_class in classes:
        assert getattr(memory_pool, pool_class.__name__) is pool_class
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


def test_a_size_that_is_no_whole_number_of_pages_is_refused() -> None:
    """A1: neither object is built."""
    with pytest.raises(ValueError, match="multiple of page_size"):
        make_full_attention_net_mem_pool(10, 1, 1, 1, 1, 1, device="cpu", page_size=4)


def test_the_row_factory_builds_a_table() -> None:
    """P1: the factory of the reference, with its parameters."""
    pool = make_req_to_token_pool(3, 5, "cpu")
    assert isinstance(pool, ReqToTokenPool)
    assert (pool.size, pool.max_context_len) == (3, 5)
    assert pool.alloc(3) == [1, 2, 3]


def test_the_factories_log_what_memory_they_took(caplog: pytest.LogCaptureFixture) -> None:
    """Memory is the scarce thing: one line for each pool says how much it took."""
    with caplog.at_level(logging.INFO, logger="pymllm.mem_cache.memory_pool"):
        make_full_attention_net_mem_pool(4, 1, 1, 1, 1, 1, device="cpu")
        make_req_to_token_pool(3, 5, "cpu")
    kv_line, row_line = (record.getMessage() for record in caplog.records)
    assert kv_line.startswith("KVPool(size=4")
    assert row_line.startswith("ReqToTokenPool(max_reqs=3")
    assert kv_line.endswith("GiB")
    assert row_line.endswith("GiB")
