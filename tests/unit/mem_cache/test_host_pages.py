"""Slots read as pages and written again, whatever the container and the order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.mem_cache.host_pages import HostPages, stamped
from pymllm.mem_cache.host_queue import HostQueueStore
from pymllm.mem_cache.host_store import HostSlotStore

BOTH = pytest.mark.parametrize("kind", [HostSlotStore, HostQueueStore])


def make(kind: type[HostPages], page_size: int) -> HostPages:
    return kind(8 * page_size, page_size, torch.device("cpu"), False, False)


@BOTH
@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_pages_are_written_as_their_slots(kind: type[HostPages], page_size: int) -> None:
    """A3: the first slots of consecutive pages, in memory of its own."""
    pages, count = np.array([2, 3, 4]), 3 * page_size - (page_size > 1)
    slots = make(kind, page_size).slots_of(pages, count)
    assert slots.tolist() == list(range(2 * page_size, 5 * page_size))[:count]
    assert slots.dtype is torch.int32
    pages[:] = 0
    assert slots[0] == 2 * page_size


def test_pages_in_any_order_are_not_taken_for_a_run() -> None:
    """A3: only the ends of these look as if they followed one another."""
    assert make(HostQueueStore, 2).slots_of(np.array([1, 5, 3]), 6).tolist() == [2, 3, 10, 11, 6, 7]


@BOTH
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_pages_are_told_apart_whatever_names_them(kind: type[HostPages], dtype: torch.dtype) -> None:
    """A5: each once, in neighbouring slots or not."""
    store = make(kind, 4)
    assert store.take(5) is not None
    pages = store.claim(torch.tensor([[4, 5, 8], [6, 9, 19]], dtype=dtype))
    assert sorted(pages.tolist()) == [1, 2, 4]


@BOTH
def test_what_is_no_tensor_of_integers_is_refused(kind: type[HostPages]) -> None:
    """X1: by its type or its dtype."""
    store = make(kind, 1)
    for wrong in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor([1 + 0j]), [1]):
        with pytest.raises(TypeError, match="indices must be"):
            store.claim(wrong)  # type: ignore[arg-type]


def test_one_place_of_each_number_is_kept() -> None:
    """The table may say anything before."""
    numbers = np.array([3, 1, 3, 2, 1])
    kept = stamped(numbers, np.full(4, 7, np.int32))
    assert sorted(numbers[kept].tolist()) == [1, 2, 3]
