"""What free lists in NumPy share: slots read as pages, and pages written as slots.

They serve pools on the CPU, where a torch call costs more than the work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.slot_store import SlotStore

_INT64 = np.dtype(np.int64)
NOTHING = np.empty(0, _INT64)
_NO_OFFSET = np.zeros(1, _INT64)


class HostPages(SlotStore):
    """Numbers of slots and pages in NumPy; which pages are free is a subclass's business.

    ``size``, ``page_size``, ``device``, ``need_sort``, ``check_ownership``: as in `SlotStore`; ``device`` is
    the CPU.
    """

    def __init__(
        self, size: int, page_size: int, device: torch.device, need_sort: bool, check_ownership: bool
    ) -> None:
        super().__init__(size, page_size, device, need_sort, check_ownership)
        # A shift takes half the time of a division (2.2 against 4.8 us for 4096 slots), and by an array
        # 0.5 us less than by a Python int, however few.
        is_power = page_size & (page_size - 1) == 0
        self._page_shift = np.array(page_size.bit_length() - 1) if is_power else None
        self._offsets = torch.arange(page_size, dtype=torch.int32, device="cpu")

    def slots_of(self, pages: NDArray[np.integer], count: int) -> torch.Tensor:
        """Return the first ``count`` slots of ``pages``, in order: int32, memory of its own."""
        if self.page_size == 1:
            return torch.from_numpy(pages.astype(np.int32))
        if pages.size == 1:
            start = int(pages[0]) * self.page_size
            return torch.from_numpy(np.arange(start, start + count, dtype=np.int32))
        # The one place where torch is quicker: 5.5 us for 800 pages of 16 slots, where NumPy takes 12.
        numbers = torch.from_numpy(pages.astype(np.int32, copy=False).reshape(-1, 1))
        slots = torch.add(self._offsets, numbers, alpha=self.page_size).view(-1)
        return slots if count == slots.numel() else slots[:count]

    def locate(
        self, indices: torch.Tensor, *, check_range: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return page and offset in the page for each slot, repeats and all."""
        slots = self._read(indices)
        # Seen as unsigned, a negative number is a huge one: one reduction finds both ends of the range.
        if check_range and slots.size and slots.view(np.uint64).max() > self.last_slot:
            raise self.outside_error(int(slots[(slots < 0) | (slots > self.last_slot)][0]))
        if self.page_size == 1:
            return slots, _NO_OFFSET  # for all of them
        pages = self._pages_of(slots)
        return pages, slots - pages * self.page_size

    def slots_at(
        self, pages: NDArray[np.integer], offsets: NDArray[np.int64], shape: torch.Size
    ) -> torch.Tensor:
        """Return the slot at each offset of each page, 0 where the page is 0: int32, of ``shape``."""
        slots = pages if self.page_size == 1 else (pages * self.page_size + offsets) * (pages != 0)
        numbers = torch.from_numpy(slots.astype(np.int32, copy=False))  # `pages` are the store's own
        return numbers if len(shape) == 1 else numbers.view(shape)

    def new_table(self) -> NDArray[np.int32]:
        """Return a zero for each page, page 0 included."""
        return np.zeros(self.pages + 1, np.int32)

    def forget(self, table: NDArray[np.int32], pages: NDArray[np.integer]) -> None:
        """Write a zero to a table for each of some pages, repeats and all."""
        table[pages] = 0

    def _read(self, indices: torch.Tensor) -> NDArray[np.int64]:
        """Return ``indices`` as one dimension of int64, without a copy where they are that."""
        slots: NDArray[Any] = self._read_numbers(indices)
        return slots if slots.dtype is _INT64 else slots.astype(_INT64)

    def _read_numbers(self, indices: torch.Tensor) -> NDArray[np.integer]:
        """Return ``indices`` as one dimension of the integers that they are, without a copy."""
        try:
            slots = indices.numpy()
        except (AttributeError, TypeError, RuntimeError):
            slots = self._read_other(indices)
        if slots.dtype is not _INT64 and slots.dtype.kind not in "iu":
            if slots.size:
                raise TypeError(f"indices must be integers, got a tensor of {indices.dtype}")
            slots = slots.astype(_INT64)
        return slots if slots.ndim == 1 else slots.reshape(-1)

    def _read_other(self, indices: torch.Tensor) -> NDArray[np.generic]:
        """Read what `torch.Tensor.numpy` refuses, which is fine on another device only."""
        if not isinstance(indices, torch.Tensor):
            raise TypeError(f"indices must be a tensor of integers, got {type(indices).__name__}")
        if indices.dtype.is_floating_point or indices.dtype.is_complex:
            raise TypeError(f"indices must be integers, got a tensor of {indices.dtype}")
        return indices.cpu().numpy()  # pragma: needs cuda

    def _pages_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the page of each slot."""
        if self._page_shift is None:
            return slots // self.page_size
        pages: NDArray[np.int64] = slots >> self._page_shift
        return pages

    def _distinct(self, pages: NDArray[np.int64], table: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return each of ``pages``, at least one, once; ``table`` has a place for each page, and loses it."""
        if pages.size <= self.page_size:
            numbers = pages.tolist()  # the tail of a request, of one page: 0.4 us instead of 9
            if numbers.count(numbers[0]) == len(numbers):
                return pages[:1]
        starts = np.empty(pages.size, np.bool_)
        starts[0] = True
        np.not_equal(pages[1:], pages[:-1], out=starts[1:])
        # Callers name the slots of a page one after the other, so this leaves few to stamp.
        pages = pages[np.flatnonzero(starts)]
        return pages if pages.size == 1 else pages[stamped(pages, table)]


def stamped(pages: NDArray[np.int64], table: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Mark one place of each distinct page; what ``table`` says of ``pages`` is overwritten.

    Each place writes its number to its page; one place per page finds its own number there. 15 us
    for 4096 pages, where a sort takes 83 us and `numpy.unique` 310 us.
    """
    places = np.arange(pages.size, dtype=np.int32)
    table[pages] = places
    kept: NDArray[np.bool_] = table[pages] == places
    return kept
