"""The time to give slots back and get others, in a large pool that is in use.

T5: 1,048,576 single slots, a quarter of them held in pieces of 1, 128 or 4096 slots, the other pieces
freed in random order before, in a pool that neither checks ownership nor sorts, one that sorts, and one
that does both. Timed is one pair of free and alloc of a piece. `extra_info` has, in
microseconds, the 99th percentile and the longest pair, then mean and longest by the thread's own clock,
which stands still while other processes run: no pair may stall on the whole pool.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from pymllm.invariants.slots import check_token_allocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator

SIZE = 1 << 20
SEED = 5
POOLS = {
    "queue": {"check_ownership": False, "need_sort": False},
    "sorted": {"check_ownership": False, "need_sort": True},
    "checked": {"need_sort": True},  # the default; asked for, it watches caches as well, in Python
}
ROUNDS = {1: 50_000, 128: 20_000, 4096: 2_000}


def make_pool_in_use(
    piece: int, switches: dict[str, bool], draw: random.Random
) -> tuple[TokenToKVPoolAllocator, list[torch.Tensor]]:
    """Return a pool and the pieces of it that are held, a quarter of all.

    Small pieces are given back many to a call, in their random order: the free list is the same, sooner.
    """
    allocator = TokenToKVPoolAllocator(SIZE, "cpu", **switches)
    slots = allocator.alloc(SIZE)
    assert slots is not None
    order = draw.sample(range(SIZE // piece), SIZE // piece)
    pieces = slots.reshape(-1, piece)[order].reshape(-1)
    held, others = pieces[: SIZE // 4], pieces[SIZE // 4 :]
    for part in others.split(max(piece, 4096)):
        allocator.free(part)
    return allocator, list(held.split(piece))


def cpu_seconds(work: Callable[[int], None], place: int) -> float:
    """Return what one call took of this thread's time."""
    start = time.thread_time()
    work(place)
    return time.thread_time() - start


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out: its pauses over 262,144 held tensors are not the pool's."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("piece", ROUNDS)
def test_free_and_alloc(benchmark: BenchmarkFixture, piece: int, pool: str) -> None:
    """T5: mean 8, 10 and 40 us without checks, at most twice that with them."""
    draw = random.Random(SEED)
    allocator, held = make_pool_in_use(piece, POOLS[pool], draw)

    def choose() -> tuple[tuple[int], dict[str, int]]:
        return (draw.randrange(len(held)),), {}

    def free_and_alloc(place: int) -> None:
        allocator.free(held[place])
        held[place] = allocator.alloc(piece)

    own = [cpu_seconds(free_and_alloc, choose()[0][0]) for _ in range(ROUNDS[piece])]
    benchmark.pedantic(free_and_alloc, setup=choose, rounds=ROUNDS[piece], warmup_rounds=100)

    numbers = np.sort(torch.cat(held).numpy())
    assert allocator.available_size() == SIZE - numbers.size
    assert numbers[0] >= 1
    assert (np.diff(numbers) > 0).all()
    check_token_allocator(allocator)
    if benchmark.enabled:
        seconds = np.array(benchmark.stats.stats.data)
        benchmark.extra_info["p99_us"] = round(float(np.percentile(seconds, 99)) * 1e6, 1)
        benchmark.extra_info["max_us"] = round(float(seconds.max()) * 1e6, 1)
        benchmark.extra_info["mean_cpu_us"] = round(sum(own) / len(own) * 1e6, 2)
        benchmark.extra_info["max_cpu_us"] = round(max(own) * 1e6, 1)
