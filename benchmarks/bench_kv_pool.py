"""The time of a step to store its tokens: their keys and values, and their slots in the row table.

Timed is one call, on a device until it is finished there. For a device, `extra_info` splits it: `host_us`
until the call returns, `device_us` between two events. Rows are those of a model with 8 KV heads of
128 elements in bfloat16 (2 KiB each for K and V), and the simulated engine's, one integer each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from pymllm.mem_cache.memory_pool import GDNPool, KVPool, ReqToTokenPool
from pymllm.mem_cache.pools.rows import bit_view

SLOTS = 1 << 16
ROWS = {"model": (8, 128, torch.bfloat16), "engine": (1, 1, torch.int64)}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]

pytestmark = pytest.mark.parametrize("device", DEVICES)


def time_call(benchmark: BenchmarkFixture, device: str, call: Callable[[], Any]) -> None:
    if device == "cpu":
        benchmark(call)
        return
    benchmark(lambda: (call(), torch.cuda.synchronize()))  # pragma: needs cuda
    benchmark.extra_info.update(split_times(call))  # pragma: needs cuda


def split_times(call: Callable[[], Any], calls: int = 100) -> dict[str, float]:  # pragma: needs cuda
    """Mean microseconds on the host until the call returns, and on the device from end to end."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    host = time.perf_counter() - begun
    end.record()
    torch.cuda.synchronize()
    return {"host_us": host / calls * 1e6, "device_us": start.elapsed_time(end) / calls * 1e3}


@pytest.mark.parametrize("tokens", [1, 256, 4096])
@pytest.mark.parametrize("rows", ROWS)
def test_store_keys_and_values(benchmark: BenchmarkFixture, device: str, rows: str, tokens: int) -> None:
    """P3: the rows that were named hold what was given, bit for bit."""
    heads, dim, dtype = ROWS[rows]
    pool = KVPool(SLOTS, 1, heads, dim, device, dtype)
    generator = torch.Generator().manual_seed(tokens)
    slots = (torch.randperm(SLOTS, generator=generator)[:tokens] + 1).to(device, torch.int32)
    k, v = (torch.randn(tokens, heads, dim, generator=generator).to(device, dtype) for _ in range(2))
    time_call(benchmark, device, lambda: pool.set_kv_buffer(0, slots, k, v))
    assert torch.equal(bit_view(pool.k_buffer[0])[slots.long()], bit_view(k))
    assert torch.equal(bit_view(pool.v_buffer[0])[slots.long()], bit_view(v))


@pytest.mark.parametrize("requests", [1, 64, 256])
def test_enter_one_slot_for_each_request(benchmark: BenchmarkFixture, device: str, requests: int) -> None:
    """P2: a decode step's one table write."""
    pool = ReqToTokenPool(256, 8_192, device)
    rows = torch.tensor(pool.alloc(requests), device=device)
    positions = torch.arange(requests, device=device) * 31
    slots = torch.arange(1, requests + 1, dtype=torch.int32, device=device)
    time_call(benchmark, device, lambda: pool.write((rows, positions), slots))
    assert torch.equal(pool.req_to_token[rows, positions], slots)
    assert int(pool.req_to_token.count_nonzero()) == requests


@pytest.mark.parametrize("tokens", [512, 8_192])
def test_enter_a_chunk_of_one_request(benchmark: BenchmarkFixture, device: str, tokens: int) -> None:
    """P2: a prefill chunk's table write."""
    pool = ReqToTokenPool(4, 8_192, device)
    slots = torch.arange(1, tokens + 1, dtype=torch.int32, device=device)
    assert pool.alloc() == [1]
    time_call(benchmark, device, lambda: pool.write((1, slice(0, tokens)), slots))
    assert torch.equal(pool.req_to_token[1, :tokens], slots)


@pytest.mark.parametrize("snapshots", [1, 8])
def test_take_snapshots_of_states(benchmark: BenchmarkFixture, device: str, snapshots: int) -> None:
    """P5: all layers of a row in a constant number of launches."""
    pool = GDNPool(16, 12, 8, 64, 64, 1_024, 4, device, max_track_slots=16)
    src = torch.arange(1, snapshots + 1, device=device)
    dst = src + 16
    pool.recurrent_state.normal_()
    pool.conv_state.normal_()
    time_call(benchmark, device, lambda: pool.copy_states(src, dst))
    assert torch.equal(bit_view(pool.recurrent_state)[:, dst], bit_view(pool.recurrent_state)[:, src])
    assert torch.equal(bit_view(pool.conv_state)[:, dst], bit_view(pool.conv_state)[:, src])
