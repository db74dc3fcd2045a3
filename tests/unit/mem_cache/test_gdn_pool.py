"""States of `GDNPool`: layout, copies, resets and track slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pymllm.mem_cache.pools.gdn_pool import GDNPool
from tests.far_device import Apart
from tests.unit.mem_cache.plain_kernel import PlainKernel

# On a GPU, where there is Triton, one launch moves both buffers; the promises are the same.
pytestmark = pytest.mark.usefixtures("on_the_cpu")

LAYERS, V_HEADS, K_DIM, V_DIM, CONV, KERNEL = 3, 2, 4, 5, 6, 4


def make_pool(
    max_reqs: int = 4,
    max_track_slots: int = 3,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    *,
    kernel: int = KERNEL,
    check_bounds: bool | None = None,
) -> GDNPool:
    return GDNPool(
        max_reqs,
        LAYERS,
        V_HEADS,
        K_DIM,
        V_DIM,
        CONV,
        kernel,
        device,
        dtype,
        max_track_slots,
        check_bounds=check_bounds,
    )


def fill_with_random_bits(pool: GDNPool) -> None:
    """Any bit pattern may stand in a state, the many kinds of NaN included."""
    generator = torch.Generator().manual_seed(5)
    for state in (pool.recurrent_state, pool.conv_state):
        count = state.nbytes
        bits = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
        state.copy_(bits.view(state.dtype).view(state.shape).to(state.device))


def read_bits(pool: GDNPool) -> list[torch.Tensor]:
    """Both states as integers, layer and row first, on the host."""
    return [
        state.cpu().contiguous().view(torch.uint8).clone().view(LAYERS, pool.pool_size, -1)
        for state in (pool.recurrent_state, pool.conv_state)
    ]


def test_states_have_the_layout_of_the_layer_view(device: torch.device) -> None:
    """P4: head_v_dim before head_k_dim, float32; conv in dtype with kernel_size - 1 columns."""
    pool = make_pool(device=device, dtype=torch.float16)
    assert pool.recurrent_state.shape == (LAYERS, 8, V_HEADS, V_DIM, K_DIM)
    assert pool.recurrent_state.dtype is torch.float32
    assert pool.conv_state.shape == (LAYERS, 8, CONV, KERNEL - 1)
    assert pool.conv_state.dtype is torch.float16
    assert not pool.recurrent_state.any()
    assert not pool.conv_state.any()


def test_a_layer_is_a_view_of_the_pool() -> None:
    """P4, X5: [pool_size, num_v_heads, head_v_dim, head_k_dim], shared by design."""
    pool = make_pool()
    for layer in range(LAYERS):
        recurrent, conv = pool.get_layer_state(layer)
        assert recurrent.shape == (8, V_HEADS, V_DIM, K_DIM)
        assert conv.shape == (8, CONV, KERNEL - 1)
        assert recurrent.is_contiguous()
        assert conv.is_contiguous()
        recurrent[2] = layer + 1
        conv[2] = layer + 1
    assert pool.recurrent_state[:, 2, 0, 0, 0].tolist() == [1, 2, 3]
    assert pool.conv_state[:, 2, 0, 0].tolist() == [1, 2, 3]


def test_a_launch_moves_both_states_and_another_resets_them(plain_kernel: PlainKernel) -> None:
    """P5: one for a batch of rows, one for a row, one for zeros; ordered, since rows are read and written."""
    pool = GDNPool(4, LAYERS, V_HEADS, K_DIM, V_DIM, CONV, KERNEL, "cpu", fused=True)
    assert pool.is_fused
    for move in (
        lambda: pool.copy_states([1, 2], [2, 1]),
        lambda: pool.copy_states(1, 2),
        lambda: pool.reset_states([1, 2]),
    ):
        plain_kernel.launches.clear()
        move()
        assert len(plain_kernel.launches) == 1


INDEX_KINDS = [
    lambda rows, device: rows,
    lambda rows, device: np.array(rows, dtype=np.int16),
    lambda rows, device: torch.tensor(rows, dtype=torch.int64),
    lambda rows, device: torch.tensor(rows, dtype=torch.uint8),
    lambda rows, device: torch.tensor(rows, dtype=torch.int32, device=device),
]


@pytest.mark.parametrize("kind", INDEX_KINDS)
@pytest.mark.parametrize("rows", [[2], [1, 7, 4], [0], []])
def test_reset_zeroes_exactly_the_named_rows(device: torch.device, kind: Any, rows: list[int]) -> None:
    """P5: every layer of those rows is zero, bit for bit, and no other row changes."""
    pool = make_pool(device=device)
    fill_with_random_bits(pool)
    expected = read_bits(pool)
    for bits in expected:
        bits[:, rows] = 0
    pool.reset_states(kind(rows, device))
    for found, bits in zip(read_bits(pool), expected, strict=True):
        assert torch.equal(found, bits)


@pytest.mark.parametrize("kind", INDEX_KINDS)
@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ([1], [5]),
        ([6, 7, 1], [2, 3, 4]),
        ([1, 2, 3], [2, 3, 1]),
        ([4, 4], [1, 2]),
        ([3], [3]),
        ([0], [2]),
        ([2], [0]),
        ([], []),
    ],
)
def test_a_copy_is_bit_exact_and_reads_before_it_writes(
    device: torch.device, kind: Any, src: list[int], dst: list[int]
) -> None:
    """P5: all layers, any NaN payload, and rows that are both source and destination."""
    pool = make_pool(device=device)
    fill_with_random_bits(pool)
    expected = read_bits(pool)
    for bits in expected:
        bits[:, dst] = bits[:, src].clone()
    pool.copy_states(kind(src, device), kind(dst, device))
    for found, bits in zip(read_bits(pool), expected, strict=True):
        assert torch.equal(found, bits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e4m3fn], ids=str)
def test_a_copy_keeps_the_bits_of_every_conv_dtype(dtype: torch.dtype) -> None:
    """P5: what the convolution is stored in makes no difference."""
    pool = make_pool(dtype=dtype)
    fill_with_random_bits(pool)
    expected = read_bits(pool)[1]
    pool.copy_states(torch.tensor([1]), 6)
    pool.reset_states([2])
    expected[:, 6] = expected[:, 1]
    expected[:, 2] = 0
    assert torch.equal(read_bits(pool)[1], expected)


@pytest.mark.gpu
def test_device_indices_are_looked_at_on_request() -> None:
    """P5: check_bounds=True refuses a device index before the write."""
    pool = make_pool(device="cuda", check_bounds=True)
    with pytest.raises(IndexError, match="req_pool_indices 8"):
        pool.reset_states(torch.tensor([8], device="cuda"))


def test_switched_off_checks_still_copy_what_is_named() -> None:
    """P5: check_bounds=False changes what is refused, not what is copied."""
    pool = make_pool(check_bounds=False)
    pool.recurrent_state[:, 1] = 7
    pool.copy_states(torch.tensor([1]), torch.tensor([2]))
    assert (pool.recurrent_state[:, 2] == 7).all()
    with pytest.raises(IndexError, match="src_index 8"):
        pool.copy_states(8, 1)


@pytest.mark.notices("B77", shows_as=RuntimeError)
@pytest.mark.notices("B151")
def test_track_slots_follow_the_rows_and_are_handed_out_once() -> None:
    """P5, X4: max_reqs + 1 and up, each once until freed; then None, which changes nothing."""
    pool = make_pool()
    assert [pool.alloc_track_slot() for _ in range(3)] == [5, 6, 7]
    assert pool.alloc_track_slot() is None
    assert pool.available_track_slots() == 0
    pool.free_track_slot(7)
    pool.free_track_slot(5)
    assert pool.available_track_slots() == 2
    assert [pool.alloc_track_slot() for _ in range(3)] == [5, 7, None]


def test_a_convolution_of_width_1_has_an_empty_state() -> None:
    """P4: kernel_size - 1 columns may be none, and resets and copies still work."""
    pool = make_pool(kernel=1)
    assert pool.conv_state.shape == (LAYERS, 8, CONV, 0)
    pool.recurrent_state[:, 1] = 3
    pool.copy_states(1, 2)
    pool.reset_states(1)
    assert not pool.recurrent_state[:, 1].any()
    assert (pool.recurrent_state[:, 2] == 3).all()


def test_the_bytes_of_padding_and_track_slots_count() -> None:
    """P4: what is allocated is what is reported."""
    pool = make_pool(dtype=torch.float16)
    assert pool.mem_bytes() == LAYERS * 8 * (V_HEADS * K_DIM * V_DIM * 4 + CONV * (KERNEL - 1) * 2)


def test_states_from_inference_mode_are_writable_outside() -> None:
    """P5: where the pool was built does not decide where it can be written."""
    with torch.inference_mode():
        pool = make_pool()
    pool.recurrent_state[:, 1] = 2
    pool.reset_states(1)
    assert not pool.recurrent_state.any()


def test_the_pool_shows_its_shape() -> None:
    """P4: a log line says what was built and what is free."""
    pool = make_pool()
    pool.alloc_track_slot()
    assert repr(pool) == (
        "GDNPool(max_reqs=4, num_gdn_layers=3, max_track_slots=3, dtype=torch.bfloat16, device='cpu', "
        "available_track_slots=2)"
    )


class CountOperations(TorchDispatchMode):
    """Count what torch is asked to do: on a device, each is at most one launch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "call", [lambda pool, rows: pool.copy_states(rows, rows), lambda pool, rows: pool.reset_states(rows)]
)
def test_launches_do_not_grow_with_layers_or_rows(call: Any) -> None:
    """P5: one launch for all layers of all rows, not one for each."""
    counts = set()
    for layers, rows in ((1, [1]), (8, [1, 2, 3])):
        pool = GDNPool(4, layers, V_HEADS, K_DIM, V_DIM, CONV, KERNEL, "cpu")
        with CountOperations() as counter:
            call(pool, torch.tensor(rows))
        counts.add(counter.count)
    assert len(counts) == 1
    assert counts.pop() > 0


