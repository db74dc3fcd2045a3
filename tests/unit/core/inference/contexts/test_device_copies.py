"""Copies to a device and between rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts import device_copies
from pymllm.core.inference.contexts.device_copies import (
    constant_index,
    copy_rows,
    gather_rows,
    row_index,
    send,
)


def test_what_is_sent_arrives_and_may_be_changed_at_once(device: torch.device) -> None:
    """B157: the copy does not read the caller's memory later."""
    numbers = np.arange(1000, dtype=np.int32)
    target = torch.zeros(1000, dtype=torch.int32, device=device)
    send(numbers, target)
    numbers[:] = 0
    assert target.tolist() == list(range(1000))


def test_an_index_is_of_its_own(device: torch.device) -> None:
    """X5: int64 on the device."""
    numbers = np.array([3, 1])
    index = row_index(numbers, device)
    numbers[0] = 9
    assert (index.tolist(), index.dtype, index.device.type) == ([3, 1], torch.int64, device.type)
    assert row_index(np.empty(0, np.int64), device).tolist() == []


def test_an_index_inside_a_graph_is_part_of_it(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 10: its numbers are arguments of launches, not memory that a replay would read again."""
    numbers = np.array([3, 1, 2**40, 0, *range(200)])
    monkeypatch.setattr(device_copies, "is_capturing", lambda device: True)
    monkeypatch.setattr(device_copies, "send", lambda *_: pytest.fail("a copy from the host"))
    index = row_index(numbers, device)
    assert (index.tolist(), index.dtype, index.device.type) == (numbers.tolist(), torch.int64, device.type)
    assert constant_index(np.empty(0, np.int64), device).tolist() == []


def test_a_view_and_what_must_not_be_written_are_sent_like_any_array(device: torch.device) -> None:
    """Specification, blocks: ids may be any integers, a caller's reversed or read-only array among them."""
    numbers = np.arange(6)
    numbers.flags.writeable = False
    for given in (numbers, numbers[::-1], numbers[1::2]):
        assert row_index(given, device).tolist() == given.tolist()


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


def test_rows_that_find_no_memory_are_not_written_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2, C7: the second buffer's rows do not fit; the first buffer is as it was."""
    sources, targets = [torch.ones(1, 2, 3)] * 2, [torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)]
    gathered = iter([gather_rows(sources[0], torch.tensor([1]))])
    monkeypatch.setattr(device_copies, "gather_rows", lambda source, read: next(gathered))
    with pytest.raises(StopIteration):
        copy_rows(sources, torch.tensor([1]), targets, torch.tensor([0]))
    assert not any(target.any() for target in targets)
