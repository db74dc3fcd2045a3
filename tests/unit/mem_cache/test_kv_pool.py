"""Tests of `KVPool`: the rows that it writes, their slots, and the calls that it refuses."""

from __future__ import annotations

import gc
import mmap
from typing import Any

import pytest
import torch

from pymllm.mem_cache.pools import pinned
from pymllm.mem_cache.pools.kv_pool import KVPool
from tests.far_device import Apart

# On a GPU, where there is Triton, one launch moves both buffers; the promises are the same.
pytestmark = pytest.mark.usefixtures("on_the_cpu")

LAYERS, K_HEADS, K_DIM, V_HEADS, V_DIM = 2, 2, 4, 3, 2


def make_pool(
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    page_size: int = 1,
    check_bounds: bool | None = None,
) -> KVPool:
    return KVPool(
        8,
        LAYERS,
        K_HEADS,
        K_DIM,
        device,
        dtype,
        V_HEADS,
        V_DIM,
        page_size=page_size,
        check_bounds=check_bounds,
    )


def make_rows(pool: KVPool, count: int, start: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of consecutive numbers, V counting on where K ends."""
    k_end = start + count * K_HEADS * K_DIM
    v_end = k_end + count * V_HEADS * V_DIM
    k = torch.arange(start, k_end, device=pool.device).view(count, K_HEADS, K_DIM).to(pool.dtype)
    v = torch.arange(k_end, v_end, device=pool.device).view(count, V_HEADS, V_DIM).to(pool.dtype)
    return k, v


def assert_only_rows(pool: KVPool, layer: int, slots: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
    """Those rows hold k and v, every other row of every layer is zero."""
    for number in range(pool.layer_num):
        expected_k = torch.zeros_like(pool.k_buffer[number])
        expected_v = torch.zeros_like(pool.v_buffer[number])
        if number == layer:
            expected_k[slots] = k.reshape(-1, K_HEADS, K_DIM)
            expected_v[slots] = v.reshape(-1, V_HEADS, V_DIM)
        assert torch.equal(pool.k_buffer[number], expected_k)
        assert torch.equal(pool.v_buffer[number], expected_v)


def test_buffers_are_contiguous_and_start_as_zeros(device: torch.device) -> None:
    """P3: every layer has its own [rows, heads, dim] pair, and a padding row never holds garbage."""
    pool = make_pool(device)
    assert len(pool.k_buffer) == len(pool.v_buffer) == LAYERS
    for layer in range(LAYERS):
        k, v = pool.get_kv_buffer(layer)
        assert k.shape == (9, K_HEADS, K_DIM)
        assert v.shape == (9, V_HEADS, V_DIM)
        assert k.is_contiguous()
        assert v.is_contiguous()
        assert k.device == v.device == pool.device
        assert not k.any()
        assert not v.any()


@pytest.mark.notices("B95")
@pytest.mark.parametrize("page_size", [1, 2, 4, 8])
def test_the_last_slot_of_the_last_page_is_a_row(page_size: int) -> None:
    """A1: pages count from 1, so exactly size + page_size rows are needed."""
    pool = make_pool(page_size=page_size)
    assert all(buffer.shape[0] == 8 + page_size for buffer in (*pool.k_buffer, *pool.v_buffer))
    k, v = make_rows(pool, 1)
    pool.set_kv_buffer(0, torch.tensor([8 + page_size - 1]), k, v)
    assert_only_rows(pool, 0, [8 + page_size - 1], k, v)


def test_values_have_the_shape_of_keys_unless_told_otherwise() -> None:
    """P3: v_head_num and v_head_dim default to the keys' each on its own."""
    pool = KVPool(4, 1, 2, 3, device="cpu", v_head_dim=5)
    assert (pool.v_head_num, pool.v_head_dim) == (2, 5)
    pool = KVPool(4, 1, 2, 3, device="cpu", v_head_num=1)
    assert (pool.v_head_num, pool.v_head_dim) == (1, 3)


SHAPES = {
    "tokens, heads, dim": ((6,), (6, K_HEADS, K_DIM), (6, V_HEADS, V_DIM)),
    "batch, seq, heads, dim": ((2, 3), (2, 3, K_HEADS, K_DIM), (2, 3, V_HEADS, V_DIM)),
    "tokens, row": ((6,), (6, K_HEADS * K_DIM), (6, V_HEADS * V_DIM)),
    "batch, seq, row": ((2, 3), (2, 3, K_HEADS * K_DIM), (2, 3, V_HEADS * V_DIM)),
    "flat tokens, batched indices": ((2, 3), (6, K_HEADS, K_DIM), (6, V_HEADS * V_DIM)),
    "batched tokens, flat indices": ((6,), (3, 2, K_HEADS, K_DIM), (2, 3, V_HEADS, V_DIM)),
    "row cut into other pieces": ((6,), (6, 2, 2, 2), (6, 2, V_HEADS * V_DIM // 2)),
    "column of indices": ((6, 1), (6, 1, K_HEADS, K_DIM), (6, V_HEADS, V_DIM)),
}


@pytest.mark.parametrize(("index_shape", "k_shape", "v_shape"), SHAPES.values(), ids=SHAPES.keys())
def test_every_documented_shape_writes_the_same_rows(
    device: torch.device, index_shape: tuple[int, ...], k_shape: tuple[int, ...], v_shape: tuple[int, ...]
) -> None:
    """P3: exactly the named rows of both buffers, whatever the shape on the way in."""
    pool = make_pool(device)
    slots = [5, 1, 8, 2, 7, 3]
    k, v = make_rows(pool, 6)
    pool.set_kv_buffer(
        1, torch.tensor(slots, device=device).view(index_shape), k.view(k_shape), v.view(v_shape)
    )
    assert_only_rows(pool, 1, slots, k, v)


def test_rows_of_one_element_need_no_row_dimension() -> None:
    """P3: with one head of one element the trailing dimensions may be none too."""
    pool = KVPool(4, 1, 1, 1, device="cpu", dtype=torch.int64)
    pool.set_kv_buffer(0, torch.tensor([2, 3]), torch.tensor([20, 30]), torch.tensor([[2], [3]]))
    assert pool.k_buffer[0].flatten().tolist() == [0, 0, 20, 30, 0]
    assert pool.v_buffer[0].flatten().tolist() == [0, 0, 2, 3, 0]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ],
    ids=str,
)
def test_indices_of_any_integer_dtype_name_the_same_rows(device: torch.device, dtype: torch.dtype) -> None:
    """P3: uint8 indices are numbers, never a mask, and no width changes the rows."""
    pool = make_pool(device)
    k, v = make_rows(pool, 3)
    pool.set_kv_buffer(0, torch.tensor([1, 0, 6]).to(dtype).to(device), k, v)
    assert_only_rows(pool, 0, [1, 0, 6], k, v)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
        torch.int64,
    ],
    ids=str,
)
def test_every_storage_dtype_keeps_its_bits(device: torch.device, dtype: torch.dtype) -> None:
    """P3, E1: whatever a cache is stored in, a row reads back as it was written."""
    pool = make_pool(device, dtype)
    width = dtype.itemsize
    bits = torch.randint(0, 256, (2, K_HEADS * K_DIM * width), dtype=torch.uint8, device=device)
    k = bits.view(dtype).view(2, K_HEADS, K_DIM)
    v = bits[:, : V_HEADS * V_DIM * width].contiguous().view(dtype).view(2, V_HEADS, V_DIM)
    pool.set_kv_buffer(1, torch.tensor([3, 8], device=device), k, v)
    assert torch.equal(pool.k_buffer[1][[3, 8]].contiguous().view(torch.uint8).flatten(), bits.flatten())
    assert torch.equal(
        pool.v_buffer[1][[3, 8]].contiguous().view(torch.uint8).flatten(), v.view(torch.uint8).flatten()
    )


