"""Tests of numbers of the host on a device: they arrive though their source changes or goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.mem_cache import uploads
from pymllm.mem_cache.uploads import bring, constant_index, is_capturing, row_index, send
from tests.far_device import Apart


def test_what_is_sent_arrives_and_may_be_changed_at_once(device: torch.device) -> None:
    """B157: the copy does not read the caller's memory later."""
    numbers = np.arange(1000, dtype=np.int32)
    target = torch.zeros(1000, dtype=torch.int32, device=device)
    send(numbers, target)
    numbers[:] = 0
    assert target.tolist() == list(range(1000))


def test_an_index_inside_a_graph_is_part_of_it(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are arguments of launches, not memory that a replay would read again."""
    numbers = np.array([3, 1, 2**40, 0, *range(200)])
    monkeypatch.setattr(uploads, "is_capturing", lambda device: True)
    monkeypatch.setattr(uploads, "send", lambda *_: pytest.fail("a copy from the host"))
    index = row_index(numbers, device)
    assert (index.tolist(), index.dtype, index.device.type) == (numbers.tolist(), torch.int64, device.type)
    assert constant_index(np.empty(0, np.int64), device).tolist() == []


def test_a_view_and_what_must_not_be_written_are_sent_like_any_array(device: torch.device) -> None:
    """Specification, blocks: ids may be any integers, a caller's reversed or read-only array among them."""
    numbers = np.arange(6)
    numbers.flags.writeable = False
    for given in (numbers, numbers[::-1], numbers[1::2]):
        assert row_index(given, device).tolist() == given.tolist()


def test_what_is_brought_waits_for_nothing(apart: Apart) -> None:
    """From the host or from the device, of any integer dtype, and in the one that is asked for."""
    device, synchronisations = apart
    there = torch.arange(3, device=device, dtype=torch.int32)
    for numbers in (torch.arange(3), torch.arange(3).to(torch.uint16), torch.arange(0), there):
        for dtype in (torch.int32, torch.int64):
            with synchronisations() as waits:
                brought = bring(numbers, device, dtype)
            assert waits == []
            assert (brought.dtype, brought.device) == (dtype, there.device)
            assert brought.tolist() == numbers.tolist()


def test_numbers_that_are_there_are_not_copied(device: torch.device) -> None:
    """P2, P3: a pool on the CPU reads the caller's own; on ``meta``, there is nothing to send."""
    numbers = torch.arange(3, device=device)
    assert bring(numbers, numbers.device) is numbers
    assert bring(torch.arange(3), torch.device("meta")).is_meta


def test_only_a_cuda_stream_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without CUDA is not even asked."""
    assert not is_capturing(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert is_capturing(torch.device("cuda", 0))
    assert not is_capturing(torch.device("cpu"))
