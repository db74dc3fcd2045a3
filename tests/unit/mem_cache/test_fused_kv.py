"""One launch for the keys and values of a step, against torch's two."""

from __future__ import annotations

import pytest
import torch

from pymllm.mem_cache import fused_kv
from pymllm.mem_cache.fused_kv import FusedKV
from tests.unit.mem_cache.plain_kernel import PlainKernel

SLOTS = 40
WIDTHS = {"equal": ((2, 4), (2, 4)), "unequal": ((2, 8), (3, 5)), "one element": ((1, 1), (1, 1))}
DTYPES = [torch.bfloat16, torch.float8_e5m2, torch.float32, torch.int64, torch.complex128, torch.bool]


def random_rows(count: int, width: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Rows of random bits; of random numbers where not all bits are one."""
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (count, width[0], width[1] * dtype.itemsize))
    return bits.to(torch.uint8).view(dtype)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def make_buffers(
    widths: tuple[tuple[int, int], tuple[int, int]], dtype: torch.dtype
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    k, v = ([random_rows(SLOTS, width, dtype) for _ in range(2)] for width in widths)
    return k, v


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("count", [1, 3, 33])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
def test_one_launch_writes_the_named_rows_of_both(
    plain_kernel: PlainKernel,
    widths: tuple[tuple[int, int], tuple[int, int]],
    dtype: torch.dtype,
    count: int,
    index_dtype: torch.dtype,
) -> None:
    """P3, E5: bit for bit what torch writes, and no other row, of this layer or another."""
    k_buffer, v_buffer = make_buffers(widths, dtype)
    k, v = (random_rows(count, width, dtype) for width in widths)
    index = torch.randperm(SLOTS)[:count]
    expected = [bits_of(buffer).clone() for buffer in (*k_buffer, *v_buffer)]
    expected[1][index], expected[3][index] = bits_of(k), bits_of(v)
    fused = FusedKV(k_buffer, v_buffer)
    assert fused.write(1, index.to(index_dtype), k, v)
    assert len(plain_kernel.launches) == 1
    for buffer, wanted in zip((*k_buffer, *v_buffer), expected, strict=True):
        assert torch.equal(bits_of(buffer), wanted)


def test_padded_tokens_may_repeat_slot_0(plain_kernel: PlainKernel) -> None:
    """E5: and the rows of others arrive."""
    k_buffer, v_buffer = make_buffers(WIDTHS["unequal"], torch.float32)
    k, v = (torch.ones(4, *width) * torch.arange(1, 5)[:, None, None] for width in WIDTHS["unequal"])
    assert FusedKV(k_buffer, v_buffer).write(0, torch.tensor([0, 7, 0, 9], dtype=torch.int32), k, v)
    assert torch.equal(k_buffer[0][[7, 9]], k[[1, 3]])
    assert torch.equal(v_buffer[0][[7, 9]], v[[1, 3]])
    assert k_buffer[0][0].unique().item() in (1, 3)


def test_slices_of_a_projection_are_read_where_they_are(plain_kernel: PlainKernel) -> None:
    """P3: k and v with the stride of a larger row, an index with a stride of its own."""
    k_buffer, v_buffer = make_buffers(WIDTHS["equal"], torch.float32)
    qkv = torch.randn(5, 24)
    k, v = qkv[:, 8:16].view(5, 2, 4), qkv[:, 16:].view(5, 2, 4)
    index = torch.tensor([[3, 99], [1, 99], [4, 99], [0, 99], [6, 99]], dtype=torch.int32)[:, 0]
    assert FusedKV(k_buffer, v_buffer).write(0, index, k, v)
    assert torch.equal(k_buffer[0][index.long()], k)
    assert torch.equal(v_buffer[0][index.long()], v)


@pytest.mark.parametrize("which", ["k", "v"])
def test_rows_out_of_alignment_are_left_to_torch(plain_kernel: PlainKernel, which: str) -> None:
    """P3: nothing is launched for either half."""
    k_buffer, v_buffer = make_buffers(WIDTHS["equal"], torch.float32)
    rows = {"k": torch.randn(3, 2, 4), "v": torch.randn(3, 2, 4)}
    rows[which] = torch.randn(25)[1:].view(3, 2, 4)
    assert not FusedKV(k_buffer, v_buffer).write(0, torch.tensor([1, 2, 3]), rows["k"], rows["v"])
    assert plain_kernel.launches == []


def test_small_batches_can_be_left_to_torch(
    plain_kernel: PlainKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 10: the threshold is one number; inside a captured graph it does not count."""
    monkeypatch.setattr(fused_kv, "FEWEST_ROWS", 4)
    k_buffer, v_buffer = make_buffers(WIDTHS["equal"], torch.float32)
    fused = FusedKV(k_buffer, v_buffer)
    rows = torch.randn(4, 2, 4)
    index = torch.arange(4)
    assert not fused.write(0, index[:3], rows[:3], rows[:3])
    assert fused.write(0, index, rows, rows)
    monkeypatch.setattr(fused_kv, "is_capturing", lambda device: True)
    assert fused.write(0, index[:3], rows[:3], rows[:3])
    assert len(plain_kernel.launches) == 2


def test_one_kernel_serves_every_batch_layer_and_index(plain_kernel: PlainKernel) -> None:
    """Issue 10: numbers are arguments; a new batch size compiles nothing."""
    k_buffer, v_buffer = make_buffers(WIDTHS["unequal"], torch.float16)
    fused = FusedKV(k_buffer, v_buffer)
    for layer, count, dtype in [(0, 1, torch.int32), (1, 7, torch.int64), (0, 39, torch.int32)]:
        k, v = (random_rows(count, width, torch.float16) for width in WIDTHS["unequal"])
        assert fused.write(layer, torch.arange(count, dtype=dtype), k, v)
    assert len(plain_kernel.compiled) == 1
    assert [numbers[1:3] for _, numbers in plain_kernel.launches] == [(1, 1), (7, 1), (39, 1)]