def test_padded_tokens_all_land_in_slot_0(device: torch.device) -> None:
    """E5: padding writes land in slot 0 and nowhere else."""
    pool = make_pool(device)
    k, v = make_rows(pool, 4)
    pool.set_kv_buffer(0, torch.tensor([0, 3, 0, 0], device=device), k, v)
    if device.type == "cpu":
        assert any(torch.equal(pool.k_buffer[0][0], k[row]) for row in (0, 2, 3))
    else:  # written side by side: of a long row, each may have left a part
        assert (pool.k_buffer[0][0] == k[[0, 2, 3]]).any(0).all()
    pool.k_buffer[0][0] = 0
    pool.v_buffer[0][0] = 0
    assert_only_rows(pool, 0, [3], k[1:2], v[1:2])


def test_rows_can_be_moved_inside_the_pool() -> None:
    """P3: a view of the pool's own buffers is read before anything is written."""
    pool = KVPool(6, 1, 1, 1, device="cpu", dtype=torch.int64)
    numbers = torch.arange(7).view(7, 1, 1)
    pool.set_kv_buffer(0, torch.arange(7), numbers, numbers * 10)
    k, v = pool.get_kv_buffer(0)
    pool.set_kv_buffer(0, torch.tensor([2, 3, 4, 5]), k[1:5], v[1:5])
    assert k.flatten().tolist() == [0, 1, 1, 2, 3, 4, 6]
    assert v.flatten().tolist() == [0, 10, 10, 20, 30, 40, 60]
    pool.set_kv_buffer(0, torch.tensor([1, 2]), v[5:7], k[5:7])
    assert k.flatten().tolist()[1:3] == [40, 60]
    assert v.flatten().tolist()[1:3] == [4, 6]


