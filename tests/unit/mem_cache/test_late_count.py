"""A count that is read when it is needed, and waits for no more than it must."""

from __future__ import annotations

import pytest
import torch

from pymllm.mem_cache.late_count import LateCount, Whereabouts


def test_pages_are_counted_and_zeros_are_none(device: torch.device) -> None:
    """A2: as they are when it is asked for, whatever is written there afterwards."""
    pages = torch.tensor([3, 0, 7, 0, 1], device=device)
    late = LateCount(pages, Whereabouts.RELEASED)
    pages.zero_()
    assert (late.read(), late.read(), late.where) == (3, 3, Whereabouts.RELEASED)


def test_a_number_that_was_not_sent_is_not_here() -> None:
    """Issue 10: on a device without events nobody knows when it could be read without waiting."""
    late = LateCount(torch.tensor([3, 0]), Whereabouts.PENDING)
    assert not late.is_here()
    assert late.read() == 1
    assert not late.is_here()


@pytest.mark.gpu
def test_a_sent_number_is_here_when_its_stream_is_done() -> None:
    """Issue 10: and nothing that was launched later is waited for."""
    pages = torch.tensor([3, 0, 7], device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        late = LateCount(pages, Whereabouts.MAIN)
        late.is_here()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert late.is_here()
    torch.cuda._sleep(200_000_000)
    assert late.read() == 2
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
