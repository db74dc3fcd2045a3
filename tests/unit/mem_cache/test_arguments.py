"""Tests of arguments of pools and caches: an int, a size, a device, a dtype, an allocator and an index."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
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
from pymllm.mem_cache.kernels.fused_rows import FusedRows
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.memory_pool import make_full_attention_net_mem_pool, make_req_to_token_pool
from pymllm.mem_cache.pools import rows
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.pools.kv_pool import KVPool
from pymllm.mem_cache.pools.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.pools.rows import bit_view
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.slots.device_store import DeviceSlotStore
from pymllm.mem_cache.slots.host_store import HostPages
from pymllm.mem_cache.slots.slot_store import SlotStore
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
from pymllm.mem_cache.tree.lru_list import LRUList
from pymllm.mem_cache.tree.token_encoding import encode_tokens


@pytest.mark.parametrize("value", [3, np.int16(3), torch.tensor(3), torch.tensor([3], dtype=torch.uint8)])
def test_one_integer_of_any_kind_is_an_int(value: Any) -> None:
    """X1: consumers take any integer dtype."""
    result = arguments.as_int("row", value)
    assert (result, type(result)) == (3, int)


@pytest.mark.parametrize("name", ["cpu", "cpu:0", torch.device("cpu")])
def test_a_device_equals_that_of_its_tensors(name: str | torch.device) -> None:
    """P3: a device comparison must not fail over a missing or needless number."""
    assert arguments.as_device(name) == torch.zeros(1).device


@pytest.mark.gpu
def test_cuda_without_a_number_is_the_current_card() -> None:
    """P3: "cuda" resolves to the card that tensors report."""
    assert arguments.as_device("cuda") == torch.zeros(1, device="cuda").device


INTEGER_DTYPES = sorted(arguments.INTEGER_DTYPES, key=str)


@pytest.mark.parametrize(
    "dtype", [*INTEGER_DTYPES, torch.bool, torch.float8_e5m2, torch.bfloat16, torch.complex128], ids=str
)
def test_rows_of_numbers_can_be_stored(device: torch.device, dtype: torch.dtype) -> None:
    """P3, P5: whatever is written can be read back by its index, on the device that it is for."""
    assert arguments.as_row_dtype(dtype, device) is dtype
    assert not torch.zeros(2, dtype=dtype, device=device)[torch.tensor([1], device=device)].any()


@pytest.mark.parametrize("pool", [None, SimpleNamespace(), SimpleNamespace(page_size=4)])
def test_a_page_is_as_large_as_the_pools_or_as_asked(pool: Any) -> None:
    """X1: a pool that names no page size leaves it to the cache."""
    assert arguments.as_page_size(torch.tensor(4), pool) == 4


@pytest.mark.parametrize("dtype", INTEGER_DTYPES, ids=str)
def test_indices_of_any_integer_dtype_and_shape_become_flat(dtype: torch.dtype) -> None:
    """P3: every consumer takes any integer dtype; uint8 is a number, not a mask."""
    index = rows.as_index("slot", torch.tensor([[1, 0], [2, 1]], dtype=torch.int64).to(dtype))
    assert index.dtype is torch.int64
    assert index.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        (1, np.int32(2)),
        range(1, 3),
        np.array([1, 2], dtype=np.uint16),
        np.array([0, 1, 0, 2])[1::2],
        np.array([[1], [2]], dtype=np.uint64),
    ],
)
def test_arrays_and_sequences_are_indices_too(value: Any) -> None:
    """X1: what names rows need not be a tensor."""
    for read in (rows.as_index, rows.as_integers):
        index = read("rows", value)
        assert index.dtype is torch.int64
        assert index.tolist() == [1, 2]


@pytest.mark.parametrize("value", [[], (), np.array([], dtype=np.int32), torch.empty(0, dtype=torch.int32)])
def test_no_index_at_all_is_an_empty_index(value: Any) -> None:
    """X1: an empty sequence has no dtype to complain about."""
    index = rows.as_index("rows", value)
    assert (index.dtype, index.shape) == (torch.int64, (0,))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, True),
        (np.int8(3), True),
        (np.array(3), True),
        (torch.tensor(3), True),
        (torch.tensor([3]), False),
        (np.array([3]), False),
        ([3], False),
        (range(1), False),
        (3.0, False),
    ],
)
def test_a_run_of_one_is_not_a_single_number(value: Any, expected: bool) -> None:
    """X1: one index and a batch of one take different forms."""
    assert rows.is_single(value) is expected


@pytest.mark.parametrize(("setting", "expected"), [(None, True), (True, True), (False, False)])
def test_host_indices_are_looked_at_unless_switched_off(setting: bool | None, expected: bool) -> None:
    """P3: looking at a host tensor costs no synchronisation."""
    assert rows.is_readable(torch.zeros(1), setting) is expected


@pytest.mark.parametrize(("setting", "expected"), [(None, False), (True, True), (False, False)])
def test_device_indices_are_looked_at_only_on_request(setting: bool | None, expected: bool) -> None:
    """P3: looking at a device tensor synchronises; a meta tensor stands for one here."""
    assert rows.is_readable(torch.zeros(1, device="meta"), setting) is expected


@pytest.mark.parametrize("dtype", INTEGER_DTYPES, ids=str)
def test_a_negative_number_of_any_width_is_outside(dtype: torch.dtype) -> None:
    """P3: reading a number as unsigned must not let a short one in."""
    numbers = torch.tensor([3, 100], dtype=torch.int64).to(dtype)
    rows.check_range("slot", numbers, 2**40, "advice")
    with pytest.raises(IndexError, match="slot 100 is outside"):
        rows.check_range("slot", numbers, 100, "advice")
    if dtype.is_signed:
        for stop in (100, 2**31, 2**31 + 1, 2**40):
            with pytest.raises(IndexError, match="slot -1 is outside"):
                rows.check_range("slot", torch.tensor([-1], dtype=dtype), stop, "advice")


def test_a_single_number_beyond_int64_is_an_int() -> None:
    """X1: torch makes no index of it; whoever asked says that it is outside, with the number."""
    assert arguments.as_int("row", torch.tensor([2**64 - 1], dtype=torch.uint64)) == 2**64 - 1


def test_an_array_of_a_class_of_its_own_is_a_key() -> None:
    """K1: as a mapped file's."""
    assert encode_tokens(np.array([1, 2], np.int32).view(np.memmap)) == encode_tokens([1, 2])
    assert rows.as_index("rows", np.array([1, 2]).view(np.memmap)).tolist() == [1, 2]