def test_rows_seen_through_another_tensor_can_be_moved_too() -> None:
    """P3: what counts is whose memory it is, not how torch came by it."""
    pool = KVPool(6, 1, 1, 1, device="cpu", dtype=torch.int64)
    numbers = torch.arange(7).view(7, 1, 1)
    pool.set_kv_buffer(0, torch.arange(7), numbers, numbers * 10)
    k, v = (torch.from_numpy(buffer.numpy()[1:5]) for buffer in pool.get_kv_buffer(0))
    assert k.untyped_storage().data_ptr() != pool.get_key_buffer(0).untyped_storage().data_ptr()
    pool.set_kv_buffer(0, torch.tensor([2, 3, 4, 5]), k, v)
    assert pool.get_key_buffer(0).flatten().tolist() == [0, 1, 1, 2, 3, 4, 6]
    assert pool.get_value_buffer(0).flatten().tolist() == [0, 10, 10, 20, 30, 40, 60]
    pool.set_kv_buffer(0, torch.tensor([2, 3, 4, 5]), v, k)
    assert pool.get_key_buffer(0).flatten().tolist() == [0, 1, 10, 10, 20, 30, 6]
    assert pool.get_value_buffer(0).flatten().tolist() == [0, 10, 1, 1, 2, 3, 60]


LAZY = {
    "conjugate": (torch.complex64, lambda rows: rows.conj()),
    "negative": (torch.float32, lambda rows: torch.complex(rows, rows).conj().imag),
    "conjugate that takes no view as integers": (torch.complex128, lambda rows: rows.conj()),
}


@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize(("dtype", "mark"), LAZY.values(), ids=LAZY.keys())
def test_what_torch_only_marks_is_written_out(dtype: torch.dtype, mark: Any, which: str) -> None:
    """P3, X1: a conjugate or negative is lazy in torch; its numbers are written, not those below the mark."""
    pool = make_pool(dtype=dtype)
    k, v = make_rows(pool, 2)
    if dtype.is_complex:
        k, v = k * 1j, v * 1j
    lazy = {"k": k, "v": v} | {which: mark({"k": k, "v": v}[which])}
    assert lazy[which].is_conj() or lazy[which].is_neg()
    pool.set_kv_buffer(1, torch.tensor([3, 5]), lazy["k"], lazy["v"])
    assert_only_rows(
        pool, 1, [3, 5], lazy["k"].resolve_conj().resolve_neg(), lazy["v"].resolve_conj().resolve_neg()
    )
    assert not torch.equal(pool.k_buffer[1][[3, 5]], k) or which == "v"
    assert not torch.equal(pool.v_buffer[1][[3, 5]], v) or which == "k"


