"""The free list as tensors on the pool's own device: no call waits for the device.

How many pages are free, and how many a call frees, is known on the host from shapes alone; only their
numbers live on the device. What needs a number (an ownership check, the distinct pages among slots)
synchronises, and says so.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.arguments import INTEGER_DTYPES
from pymllm.mem_cache.slot_store import SlotStore

__all__ = ["DeviceSlotStore"]

# What `_state` says of a page, where ownership is checked. Held is zero, so that one `any` over what a call
# names tells whether something must be refused.
_HELD, _FREE, _PENDING, _RESERVED = 0, 1, 2, 3


class DeviceSlotStore(SlotStore):
    """A free list on a device, as two lists: what `take` reads from, and what was freed since.

    Parameters
    ----------
    size, page_size, device, need_sort, check_ownership
        As in `SlotStore`.

    Notes
    -----
    ``_main[_main_from:]`` is what `take` reads from, ``_released`` what was freed since the last
    merge (law A4). A merge with ``need_sort`` marks both in a byte per page and reads the marks in
    order: four launches and a pass of the device over one byte per page, no sort and no wait of the host.
    Pages are int64 everywhere, which is what torch wants of an index: in int32 each use of one is a
    conversion more, and a free list takes half the bytes.

    Cost: with checks off nothing synchronises but `claim` with ``page_size > 1`` and the end of a
    group that has pages to tell apart, once each. With checks on every `claim` does, twice at most.
    Laws: A1-A6, X1, X4. Source: contract, section 1.
    """

    def __init__(
        self, size: int, page_size: int, device: torch.device, need_sort: bool, check_ownership: bool
    ) -> None:
        super().__init__(size, page_size, device, need_sort, check_ownership)
        self._offsets = torch.arange(page_size, device=device)
        # A shift takes half the time of a division, for few slots and on the CPU as well.
        is_power = page_size & (page_size - 1) == 0
        self._page_shift = torch.tensor(page_size.bit_length() - 1, device=device) if is_power else None
        self._is_apart = device.type != "cpu"  # from the host, so that asking it is a wait
        self.clear()

    def clear(self) -> None:
        """Make every page free, as in a new store, and close the group.

        Notes
        -----
        Cost: one pass of the device over the pool. Laws: A6, X7.
        """
        self._main = torch.arange(1, self.pages + 1, device=self.device)
        self._main_from = 0
        self._released: list[torch.Tensor] = []
        self.free_pages = self.pages
        self.pending_pages = 0
        self.group_open = False
        self._pending: list[torch.Tensor] = []
        self._unread: list[torch.Tensor] = []
        # With padding in front and one entry behind, where everything outside of the pool is looked up.
        self._state = torch.full((self.pages + 2,), _FREE, dtype=torch.uint8, device=self.device)
        self._state[:: self.pages + 1] = _RESERVED

    def take(self, count: int) -> torch.Tensor | None:
        """Hand out the next ``count`` pages, or return ``None`` and change nothing."""
        if count > self.free_pages:
            return None
        if count > self._main.numel() - self._main_from:
            self.merge()
        pages = self._main[self._main_from : self._main_from + count]
        self._main_from += count
        self.free_pages -= count
        self._label(pages, _HELD)
        return pages

    def merge(self) -> None:
        """Put what was freed since the last merge on a par with what was free before."""
        if not self._released:
            return
        pages = torch.cat([self._main[self._main_from :], *self._released])
        if self.need_sort:
            # The count is known, so the marks can be read without asking the device how many there are.
            marks = torch.zeros(self.pages + 1, dtype=torch.bool, device=self.device)
            marks.index_fill_(0, pages, True)
            pages = torch.nonzero_static(marks, size=pages.numel(), fill_value=0).view(-1)
        self._main, self._main_from, self._released = pages, 0, []

    def free(self, indices: torch.Tensor) -> None:
        """Give back the pages that ``indices`` names, or refuse all of them.

        Notes
        -----
        Inside a group the unchecked pages are only noted down, and told apart once at its end.
        """
        if self.group_open and self.page_size > 1 and not self.check_ownership:
            self._unread.append(self._pages_of(self._read(indices)))
        else:
            self.give(self.claim(indices))

    def free_starts(self, starts: torch.Tensor | NDArray[np.int64]) -> None:
        """Give back the pages that begin at ``starts``, each named once.

        Notes
        -----
        Without checks nothing has to be told apart, so nothing waits for the device.
        """
        if self.check_ownership or self.page_size == 1 or isinstance(starts, np.ndarray):
            super().free_starts(starts)
        else:
            self.give(self._pages_of(self._read(starts)))

    def claim(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the distinct pages that ``indices`` names, checked where ownership is."""
        pages = self.check_held(indices)
        if self.page_size == 1:
            return pages.clone()  # they may be the caller's own
        return self._distinct(pages)

    def check_held(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the page of each slot, repeats and all, checked where ownership is."""
        slots = self._read(indices)
        pages = self._pages_of(slots)
        if not self.check_ownership or not slots.numel():
            return pages
        state = self._state.index_select(0, pages.clamp(0, self.pages + 1))
        if state.any():
            self._refuse(slots, state)
        if self.page_size == 1 and slots.numel() > 1:
            self._refuse_repeated(slots)
        return pages

    def claim_with(
        self, indices: torch.Tensor, table: torch.Tensor, whole: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the distinct pages that ``indices`` names, and what ``table`` has for them.

        Notes
        -----
        Without checks, one wait tells how many of both there are.
        """
        if whole or self.page_size == 1 or self.check_ownership:
            return super().claim_with(indices, table, whole)
        pages, is_first = self._in_order(self._pages_of(self._read(indices)))
        found = table[pages]
        firsts, left = self._places(is_first, is_first & (found != 0))
        return pages[firsts], found[left]

    def give(self, pages: torch.Tensor) -> None:
        """Append pages to those released, or to those pending inside a group."""
        if not pages.numel():
            return
        if self.group_open:
            self._label(pages, _PENDING)
            self._pending.append(pages)
            self.pending_pages += pages.numel()
        else:
            self._label(pages, _FREE)
            self._released.append(pages)
            self.free_pages += pages.numel()

    def _release_pending(self) -> None:
        """Give what is pending, told apart now where it was only noted down."""
        if self._unread:
            self._pending.append(self._distinct(torch.cat(self._unread)))
        pending, self._pending, self._unread, self.pending_pages = self._pending, [], [], 0
        for pages in pending:
            self.give(pages)

    def slots_of(self, pages: torch.Tensor, count: int) -> torch.Tensor:
        """Return the first ``count`` slots of ``pages``, in order: int32, memory of its own."""
        if self.page_size == 1:
            return pages.int()
        slots = torch.add(self._offsets, pages.unsqueeze(1), alpha=self.page_size).view(-1)
        return (slots if count == slots.numel() else slots[:count]).int()

    def locate(
        self, indices: torch.Tensor, *, check_range: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return page and offset in the page for each slot, repeats and all."""
        slots = self._read(indices)
        if check_range and not torch.equal(slots, slots.clamp(0, self.last_slot)):
            raise self.outside_error(int(slots[(slots < 0) | (slots > self.last_slot)][0]))
        if self.page_size == 1:
            return slots, self._offsets  # a zero, for all of them
        pages = self._pages_of(slots)
        return pages, torch.sub(slots, pages, alpha=self.page_size)

    def slots_at(self, pages: torch.Tensor, offsets: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Return the slot at each offset of each page, 0 where the page is 0: int32, of ``shape``."""
        # No page is below 0, so that its sign is what blanks the offset: quicker than a mask.
        slots = pages if self.page_size == 1 else (offsets * pages.sign()).add_(pages, alpha=self.page_size)
        slots = slots.int()
        return slots if len(shape) == 1 else slots.view(shape)

    def new_table(self) -> torch.Tensor:
        """Return a zero for each page, page 0 included."""
        return torch.zeros(self.pages + 1, dtype=torch.int64, device=self.device)

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Answer for each slot, in or out of the pool, whether a caller has it: bool, same shape.

        Notes
        -----
        Read from the lists alone, which is right with checks off too: a pass over the whole pool.
        """
        held = torch.ones(self.pages + 1, dtype=torch.bool, device=self.device)
        held[0] = False
        for free in (self._main[self._main_from :], *self._released, *self._pending, *self._unread):
            held.index_fill_(0, free, False)
        pages = self._pages_of(self._read(indices))
        inside = (pages >= 1) & (pages <= self.pages)
        return (inside & held[pages * inside]).reshape(indices.shape)

    def _label(self, pages: torch.Tensor, label: int) -> None:
        """Write down what became of pages, where somebody will ask."""
        if self.check_ownership:
            self._state.index_fill_(0, pages, label)

    def _read(self, indices: torch.Tensor) -> torch.Tensor:
        """Return ``indices`` as one dimension of int64 on the device, without a copy where they are that."""
        if not isinstance(indices, torch.Tensor):
            raise TypeError(f"indices must be a tensor of integers, got {type(indices).__name__}")
        if indices.dtype not in INTEGER_DTYPES and indices.numel():
            raise TypeError(f"indices must be integers, got a tensor of {indices.dtype}")
        slots = indices if indices.dim() == 1 else indices.reshape(-1)
        return slots.to(device=self.device, dtype=torch.int64)

    def _pages_of(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the page of each slot; with pages of one slot, ``slots`` itself."""
        if self.page_size == 1:
            return slots
        if self._page_shift is None:
            return torch.floor_divide(slots, self.page_size)
        return torch.bitwise_right_shift(slots, self._page_shift)

    def _distinct(self, pages: torch.Tensor) -> torch.Tensor:
        """Return each page once; how many that are is asked of the device."""
        if pages.numel() < 2:
            return pages
        if not self._is_apart:  # where nothing waits, one call is quicker than six
            distinct: torch.Tensor = torch.unique(pages)
            return distinct
        ordered, is_first = self._in_order(pages)
        (firsts,) = self._places(is_first)
        return ordered[firsts]

    def _in_order(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sort pages, and mark the first of each."""
        ordered = pages.sort().values
        is_first = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=is_first[1:])
        return ordered, is_first

    def _places(self, *marks: torch.Tensor) -> list[torch.Tensor]:
        """Return where each list is marked: one wait for all counts, and none for what they count."""
        counts = torch.stack([mark.sum() for mark in marks]).tolist()
        return [
            torch.nonzero_static(mark, size=count).view(-1) for mark, count in zip(marks, counts, strict=True)
        ]

    def _refuse_repeated(self, slots: torch.Tensor) -> None:
        """Raise for a slot that is named twice."""
        values, counts = torch.unique(slots, return_counts=True)
        if values.numel() != slots.numel():
            raise self.repeated_error(int(values[counts > 1][0]))

    def _refuse(self, slots: torch.Tensor, state: torch.Tensor) -> NoReturn:
        """Raise for the first slot that is outside the pool, or else the first that nobody holds."""
        outside = (state == _RESERVED).nonzero()
        if outside.numel():
            raise self.outside_error(int(slots[outside[0]]))
        first = int(state.nonzero()[0])
        raise self.not_held_error(int(slots[first]), int(state[first]) == _PENDING)