def test_copies_and_resets_wait_for_nothing(apart: Apart) -> None:
    """P5: rows are ints, or indices on the device or on the host."""
    device, synchronisations = apart
    pool = make_pool(device=device)
    src, dst = torch.tensor([1, 2], device=device), torch.tensor([5, 6], device=device, dtype=torch.int32)
    with synchronisations() as waits:
        pool.copy_states(1, 5)
        pool.copy_states(src, dst)
        pool.reset_states(3)
        pool.reset_states(dst)
        pool.copy_states([1, 2], torch.tensor([5, 6]))
        pool.reset_states([1])
        pool.clear()
    assert waits == []


def test_track_slot_that_cannot_be_filed_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2, X4: neither handed out without an answer, nor given back without a place."""
    pool = make_pool()
    held = pool.alloc_track_slot()

    def fail(*args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("pymllm.mem_cache.pools.gdn_pool.heapq.heappop", fail)
        patch.setattr("pymllm.mem_cache.pools.gdn_pool.heapq.heappush", fail)
        for call in (pool.alloc_track_slot, lambda: pool.free_track_slot(held)):
            with pytest.raises(MemoryError):
                call()
    assert (pool.available_track_slots(), pool.is_track_slot_handed_out(held)) == (2, True)
    assert pool.alloc_track_slot() == held + 1
    pool.free_track_slot(held)
    assert pool.alloc_track_slot() == held