def test_rows_that_want_a_gradient_leave_none_behind() -> None:
    """P3: a cache is storage; it must not grow a graph that keeps every step alive."""
    pool = make_pool()
    k, v = make_rows(pool, 1)
    pool.set_kv_buffer(0, torch.tensor([1]), k.requires_grad_(), v)
    assert not pool.k_buffer[0].requires_grad
    assert torch.equal(pool.k_buffer[0][1], k[0])


def test_a_pool_from_inference_mode_is_writable_outside() -> None:
    """P3, X5: where the pool was built does not decide who can write the shared buffers."""
    with torch.inference_mode():
        pool = make_pool()
    k, v = make_rows(pool, 1)
    pool.get_key_buffer(0)[1] = k[0]
    pool.get_value_buffer(0)[1] = v[0]
    assert_only_rows(pool, 0, [1], k, v)


@pytest.mark.gpu
def test_a_host_index_outside_is_refused_on_cuda_too() -> None:
    """P3: values of host tensors cost no synchronisation, so they are always looked at."""
    pool = make_pool("cuda")
    k, v = make_rows(pool, 1)
    with pytest.raises(IndexError, match="slot 9 is outside"):
        pool.set_kv_buffer(0, torch.tensor([9]), k, v)
    assert not pool.k_buffer[0].any()


@pytest.mark.gpu
@pytest.mark.parametrize("slot", [9, -1])
def test_a_device_index_outside_is_refused_on_request(slot: int) -> None:
    """P3: check_bounds=True looks at device indices and refuses before the write."""
    pool = make_pool("cuda", check_bounds=True)
    k, v = make_rows(pool, 1)
    with pytest.raises(IndexError, match="is outside"):
        pool.set_kv_buffer(0, torch.tensor([slot], device="cuda"), k, v)
    assert not pool.k_buffer[0].any()


@pytest.mark.gpu
def test_host_rows_are_refused_on_cuda() -> None:
    """P3: k and v are never copied across devices behind the caller's back."""
    pool = make_pool("cuda")
    k, v = make_rows(make_pool("cpu"), 1)
    with pytest.raises(ValueError, match="k is on cpu, the pool on cuda"):
        pool.set_kv_buffer(0, torch.tensor([1]), k, v)


class FakeRuntime:
    """Stands in for `torch.cuda.cudart()`, and keeps what is page-locked."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.locked[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return f"error {error}"


def with_runtime(monkeypatch: pytest.MonkeyPatch, runtime: FakeRuntime) -> FakeRuntime:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return runtime


@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_host_buffers_are_page_locked(
    device: str, pin_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: pinning is for memory that an accelerator reads from the host."""
    runtime = with_runtime(monkeypatch, FakeRuntime())
    pool = KVPool(4, 2, 1, 1, device=device, dtype=torch.int8, pin_memory=pin_memory)
    assert pool.is_pinned is bool(runtime.locked) is (pin_memory and device == "cpu")
    assert pool.mem_bytes() == (mmap.PAGESIZE if pool.is_pinned else 4 * 5)


