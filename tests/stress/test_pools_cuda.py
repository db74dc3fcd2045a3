"""What only a CUDA device can show of the data pools: no synchronisation, graphs, no growth."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from pymllm.instrument.leaks import Layer, LeakVerdict, Outcome
from pymllm.mem_cache.memory_pool import GDNPool, KVPool, ReqToTokenPool

pytestmark = pytest.mark.gpu

K_ROW, V_ROW = (2, 4), (3, 2)


@pytest.fixture
def forbid_synchronisation() -> Iterator[Callable[[], None]]:
    """A switch that makes every synchronising call an error for the rest of the test."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def kv() -> KVPool:
    return KVPool(64, 2, *K_ROW, "cuda", torch.float16, *V_ROW)


@pytest.fixture
def gdn() -> GDNPool:
    return GDNPool(4, 3, 2, 4, 4, 6, 4, "cuda", max_track_slots=4)


def make_kv(tokens: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(1, tokens + 1, device="cuda", dtype=torch.float16)[:, None, None] * scale
    return numbers.expand(-1, *K_ROW).contiguous(), -numbers.expand(-1, *V_ROW).contiguous()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_kv_write_does_not_synchronise(
    kv: KVPool, dtype: torch.dtype, forbid_synchronisation: Callable[[], None]
) -> None:
    """P3: with device indices and no bounds check, the host never waits."""
    indices = torch.tensor([3, 0, 7, 0], device="cuda", dtype=dtype)
    k, v = make_kv(4)
    forbid_synchronisation()
    kv.set_kv_buffer(1, indices, k, v)
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(kv.k_buffer[1][[3, 7]], k[[0, 2]])
    assert torch.equal(kv.v_buffer[1][[3, 7]], v[[0, 2]])


def test_row_writes_and_frees_do_not_synchronise(forbid_synchronisation: Callable[[], None]) -> None:
    """P2: the scheduler's table follows the device's work without waiting for it."""
    pool = ReqToTokenPool(4, 16, "cuda")
    slots = torch.arange(1, 9, device="cuda", dtype=torch.int32)
    rows = torch.tensor([1, 2], device="cuda")
    positions = torch.tensor([8, 0], device="cuda")
    forbid_synchronisation()
    assert pool.alloc(2) == [1, 2]
    pool.write((1, slice(0, 8)), slots)
    pool.write((rows, positions), slots[:2])
    pool.free(2)
    torch.cuda.set_sync_debug_mode("default")
    assert pool.req_to_token[1].tolist() == [*range(1, 9), 1, *[0] * 7]
    assert not pool.req_to_token[2].any()


@pytest.mark.parametrize("as_ints", [True, False])
def test_state_moves_do_not_synchronise(
    gdn: GDNPool, as_ints: bool, forbid_synchronisation: Callable[[], None]
) -> None:
    """P5: rows may be ints or device indices."""
    gdn.recurrent_state[:, 1] = 3.0
    src, dst = (1, 5) if as_ints else (torch.tensor([1], device="cuda"), torch.tensor([5], device="cuda"))
    forbid_synchronisation()
    gdn.copy_states(src, dst)
    gdn.reset_states(src)
    torch.cuda.set_sync_debug_mode("default")
    assert (gdn.recurrent_state[:, 5] == 3.0).all()
    assert not gdn.recurrent_state[:, 1].any()


def capture(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Warm up beside the default stream, as capturing asks for, then record."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def test_a_captured_kv_write_follows_its_static_inputs(kv: KVPool) -> None:
    """P3, E5: a decode graph writes where its index buffer says at replay, padding to slot 0."""
    indices = torch.tensor([1, 2, 0, 0], device="cuda", dtype=torch.int32)
    k, v = make_kv(4)
    graph = capture(lambda: kv.set_kv_buffer(0, indices, k, v))
    kv.k_buffer[0].zero_()
    kv.v_buffer[0].zero_()
    indices.copy_(torch.tensor([9, 64, 5, 0], dtype=torch.int32))
    new_k, new_v = make_kv(4, scale=2.0)
    k.copy_(new_k)
    v.copy_(new_v)
    graph.replay()
    expected_k, expected_v = torch.zeros_like(kv.k_buffer[0]), torch.zeros_like(kv.v_buffer[0])
    expected_k[[9, 64, 5, 0]] = new_k
    expected_v[[9, 64, 5, 0]] = new_v
    assert torch.equal(kv.k_buffer[0], expected_k)
    assert torch.equal(kv.v_buffer[0], expected_v)


def test_captured_state_moves_follow_their_static_inputs(gdn: GDNPool) -> None:
    """P5: snapshots and resets can be part of a graph."""
    src = torch.tensor([1, 0], device="cuda")
    dst = torch.tensor([5, 0], device="cuda")

    def work() -> None:
        gdn.copy_states(src, dst)
        gdn.reset_states(src)

    graph = capture(work)
    gdn.recurrent_state.copy_(torch.arange(gdn.pool_size, device="cuda")[None, :, None, None, None])
    src.copy_(torch.tensor([2, 3]))
    dst.copy_(torch.tensor([8, 7]))
    graph.replay()
    assert gdn.recurrent_state[0, :, 0, 0, 0].tolist() == [0, 1, 0, 0, 4, 5, 6, 3, 2]


def test_a_captured_table_write_follows_its_static_inputs() -> None:
    """P2, E5: the step's slots can be entered from inside the graph."""
    pool = ReqToTokenPool(4, 8, "cuda")
    assert pool.alloc(4) == [1, 2, 3, 4]
    rows = torch.tensor([1, 0], device="cuda")
    positions = torch.tensor([0, 0], device="cuda")
    slots = torch.tensor([7, 0], device="cuda", dtype=torch.int32)
    graph = capture(lambda: pool.write((rows, positions), slots))
    pool.req_to_token.zero_()
    rows.copy_(torch.tensor([4, 2]))
    positions.copy_(torch.tensor([7, 3]))
    slots.copy_(torch.tensor([11, 12], dtype=torch.int32))
    graph.replay()
    expected = torch.zeros_like(pool.req_to_token)
    expected[4, 7], expected[2, 3] = 11, 12
    assert torch.equal(pool.req_to_token, expected)


def test_repeated_work_keeps_no_device_memory(
    kv: KVPool, gdn: GDNPool, leak_check: Callable[..., LeakVerdict]
) -> None:
    """P3, P5: nothing is kept per call; the pools' memory is what they reported."""
    indices = torch.arange(1, 9, device="cuda")
    k, v = make_kv(8)
    kv.set_kv_buffer(0, indices, k, v)
    gdn.copy_states(indices[:2], indices[2:4])
    before = torch.cuda.memory_allocated()

    def work() -> None:
        for _ in range(100):
            kv.set_kv_buffer(0, indices, k, v)
            gdn.copy_states(indices[:2], indices[2:4])
            gdn.reset_states(indices[:2])

    verdict = leak_check(work)
    assert torch.cuda.memory_allocated() == before
    assert verdict.of(Layer.LIVE).outcome is Outcome.NO_LEAK
    assert verdict.of(Layer.CACHE).outcome is Outcome.NO_LEAK
