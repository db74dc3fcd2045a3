"""States: copies to a device and between rows, live ones, and what a slot keeps of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts import slot_states
from pymllm.core.inference.contexts.slot_states import (
    Buffers,
    LiveStates,
    as_state,
    as_state_shape,
    copy_host_rows,
    copy_rows,
    gather_rows,
)

# -- copies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex128])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_rows_are_copied_bit_for_bit(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """C7: every layer of the named rows, and no other row."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(0, 256, (2, 5, *shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    if dtype.is_complex:
        bits = torch.randn((2, 5, *shape), dtype=dtype, generator=generator).view(torch.uint8)
    source = bits.reshape(-1).view(dtype).reshape(2, 5, *shape).to(device)
    target = torch.zeros((2, 4, *shape), dtype=dtype, device=device)
    read, write = torch.tensor([4, 0], device=device), torch.tensor([1, 3], device=device)
    copy_rows([source], read, [target], write)
    found = target.cpu().view(torch.uint8).reshape(2, 4, -1)
    expected = torch.zeros_like(found)
    expected[:, [1, 3]] = source.cpu().view(torch.uint8).reshape(2, 5, -1)[:, [4, 0]]
    assert torch.equal(found, expected)
    pair = Buffers.of(source, target.zero_())
    assert (pair.bits is None) == (device.type != "cpu")
    if pair.bits is not None:
        copy_host_rows(pair.bits[:1], read.numpy(), pair.bits[1:], write.numpy())
        assert torch.equal(target.view(torch.uint8).reshape(2, 4, -1), expected)


def test_rows_that_find_no_memory_are_not_written_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2, C7: the second buffer's rows do not fit; the first buffer is as it was."""
    sources, targets = [torch.ones(1, 2, 3)] * 2, [torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)]
    gathered = iter([gather_rows(sources[0], torch.tensor([1]))])
    monkeypatch.setattr(slot_states, "gather_rows", lambda source, read: next(gathered))
    with pytest.raises(StopIteration):
        copy_rows(sources, torch.tensor([1]), targets, torch.tensor([0]))
    assert not any(target.any() for target in targets)


# -- live states ---------------------------------------------------------------------------------------------


CONV, SSM = torch.zeros(2, 5, 3), torch.zeros(2, 5, 2, 2)


@pytest.mark.gpu
def test_a_table_on_a_gpu_is_not_waited_for() -> None:
    """No synchronisation; the lookup happens where the table is."""
    conv, ssm = CONV.cuda(), SSM.cuda()
    context = SimpleNamespace(
        mamba_conv_states=conv,
        mamba_ssm_states=ssm,
        mamba_metadata=SimpleNamespace(
            request_to_mamba_state_idx=torch.tensor([4, 0], dtype=torch.int32, device="cuda")
        ),
    )
    live = LiveStates(context, conv, ssm)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = live.rows([1, 0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rows.tolist() == [0, 4]
    assert rows.dtype is torch.int64


def test_a_table_elsewhere_is_read_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests go to the table, and their rows to the states; nothing comes to the host."""
    sent: list[tuple[list[int], str]] = []

    def send(numbers: Any, device: torch.device) -> torch.Tensor:
        sent.append((numbers.tolist(), device.type))
        return torch.empty(len(numbers), dtype=torch.int64, device=device)

    monkeypatch.setattr(slot_states, "row_index", send)
    table = torch.empty(4, dtype=torch.int32, device="meta")
    context = SimpleNamespace(mamba_metadata=SimpleNamespace(request_to_mamba_state_idx=table))
    rows = LiveStates(context, CONV.to("meta"), SSM.to("meta")).rows([1, 0, 3])
    assert isinstance(rows, torch.Tensor)
    assert (rows.shape, rows.dtype, rows.device.type) == ((3,), torch.int64, "meta")
    assert sent == [([1, 0, 3], "meta")]


def test_rows_of_states_go_where_the_states_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table may be on another device than they are; a table that says so stands in for it."""
    moved: list[tuple[Any, ...]] = []

    class Table(torch.Tensor):
        device = torch.device("cuda", 1)

        def index_select(self, dim: int, index: Any) -> Any:
            return SimpleNamespace(to=lambda *where: moved.append((dim, index, *where)))

    monkeypatch.setattr(slot_states, "row_index", lambda numbers, device: (numbers.tolist(), str(device)))
    table = torch.zeros(4, dtype=torch.int32).as_subclass(Table)
    context = SimpleNamespace(mamba_metadata=SimpleNamespace(request_to_mamba_state_idx=table))
    LiveStates(context, CONV, SSM).rows([2, 1])
    assert moved == [(0, ([2, 1], "cuda:1"), torch.device("cpu"), torch.int64)]


@pytest.mark.parametrize(
    ("shape", "expected"), [((), ()), ([2, 3], (2, 3)), (torch.Size([4]), (4,)), ((np.int32(2),), (2,))]
)
def test_a_shape_is_any_sequence_of_sizes(shape: Any, expected: tuple[int, ...]) -> None:
    """Reference: a tuple; one number is the shape ()."""
    assert as_state_shape("shape", shape) == expected


def test_a_state_is_read_as_bits() -> None:
    """C7: a conjugate that is only a mark is carried out first."""
    cached = torch.zeros(1, 1, 2, dtype=torch.complex64)
    state = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert as_state("state", state, cached).view(torch.complex64).tolist() == [1 - 2j, 3 + 4j]