def test_a_pool_on_the_host_starts_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although pinning is the default; nobody who wants a pool on the CPU asked for a context."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: pytest.fail("CUDA was started"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda *_: pytest.fail("torch pins by powers of two"))
    assert not KVPool(4, 1, 1, 1, device="cpu").is_pinned


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.complex64])
def test_page_locked_buffers_are_like_any(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: zeros in one piece, which takes what it says, and no buffer is in another's way."""
    runtime = with_runtime(monkeypatch, FakeRuntime())
    pool = KVPool(99, 3, 2, 5, device="cpu", dtype=dtype, v_head_dim=3)
    buffers = [*pool.k_buffer, *pool.v_buffer]
    assert [list(it.shape) for it in buffers] == [[100, 2, 5]] * 3 + [[100, 2, 3]] * 3
    assert not any(it.view(torch.uint8).any() for it in buffers)
    assert all(it.data_ptr() % 64 == 0 for it in buffers)
    needed = sum(it.nbytes for it in buffers)
    assert list(runtime.locked.values()) == [pool.mem_bytes()]
    assert needed <= pool.mem_bytes() < needed + 6 * 64 + mmap.PAGESIZE
    k, v = torch.ones(1, 2, 5).to(dtype), torch.ones(1, 2, 3).to(dtype)
    pool.set_kv_buffer(1, torch.tensor([99]), k, v)
    written = [it.view(torch.uint8).count_nonzero().item() > 0 for it in buffers]
    assert written == [False, True, False, False, True, False]


def test_memory_is_locked_as_long_as_anybody_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer outlives its pool; a forked child has nothing to unlock."""
    runtime = with_runtime(monkeypatch, FakeRuntime())
    buffer = KVPool(4, 1, 1, 1, device="cpu").k_buffer[0]
    gc.collect()
    assert len(runtime.locked) == 1
    with monkeypatch.context() as patch:
        patch.setattr(pinned.os, "getpid", lambda: 0)
        child = KVPool(4, 1, 1, 1, device="cpu")
    assert len(runtime.locked) == 2
    del child
    assert len(runtime.locked) == 2
    del buffer
    assert len(runtime.locked) == 1


def test_what_the_driver_does_not_lock_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: with the bytes and the way out, and nothing is unlocked afterwards."""
    runtime = with_runtime(monkeypatch, FakeRuntime(error=2))
    told = rf"^{mmap.PAGESIZE} bytes cannot be page-locked .*error 2\); build .*=False$"
    with pytest.raises(RuntimeError, match=told):
        KVPool(4, 1, 1, 1, device="cpu")
    assert len(runtime.locked) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("pin_memory", [True, False])
def test_host_buffers_are_pinned_where_it_helps(pin_memory: bool) -> None:
    """P3: with CUDA in use, buffers on the CPU are page-locked on request."""
    torch.cuda.init()
    pool = KVPool(4, 1, 1, 1, device="cpu", pin_memory=pin_memory)
    assert pool.k_buffer[0].is_pinned() is pool.is_pinned is pin_memory
    assert not pool.k_buffer[0].any()


def test_the_bytes_of_both_halves_are_counted() -> None:
    """P3: padding rows take memory like any other."""
    pool = make_pool(dtype=torch.float16, page_size=4)
    assert pool.mem_bytes() == 2 * (8 + 4) * LAYERS * (K_HEADS * K_DIM + V_HEADS * V_DIM)


def test_the_pool_shows_its_shape() -> None:
    """P3: a log line says what was built."""
    assert repr(make_pool(page_size=4)) == (
        "KVPool(size=8, layer_num=2, k=2x4, v=3x2, dtype=torch.float32, device='cpu', page_size=4)"
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_write_waits_for_nothing(apart: Apart, dtype: torch.dtype) -> None:
    """P3: with indices on the device or on the host, whoever moves the rows."""
    device, synchronisations = apart
    pool = make_pool(device)
    indices = torch.tensor([3, 0, 7, 0], device=device, dtype=dtype)
    k, v = make_rows(pool, 4)
    on_host = indices.cpu()
    with synchronisations() as waits:
        pool.set_kv_buffer(1, indices, k, v)
        pool.set_kv_buffer(0, on_host, k, v)
    assert waits == []
    assert torch.equal(pool.k_buffer[0].cpu()[[3, 7]], k.cpu()[[0, 2]])
    assert torch.equal(pool.k_buffer[1].cpu()[[3, 7]], k.cpu()[[0, 2]])
