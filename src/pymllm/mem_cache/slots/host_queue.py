"""The free list as a NumPy queue, for pools on the CPU without ownership checks or sorting."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.errors import OwnershipError
from pymllm.mem_cache.slots.host_store import HostPages

_SIGNED = frozenset({torch.int32, torch.int64})  # what callers have: other integers take the long way


class HostQueueStore(HostPages):
    """A ring of free pages that hands out the earliest freed page first.

    ``size``, ``page_size``, ``device``, ``need_sort``, ``check_ownership``: as in `SlotStore`; ``device`` is
    the CPU, and both switches are off. A queue keeps law A4 by itself, so a merge has nothing to do. Nobody
    asks for an order of numbers or checks an owner here, so no page has a label, and nothing is searched:
    taking and giving are one copy each. Of a million slots, giving 4096 back and taking as many takes 5 us,
    with labels 25. What is freed twice is handed out twice, as in any pool that does not check; more than was
    handed out is refused all the same, since it would overwrite the queue. Cost: a copy of what is handed out
    or taken back; 4 bytes a page, and 4 more where it has several slots. Source: our choice. Laws: A1-A4, A6,
    X4.
    """

    def __init__(
        self, size: int, page_size: int, device: torch.device, need_sort: bool, check_ownership: bool
    ) -> None:
        super().__init__(size, page_size, device, need_sort, check_ownership)
        self._marks: NDArray[np.int32] = np.empty(self.pages + 1 if page_size > 1 else 0, np.int32)
        self.clear()

    def new_trackers(self) -> NDArray[np.int32]:
        """Return a ring of all pages."""
        return np.arange(1, self.pages + 1, dtype=np.int32)

    def open_trackers(self, tracker: NDArray[np.int32]) -> None:
        """Start again with such a ring."""
        self._ring = tracker
        self._first = 0
        self.free_pages = self.unparked_pages = self.pages
        self._holds = None
        self.pending_pages = 0
        self.group_open = False
        self._pending: list[NDArray[np.integer]] = []

    def take(self, count: int) -> NDArray[np.int32] | None:
        """Hand out the pages that have been free longest; or return ``None`` and change nothing."""
        if count > self.free_pages:
            return None
        pages = self._in_ring(self._first, count).copy()  # or what is given next would overwrite it
        self._move_on(count)
        return pages

    def put_back(self, pages: NDArray[np.int32]) -> None:
        """Return pages that `take` has just handed out, and that are still in the ring before its start."""
        self._first = (self._first - pages.size) % self.pages
        self.free_pages += pages.size

    def take_slots(self, count: int) -> torch.Tensor | None:
        """Hand out ``count`` slots; or return ``None`` and change nothing.

        Written from the ring itself: a copy of its pages takes 3 us for 12,000 of one slot.
        """
        pages = -(-count // self.page_size)
        if pages > self.free_pages:
            return None
        slots = self.slots_of(self._in_ring(self._first, pages), count)
        self._move_on(pages)
        return slots

    def _move_on(self, count: int) -> None:
        self.free_pages -= count  # before: an interrupt between them loses pages, and gives none away
        self._first = (self._first + count) % self.pages

    def _in_ring(self, start: int, count: int) -> NDArray[np.int32]:
        """Return pages of the ring, mostly as a view, for immediate reading."""
        end = start + count
        if end <= self.pages:
            return self._ring[start:end]
        return np.concatenate((self._ring[start:], self._ring[: end - self.pages]))

    def merge(self) -> None:
        """Do nothing, since pages freed since the last merge come after all others anyway (A4)."""

    def label_parked(self, pages: NDArray[np.int64], is_parked: bool) -> None:
        """Do nothing, since pages have no labels here."""

    def claim(self, indices: torch.Tensor) -> NDArray[np.int64]:
        """Return the distinct pages of slots ``indices``; raise an error for more than are handed out."""
        pages = self.check_held(indices)
        if self.page_size > 1 and pages.size:
            pages = self._distinct(pages, self._marks)
        self._check_count(pages.size)
        return pages

    def free(self, indices: torch.Tensor) -> None:
        """Free the pages of slots ``indices``, or raise an error and free none.

        A slot, or the tail of a request, which is in one page, goes into the ring as a number: as an array
        that is read, told apart and written it takes 7 us, and so 1.5.
        """
        page = self._only_page(indices)
        if page and self.held_pages and not self.group_open:
            self._ring[(self._first + self.free_pages) % self.pages] = page
            self.free_pages += 1
        elif self.page_size == 1:
            pages = self._read_numbers(indices)  # as wide as they come: widened, 4,096 slots take 1.1 us more
            self._check_count(pages.size)
            self.give(pages)
        else:
            self.give(self.claim(indices))

    def _only_page(self, indices: torch.Tensor) -> int:
        """Return the only page of slots that fit into one page; 0 if they are not that simple."""
        if not isinstance(indices, torch.Tensor) or indices.dtype not in _SIGNED or indices.dim() != 1:
            return 0
        if not 0 < indices.numel() <= self.page_size:
            return 0
        numbers = indices.tolist()  # 0.25 us for 15 of them, of which an array takes 0.9
        page: int = min(numbers) // self.page_size
        return page if 0 < page <= self.pages and max(numbers) // self.page_size == page else 0

    def free_starts(self, starts: torch.Tensor | NDArray[np.int64]) -> None:
        """Free the pages that begin at ``starts``, each named once; at most as many as are handed out."""
        if not isinstance(starts, np.ndarray):
            starts = self._read(starts)
        pages = starts if self.page_size == 1 else self._pages_of(starts)
        self._check_count(pages.size)
        self.give(pages)

    def _check_count(self, count: int) -> None:
        """Raise an error for a free that would overwrite the queue."""
        if count > self.held_pages:
            raise OwnershipError(
                f"{count} pages are given back and {self.held_pages} are handed out: "
                "give each one back once, after alloc returned it"
            )

    def check_held(self, indices: torch.Tensor) -> NDArray[np.int64]:
        """Return the page of each slot, with repeats; ownership is unknown here."""
        slots = self._read(indices)
        return slots if self.page_size == 1 else self._pages_of(slots)

    def give(self, pages: NDArray[np.integer]) -> None:
        """Append pages to the ring, or inside a group to the pending ones."""
        size = pages.size
        if self.group_open:
            self._pending.append(pages.copy())
            self.pending_pages += size
            return
        start = (self._first + self.free_pages) % self.pages
        end = start + size
        if end <= self.pages:
            self._ring[start:end] = pages
        else:
            self._ring[start:] = pages[: self.pages - start]
            self._ring[: end - self.pages] = pages[self.pages - start :]
        self.free_pages += size

    def take_again(self, pages: NDArray[np.integer]) -> None:
        """Remove the pages that `give` has just appended."""
        if self.group_open:
            self.pending_pages -= self._pending.pop().size
        else:
            self.free_pages -= pages.size

    def _release_pending(self) -> None:
        """Free the pending pages, in order of arrival."""
        before = self.free_pages
        self.group_open = False
        try:
            for pages in self._pending:
                self.give(pages)
        except BaseException:
            self.free_pages = before
            self.group_open = True
            raise
        self._pending, self.pending_pages = [], 0

    def _reopen_group(self, pending: list[NDArray[np.integer]]) -> None:
        """Undo the end of a group, so that its pages are pending again."""
        count = sum(pages.size for pages in pending)
        self.free_pages -= count
        self._pending, self.pending_pages = pending, count
        self.group_open = True

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Return for each slot, inside the pool or not, whether a caller holds it: bool, same shape.

        Cost: a pass over the free pages, since none has a label.
        """
        held = np.ones(self.pages + 1, np.bool_)
        held[0] = False
        held[self._in_ring(self._first, self.free_pages)] = False
        for pending in self._pending:
            held[pending] = False
        if self._holds is not None:
            held[self._holds.is_parked] = False
        pages = self._pages_of(self._read(indices))
        inside = (pages >= 1) & (pages <= self.pages)
        return torch.from_numpy(inside & held[pages * inside]).reshape(indices.shape)
