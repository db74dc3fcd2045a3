"""Free lists in NumPy for pools on the CPU: their common base, and the one with a label per page."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.slots.slot_store import SlotStore

_INT64 = np.dtype(np.int64)
NOTHING = np.empty(0, _INT64)
_NO_OFFSET = np.zeros(1, _INT64)


class HostPages(SlotStore):
    """The base class of NumPy free lists: slot and page numbers, without the record of free pages.

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
        """Return the first ``count`` slots of ``pages``, in order, as a new int32 tensor."""
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
        """Return the page of each slot, with repeats, and its offset in the page."""
        slots = self._read(indices)
        # Seen as unsigned, a negative number is a huge one: one reduction finds both ends of the range.
        if check_range and slots.size and slots.view(np.uint64).max() > self.last_slot:
            raise self.outside_error(int(slots[(slots < 0) | (slots > self.last_slot)][0]), indices)
        if self.page_size == 1:
            return slots, _NO_OFFSET  # for all of them
        pages = self._pages_of(slots)
        return pages, slots - pages * self.page_size

    def slots_at(
        self, pages: NDArray[np.integer], offsets: NDArray[np.int64], shape: torch.Size
    ) -> torch.Tensor:
        """Return the slot at each offset of each page, as int32 of ``shape``; 0 for page 0."""
        slots = pages if self.page_size == 1 else (pages * self.page_size + offsets) * (pages != 0)
        numbers = torch.from_numpy(slots.astype(np.int32, copy=False))  # `pages` are the store's own
        return numbers if len(shape) == 1 else numbers.view(shape)

    def new_table(self) -> NDArray[np.int32]:
        """Return a table with a zero for each page, including page 0."""
        return np.zeros(self.pages + 1, np.int32)

    def new_pages(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return page numbers unchanged."""
        return numbers

    def forget(self, table: NDArray[np.int32], pages: NDArray[np.integer]) -> None:
        """Set the table entries of pages, which may repeat, to zero."""
        table[pages] = 0

    def _read(self, indices: torch.Tensor) -> NDArray[np.int64]:
        """Return ``indices`` as one dimension of int64, copied only if needed."""
        slots: NDArray[Any] = self._read_numbers(indices)
        return slots if slots.dtype is _INT64 else slots.astype(_INT64)

    def _read_numbers(self, indices: torch.Tensor) -> NDArray[np.integer]:
        """Return ``indices`` as one dimension of their own integers, without a copy."""
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
        """Return the data of a tensor that `torch.Tensor.numpy` refuses, which must be on another device."""
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
        """Return each of ``pages`` (at least one) once; ``table`` has an entry for each, and loses it."""
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
    """Return a mark on one occurrence of each distinct page, using ``table`` as scratch space.

    Each place writes its number to its page; one place per page finds its own number there. 15 us
    for 4096 pages, where a sort takes 83 us and `numpy.unique` 310 us.
    """
    places = np.arange(pages.size, dtype=np.int32)
    table[pages] = places
    kept: NDArray[np.bool_] = table[pages] == places
    return kept


# What `_state` says of a page. Anything below PENDING is free and names the merge epoch in which it
# became so; the order matters, since "free and older than this epoch" is then one comparison.
_RESERVED = 2**31 - 1
_HELD = 2**31 - 2
_PENDING = 2**31 - 3

# Pages per chunk of the search for free pages. One chunk costs 2.4 us to search; smaller ones cost
# more calls when much is taken, larger ones more entries when free pages are rare.
_CHUNK_BITS = 10
_WINDOW = 64

# Trees and engines hand over long stretches of consecutive slots. Labelling 30,720 pages in ten such runs
# takes 17 us to find the runs and 5 to fill them, against 60 us page by page; with fewer pages, or
# shorter runs, page by page is as good.
_RUNS_FROM = 8192
_LONG_RUN = 64


class HostSlotStore(HostPages):
    """A free list whose cost depends on the pages handed out and freed, and not on the pool's size.

    ``size``, ``page_size``, ``device``, ``need_sort``, ``check_ownership``: as in `SlotStore`; ``device`` is
    the CPU. ``_state`` holds, per page, either a label (held, pending, reserved) or the epoch in which the
    page was freed. A merge only begins a new epoch: pages of earlier epochs are *old* and go first, those of
    the current one are *young* (law A4). So neither a free nor a merge moves a free list, and nothing is ever
    sorted. Old pages are found lowest first by searching the chunks that may have some; what one search finds
    is kept in ``_ready`` for the next calls. As order costs nothing here, ``need_sort=False`` changes
    nothing. Cost: no device synchronisation; `take` searches a few chunks per 1024 pages taken, in the worst
    case (free pages far apart) as many chunks as it takes pages. Source: our choice. Laws: A1-A6, X1, X4.
    """

    def __init__(
        self, size: int, page_size: int, device: torch.device, need_sort: bool, check_ownership: bool
    ) -> None:
        super().__init__(size, page_size, device, need_sort, check_ownership)
        self._chunks = ((self.pages + 1) >> _CHUNK_BITS) + 1  # with room for an entry behind the last page
        self._chunk_shift = np.array(_CHUNK_BITS)
        # Where pages are told apart: in a table of its own, so that no label is lost where that fails.
        self._marks = np.empty(
            self._chunks << _CHUNK_BITS if check_ownership or page_size > 1 else 0, np.int32
        )
        self.clear()

    def new_trackers(self) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return a label for each page, and flags of chunks that may contain old or young free pages."""
        state = np.zeros(self._chunks << _CHUNK_BITS, np.int32)
        state[0] = _RESERVED
        state[self.pages + 1 :] = _RESERVED
        return state, np.ones(self._chunks, np.bool_), np.zeros(self._chunks, np.bool_)

    def open_trackers(self, tracker: tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]) -> None:
        """Start again with such labels and flags; a superfluous flag only costs a search."""
        self._state, self._old_chunks, self._young_chunks = tracker
        self._epoch = 1
        self._ready = NOTHING
        self._ready_from = 0
        self._next_chunk = 0
        self._young_pages = 0
        self.free_pages = self.unparked_pages = self.pages
        self._holds = None
        self.pending_pages = 0
        self.group_open = False
        self._pending: list[NDArray[np.int64]] = []

    def take(self, count: int) -> NDArray[np.int64] | None:
        """Hand out the ``count`` lowest of the old pages; or return ``None`` and change nothing."""
        stop = self._ready_from + count
        if stop > self._ready.size:
            if count > self.free_pages:
                return None
            self._make_ready(count)
            stop = self._ready_from + count
        pages = self._ready[self._ready_from : stop]
        runs = _long_runs(pages) if count >= _RUNS_FROM else None
        try:
            if runs is None:
                self._state[pages] = _HELD
            else:
                for first, end in runs:
                    self._state[first:end] = _HELD
        except BaseException:
            self._state[pages] = 0
            raise
        self.free_pages -= count
        self._ready_from = stop
        return pages

    def put_back(self, pages: NDArray[np.int64]) -> None:
        """Make pages that `take` has just handed out old and ready again."""
        self._state[pages] = 0
        self._ready_from -= pages.size
        self.free_pages += pages.size

    def _make_ready(self, count: int) -> None:
        """Extend ``_ready`` to at least ``count`` pages, merging if the old ones do not suffice."""
        if count > self.free_pages - self._young_pages:
            self.merge()
        parts = [self._ready[self._ready_from :]]
        missing = count - parts[0].size
        chunks = min(1 + (missing >> (_CHUNK_BITS - 1)), _WINDOW)
        first = stop = self._next_chunk
        while missing > 0:
            start = stop + int(self._old_chunks[stop:].argmax())
            stop = min(start + chunks, self._old_chunks.size)
            found = np.flatnonzero(self._state[start << _CHUNK_BITS : stop << _CHUNK_BITS] < self._epoch)
            parts.append(found + (start << _CHUNK_BITS))
            missing -= found.size
            # Growing windows bound the number of calls where free pages are few and far apart; beyond
            # 64 chunks their temporaries would be mapped afresh each time (1.1 ms against 0.3).
            chunks = min(2 * chunks, _WINDOW)
        self._ready = np.concatenate(parts)
        self._ready_from = 0
        self._next_chunk = stop
        self._old_chunks[first:stop] = False  # last: only what is ready need not be found again

    def label_parked(self, pages: NDArray[np.int64], is_parked: bool) -> None:
        """Label pages in a transfer as pending, and other pages as handed out."""
        self._state[pages] = _PENDING if is_parked else _HELD

    def merge(self) -> None:
        """Begin a new epoch, in which the young pages are old.

        Cost: one byte per 1024 pages, no page is moved. Law: A4.
        """
        if not self._young_pages:
            return
        if self._ready_from < self._ready.size:
            # What was found but not taken is looked for again, among what is merged.
            first = int(self._ready[self._ready_from]) >> _CHUNK_BITS
            self._old_chunks[first : self._next_chunk] = True
        np.bitwise_or(self._old_chunks, self._young_chunks, out=self._old_chunks)
        epoch = self._epoch + 1
        if epoch == _PENDING:
            # After 2**31 merges (months of serving) the epochs have run out: forget the past ones.
            self._state[self._state < _PENDING] = 0
            epoch = 1
        self._ready, self._ready_from, self._next_chunk = NOTHING, 0, 0
        self._young_pages = 0
        self._epoch = epoch
        self._young_chunks[:] = False  # last, as a flag too many is no harm

    def claim(self, indices: torch.Tensor) -> NDArray[np.int64]:
        """Return the distinct pages of slots ``indices``, after a check of ownership if it is on."""
        pages = self.check_held(indices)
        return pages if self.page_size == 1 or not pages.size else self._distinct(pages, self._marks)

    def check_held(self, indices: torch.Tensor) -> NDArray[np.int64]:
        """Return the page of each slot, with repeats, after a check of ownership if it is on."""
        slots = self._read(indices)
        pages = slots if self.page_size == 1 else self._pages_of(slots)
        if self.check_ownership and slots.size:
            self._check_held(slots, pages, indices)
            if self.page_size == 1:
                self._check_distinct(slots)
        return pages

    def give(self, pages: NDArray[np.int64]) -> None:
        """Label pages as freed since the last merge, or as pending inside a group."""
        size = pages.size
        try:
            if self.group_open:
                pages = pages.copy()
                self._state[pages] = _PENDING
                self._pending.append(pages)
                self.pending_pages += size
                return
            runs = _long_runs(pages) if size >= _RUNS_FROM else None
            if runs is None:
                self._young_chunks[pages >> self._chunk_shift] = True
                self._state[pages] = self._epoch
            else:
                for first, end in runs:
                    self._young_chunks[first >> _CHUNK_BITS : ((end - 1) >> _CHUNK_BITS) + 1] = True
                    self._state[first:end] = self._epoch
        except BaseException:
            self._state[pages] = _HELD
            raise
        self._young_pages += size
        self.free_pages += size

    def take_again(self, pages: NDArray[np.int64]) -> None:
        """Label pages as held again that `give` has just freed."""
        self._state[pages] = _HELD
        if self.group_open:
            self.pending_pages -= self._pending.pop().size
        else:
            self._young_pages -= pages.size
            self.free_pages -= pages.size

    def _release_pending(self) -> None:
        """Free the pending pages all at once."""
        pages = np.concatenate(self._pending) if self._pending else NOTHING
        self.group_open = False
        try:
            self.give(pages)
        except BaseException:
            self._state[pages] = _PENDING
            self.group_open = True
            raise
        self._pending, self.pending_pages = [], 0

    def _reopen_group(self, pending: list[NDArray[np.int64]]) -> None:
        """Undo the end of a group, so that its pages are pending again."""
        pages = np.concatenate(pending) if pending else NOTHING
        self._state[pages] = _PENDING
        self._young_pages -= pages.size
        self.free_pages -= pages.size
        self._pending, self.pending_pages = pending, pages.size
        self.group_open = True

    def slots_of(self, pages: NDArray[np.integer], count: int) -> torch.Tensor:
        """Return the first ``count`` slots of ``pages``, in order, as a new int32 tensor."""
        if self.page_size > 1 and pages.size and pages[-1] - pages[0] == pages.size - 1:
            # `take` returns ascending pages, so these follow one another: 2 us for 12,000 slots, not 9.
            start = int(pages[0]) * self.page_size
            return torch.from_numpy(np.arange(start, start + count, dtype=np.int32))
        return super().slots_of(pages, count)

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Return for each slot, inside the pool or not, whether a caller holds it: bool, same shape."""
        return torch.from_numpy(self._are_held(self._pages_of(self._read(indices)))).reshape(indices.shape)

    def _are_held(self, pages: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each page, inside the pool or not, whether a caller holds it."""
        # What is outside is looked up at one of the two ends, which are reserved: a check of four slots takes
        # 4.5 us, and 6.6 with a look at the range before it; of 4096 slots 20 and 24.
        held: NDArray[np.bool_] = self._state.take(pages, mode="clip") == _HELD
        return held

    def _check_held(self, slots: NDArray[np.int64], pages: NDArray[np.int64], indices: torch.Tensor) -> None:
        """Raise an error for slots outside the pool, and for pages that are not handed out."""
        held = self._are_held(pages)
        if np.count_nonzero(held) != pages.size:
            outside = slots[(pages < 1) | (pages > self.pages)]
            if outside.size:
                raise self.outside_error(int(outside[0]), indices)
            first = int(np.argmin(held))
            raise self.not_held_error(int(slots[first]), bool(self._state[pages[first]] == _PENDING))

    def _check_distinct(self, slots: NDArray[np.int64]) -> None:
        """Raise an error for a slot that is named twice."""
        kept = stamped(slots, self._marks)
        if np.count_nonzero(kept) != slots.size:
            raise self.repeated_error(int(slots[np.argmin(kept)]))


def _long_runs(pages: NDArray[np.int64]) -> list[tuple[int, int]] | None:
    """Return half-open runs of consecutive numbers in ``pages``; ``None`` if the runs are short."""
    breaks = np.flatnonzero(pages[1:] - pages[:-1] != 1)
    if breaks.size * _LONG_RUN > pages.size:
        return None
    firsts = pages[np.concatenate(([0], breaks + 1))]
    lasts = pages[np.concatenate((breaks, [pages.size - 1]))]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))
