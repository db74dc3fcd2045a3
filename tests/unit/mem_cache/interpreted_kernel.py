"""The Triton kernel itself, interpreted on the CPU, against torch: run by ``test_row_kernels.py``.

Not collected by itself: Triton decides when it is imported whether it interprets, from TRITON_INTERPRET=1.
"""

from __future__ import annotations

import mmap

import pytest
import torch

from pymllm.mem_cache.kernels.fused_kv import FusedKV
from pymllm.mem_cache.kernels.fused_states import FusedStates
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.pools.kv_pool import KVPool

MAP_NORESERVE = 0x4000  # of Linux; a name in Python from 3.13 on


def random_bits(count: int, heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    bits = torch.randint(0, 256, (count, heads, dim * dtype.itemsize), dtype=torch.uint8)
    return bits.view(dtype)


def bits_of(pool: KVPool) -> list[torch.Tensor]:
    return [buffer.view(torch.uint8).clone() for buffer in (*pool.k_buffer, *pool.v_buffer)]


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("dtype", "k", "v", "counts"),
    [
        (torch.bfloat16, (2, 32), (2, 32), (0, 1, 3, 256)),
        (torch.bfloat16, (8, 128), (4, 24), (3,)),
        (torch.float32, (3, 5), (1, 2), (0, 1, 3, 256)),
        (torch.float8_e4m3fn, (1, 3), (1, 16), (1, 3, 256)),
        (torch.int64, (1, 1), (1, 1), (1, 256, 4097)),
        (torch.complex128, (2, 3), (1, 1), (3,)),
        (torch.float16, (1, 576), (1, 512), (3,)),
    ],
    ids=str,
)
def test_a_pool_writes_the_bits_that_torch_writes(
    index_dtype: torch.dtype,
    dtype: torch.dtype,
    k: tuple[int, int],
    v: tuple[int, int],
    counts: tuple[int, ...],
) -> None:
    """P3, E1: one launch, bit for bit, and no other row."""
    for count in counts:
        pools = [KVPool(4200, 2, *k, "cpu", dtype, *v, fused=fused) for fused in (True, False)]
        slots = (torch.randperm(4200)[:count] + 1).to(index_dtype)
        rows = random_bits(count, *k, dtype), random_bits(count, *v, dtype)
        for pool in pools:
            pool.set_kv_buffer(1, slots, *rows)
        assert [pool.is_fused for pool in pools] == [True, False]
        assert all(map(torch.equal, *map(bits_of, pools)))


def test_padding_goes_to_slot_0_and_nowhere_else() -> None:
    """E5: repeated, among others."""
    pool = KVPool(8, 1, 2, 4, "cpu", torch.float32, fused=True)
    rows = torch.arange(1, 5.0)[:, None, None].expand(4, 2, 4)
    pool.set_kv_buffer(0, torch.tensor([0, 5, 0, 0], dtype=torch.int32), rows, -rows)
    assert pool.k_buffer[0].view(9, 8)[:, 0].tolist()[1:] == [0, 0, 0, 0, 2, 0, 0, 0]
    assert pool.k_buffer[0][0].unique().item() in (1, 3, 4)
    assert torch.equal(pool.k_buffer[0], -pool.v_buffer[0])


def test_slices_of_a_projection_are_read_where_they_are() -> None:
    """P3: rows with the stride of a larger one."""
    pool = KVPool(8, 1, 2, 4, "cpu", torch.float32, fused=True)
    qkv = torch.randn(3, 24)
    pool.set_kv_buffer(0, torch.tensor([7, 2, 4]), qkv[:, 8:16], qkv[:, 16:])
    assert torch.equal(pool.k_buffer[0][[7, 2, 4]].view(3, 8), qkv[:, 8:16])
    assert torch.equal(pool.v_buffer[0][[7, 2, 4]].view(3, 8), qkv[:, 16:])