WIDTHS = {
    torch.bool: torch.int8,
    torch.float8_e4m3fn: torch.int8,
    torch.uint16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.int64: torch.int64,
    torch.complex128: torch.complex128,
}


@pytest.mark.parametrize(("dtype", "expected"), WIDTHS.items(), ids=str)
def test_the_view_has_the_width_of_the_dtype(dtype: torch.dtype, expected: torch.dtype) -> None:
    """P5: rows of any dtype can be moved without interpreting them."""
    tensor = torch.zeros(3, 2).to(dtype)
    view = bit_view(tensor)
    assert view.dtype is expected
    assert view.data_ptr() == tensor.data_ptr()
    assert view.shape == tensor.shape


DEFAULTS: dict[Callable[..., Any], str] = {
    ReqToTokenPool: "device='cuda', check_bounds=None",
    ReqToTokenPool.alloc: "n=1",
    KVPool: (
        "device='cuda', dtype=torch.float16, v_head_num=None, v_head_dim=None, pin_memory=True, page_size=1, "
        "check_bounds=None, fused=None"
    ),
    GDNPool: "device='cuda', dtype=torch.bfloat16, max_track_slots=0, check_bounds=None, fused=None",
    TokenToKVPoolAllocator: "device='cuda', page_size=1, need_sort=True, check_ownership=None, store='auto'",
    SWATokenToKVPoolAllocator: (
        "device='cuda', page_size=1, need_sort=True, check_ownership=None, store='auto'"
    ),
    make_full_attention_net_mem_pool: (
        "device='cuda', dtype=torch.float16, page_size=1, need_sort=True, pin_memory=True"
    ),
    make_req_to_token_pool: "device='cuda'",
    RadixCache: "page_size=1, sliding_window_size=None, token_to_kv_pool_allocator=None, on_node_evict=None, "
    "eviction_policy='lru'",
    RadixCache.insert: "value=None, prev_prefix_len=0, swa_evicted_seqlen=0, priority=0",
    RadixCache.evict: "swa_num_tokens=0",
    RadixCache.dec_lock_ref: "swa_boundary_id=None",
    MambaRadixCache: "page_size=1, token_to_kv_pool_allocator=None, mamba_pool=None, on_node_evict=None, "
    "eviction_policy='lru'",
    MambaRadixCache.insert: "value=None, mamba_value=None, priority=0",
    MambaRadixCache.evict: "swa_num_tokens=0",
    ChunkCache: "token_to_kv_pool_allocator=None, device='cpu'",
    ChunkCache.insert: "value=None",
    ChunkCache.evict: "swa_num_tokens=0",
    BasePrefixCache.insert: "value=None",
    BasePrefixCache.evict: "swa_num_tokens=0",
    LRUList: "mamba=False",
    RadixKey: "extra_key=None",
    hash_token_ids: "prior_hash=None",
    MatchResult: "last_node=None, prefix_len=0, mamba_branching_seqlen=None",
    InsertResult: "prefix_len=0, last_node=None, mamba_exist=False, adopted=()",
    EvictResult: "full_evicted=0, swa_evicted=0, mamba_evicted=0",
    HostPages.locate: "check_range=False",
    DeviceSlotStore.locate: "check_range=False",
    SlotStore.locate: "check_range=False",
    encode_tokens: "page_size=1",
    FusedRows: "row_limits=(), clears=False",
    arguments.as_size: "minimum=1, maximum=None",
    arguments.as_pool: "name='token_to_kv_pool_allocator', method='free'",
    arguments.as_callback: "name='on_node_evict'",
}


@pytest.mark.parametrize(("call", "defaults"), DEFAULTS.items(), ids=[it.__qualname__ for it in DEFAULTS])
def test_what_is_left_out_has_its_documented_value(call: Callable[..., Any], defaults: str) -> None:
    """X1: a caller who relies on a default gets just that one."""
    parameters = inspect.signature(call).parameters.values()
    named = [it for it in parameters if it.default is not inspect.Parameter.empty]
    assert ", ".join(f"{it.name}={it.default!r}" for it in named) == defaults