@pytest.mark.parametrize("count", [1, 3, 64, 70, 513])
def test_states_move_as_torch_moves_them(count: int) -> None:
    """P5: rows that change places, rows by number, and rows that are cleared, in every layer."""
    pools = [
        GDNPool(299, 2, 2, 4, 4, 6, 4, "cpu", max_track_slots=300, fused=fused) for fused in (True, False)
    ]
    pools[0].recurrent_state.view(torch.int32).random_()
    pools[0].conv_state.view(torch.int16).random_()
    for ours, other in zip(pools[0]._states, pools[1]._states, strict=True):
        other.copy_(ours)
    order = torch.randperm(600)
    read, write = order[:count].int(), order[:count].roll(1)
    for pool in pools:
        pool.copy_states(read, write)
        pool.copy_states(3, 599)
        pool.reset_states(order[:2])
        pool.reset_states(7)
    for ours, other in zip(pools[0]._states, pools[1]._states, strict=True):
        assert torch.equal(ours.view(torch.uint8), other.view(torch.uint8))


def test_states_are_copied_from_other_buffers() -> None:
    """C7: with other strides, int32 and int64 rows in one launch."""
    cached = torch.zeros(3, 5, 6, 3, dtype=torch.bfloat16), torch.zeros(3, 5, 2, 4)
    live = torch.randn(3, 20, 6, 3).bfloat16()[:, 10:], torch.randn(3, 9, 2, 4)
    fused = FusedStates(*cached, within=False)
    read, write = torch.tensor([8, 1, 5], dtype=torch.int32), torch.tensor([0, 4, 2])
    assert fused.copy(3, live, read, cached, write)
    for source, target in zip(live, cached, strict=True):
        assert torch.equal(target[:, write], source[:, read.long()])
        assert not target[:, [1, 3]].any()


@pytest.fixture
def wide_memory() -> torch.Tensor:
    """Two layers of 10^9 rows of 3 bytes, of which only what is written takes memory."""
    try:
        memory = mmap.mmap(-1, 6 * 10**9, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except OSError as error:
        pytest.skip(f"no address space for 6 GB that are not used: {error}")
    return torch.frombuffer(memory, dtype=torch.uint8).view(2, 10**9, 3)


def test_states_beyond_32_bits_are_reached(wide_memory: torch.Tensor) -> None:
    """P5, C7: elements from 2^31 on, by the number of a row, by an index, and in another layer."""
    states = wide_memory, torch.empty(2, 10**9, 0)
    fused = FusedStates(*states, within=True)
    low, high = [7, 9], [10**9 - 1, 10**9 - 7]
    wide_memory[:, low] = content = torch.arange(12, dtype=torch.uint8).view(2, 2, 3)
    assert fused.copy(1, states, 7, states, 10**9 - 1)
    assert torch.equal(wide_memory[:, high[0]], content[:, 0])
    assert fused.copy(2, states, torch.tensor(low), states, torch.tensor(high, dtype=torch.int32))
    assert torch.equal(wide_memory[:, high], content)
    assert fused.copy(2, states, torch.tensor(high), states, torch.tensor(low).roll(1))
    assert torch.equal(wide_memory[:, low], content.roll(1, 1))
    assert fused.clear(1, states, torch.tensor(high[1:]))
    assert torch.equal(wide_memory[:, high], content * torch.tensor([1, 0], dtype=torch.uint8)[:, None])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_slots_beyond_32_bits_are_reached(wide_memory: torch.Tensor, dtype: torch.dtype) -> None:
    """P3: elements from 2^31 on, in both buffers."""
    k, v = torch.arange(12, dtype=torch.uint8).view(2, 2, 3)
    slots = [10**9 - 2, 3]
    assert FusedKV([wide_memory[0]], [wide_memory[1]]).write(0, torch.tensor(slots, dtype=dtype), k, v)
    assert torch.equal(wide_memory[0, slots], k)
    assert torch.equal(wide_memory[1, slots], v)


def test_a_launch_of_one_program_for_each_tile_writes_every_tile() -> None:
    """P3: rows that are longer than a tile, and no multiple of one."""
    pool = KVPool(9, 1, 3, 700, "cpu", torch.float32, 1, 1100, fused=True)
    k, v = torch.randn(2, 2100), torch.randn(2, 1100)
    pool.set_kv_buffer(0, torch.tensor([9, 4]), k, v)
    assert torch.equal(pool.k_buffer[0][[9, 4]].view(2, -1), k)
    assert torch.equal(pool.v_buffer[0][[9, 4]].view(2, -1), v)
    assert pool.k_buffer[0].count_nonzero() == k.count_nonzero()
