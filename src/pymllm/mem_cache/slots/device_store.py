"""The free list as tensors on the pool's own device, whose calls do not wait for the device.

How many pages are free, and how many a call frees, is known on the host from shapes alone; only their
numbers live on the device. What needs a number (an ownership check, the distinct pages among slots)
synchronises, and says so. Where only some of what a call names is given back, their count follows later.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.arguments import INTEGER_DTYPES
from pymllm.mem_cache.slots.slot_store import SlotStore
from pymllm.mem_cache.uploads import as_tensor, bring

# What `_state` says of a page, where ownership is checked. Held is zero, so that one `any` over what a call
# names tells whether something must be refused.
_HELD, _FREE, _PENDING, _RESERVED = 0, 1, 2, 3

_Way: TypeAlias = tuple[Callable[[torch.Tensor], None], Callable[[torch.Tensor], None]]
"""A way to give pages back, and the way to undo that."""


class Whereabouts(enum.Enum):
    """The state of the pages that a `LateCount` counts."""

    PENDING = "pending"
    RELEASED = "released"
    MAIN = "main"


class LateCount:
    """A count of pages that the device computes and the host reads later, without waiting.

    ``pages``: shape ``(n,)``; zeros are no pages, and only what is none is counted out. ``where``: the list
    that they are in. ``where``: as given; whoever moves the pages changes it. On CUDA the number goes to
    pinned memory on the current stream, behind which an event is recorded: who reads it later waits for what
    was launched before, and for nothing after it. Elsewhere it stays where it is until it is read.
    """

    def __init__(self, pages: torch.Tensor, where: Whereabouts) -> None:
        self.where = where
        self._number = torch.count_nonzero(pages)
        self._done: torch.cuda.Event | None = None
        if pages.is_cuda:
            self._send(pages.device)  # pragma: needs cuda

    def _send(self, device: torch.device) -> None:  # pragma: needs cuda
        # The sender's memory is its stream's, and so free for reuse as soon as the name is gone.
        there = torch.empty((), dtype=torch.int64, pin_memory=True)
        there.copy_(self._number, non_blocking=True)
        self._number, self._done = there, torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(torch.cuda.current_stream(device))

    def is_here(self) -> bool:
        """Whether the host can read the count without waiting for the device."""
        return self._done is not None and bool(self._done.query())  # type: ignore[no-untyped-call]

    def read(self) -> int:
        """Return the number, after waiting for it if needed."""
        if self._done is not None:
            self._done.synchronize()  # pragma: needs cuda
        return int(self._number)


class DeviceSlotStore(SlotStore):
    """A free list on a device, as two lists: pages for `take`, and pages freed since the last merge.

    ``size``, ``page_size``, ``device``, ``need_sort``, ``check_ownership``: as in `SlotStore`.
    ``_main[_main_from:]`` is what `take` reads from, ``_released`` what was freed since the last merge (law
    A4). A merge with ``need_sort`` marks both in a byte per page and reads the marks in order: four launches
    and a pass of the device over one byte per page, no sort and no wait of the host. Pages are int64
    everywhere, which is what torch wants of an index: in int32 each use of one is a conversion more, and a
    free list takes half the bytes. Both lists may have zeros, which are no pages, where `free_with` gave back
    what a table had: ``_main`` at its end, ``_released`` anywhere. How many pages there are beside them is a
    `LateCount`; what is certain without it is in ``_main_sure`` and ``_free_sure``, and is handed out without
    asking. Cost: with checks off nothing synchronises but `claim` with ``page_size > 1`` and the end of a
    group that has pages to tell apart, once each; and, where a late count decides, whoever asks what is free.
    With checks on every `claim` does, twice at most. Source: docs/specification/slots.md. Laws: A1-A6, X1,
    X4.
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

    def new_trackers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the list of all pages, and a label for each page."""
        main = torch.arange(1, self.pages + 1, device=self.device)
        # With padding in front and one entry behind, where everything outside of the pool is looked up.
        with torch.inference_mode(False):  # what is born in it could not be written outside it
            state = torch.full((self.pages + 2,), _FREE, dtype=torch.uint8, device=self.device)
        state[:: self.pages + 1] = _RESERVED
        return main, state

    def open_trackers(self, tracker: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Start again with such a list and labels."""
        self._main, self._state = tracker
        self._main_from = 0
        self._released: list[torch.Tensor] = []
        self._main_sure = self._free_sure = self.unparked_pages = self.pages
        self._holds = None
        self._pending_sure = 0
        self._late: list[LateCount] = []
        self._has_gaps = False
        self.group_open = False
        self._pending: list[torch.Tensor] = []
        self._unread: list[torch.Tensor] = []

    @property
    def free_pages(self) -> int:
        """The number of pages that `take` can still return; waits for counts that have not arrived."""
        if self._late:
            self._note_counts(wait=True)
        return self._free_sure

    @free_pages.setter
    def free_pages(self, count: int) -> None:
        self._free_sure = count

    @property
    def pending_pages(self) -> int:
        """The number of pages given back inside the open group; waits as `free_pages`."""
        self._note_counts(wait=True)
        return self._pending_sure

    @pending_pages.setter
    def pending_pages(self, count: int) -> None:
        self._pending_sure = count

    def has_room(self, count: int) -> bool:
        """Tell whether ``count`` pages are free; waits only if a late count decides."""
        if count > self._free_sure:
            self._note_counts(wait=False)
        return count <= self._free_sure or count <= self.free_pages

    def _note_counts(self, wait: bool) -> None:
        """Add the late counts that have arrived, or all late counts, to the known counts."""
        if not self._late:
            return
        coming: list[LateCount] = []
        here = dict.fromkeys(Whereabouts, 0)
        for late in self._late:
            if wait or late.is_here():
                here[late.where] += late.read()
            else:
                coming.append(late)
        self._late = coming
        self._pending_sure += here[Whereabouts.PENDING]
        self._free_sure += here[Whereabouts.RELEASED] + here[Whereabouts.MAIN]
        self._main_sure += here[Whereabouts.MAIN]

    def take(self, count: int) -> torch.Tensor | None:
        """Hand out the next ``count`` pages, or return ``None`` and change nothing."""
        if not self.has_room(count):
            return None
        if count > self._main_sure and self._is_late(Whereabouts.MAIN):
            self._note_counts(wait=True)  # whether the older ones suffice decides which pages go next (A4)
        if count > self._main_sure:
            self.merge()
        pages = self._main[self._main_from : self._main_from + count]
        self._label(pages, _HELD, _FREE)
        self._main_from += count
        self._main_sure -= count
        self._free_sure -= count
        return pages

    def put_back(self, pages: torch.Tensor) -> None:
        """Return pages that `take` has just handed out, and that are still in the list before its start."""
        self._label(pages, _FREE, _HELD)
        count = pages.numel()
        self._main_from -= count
        self._main_sure += count
        self._free_sure += count

    def merge(self) -> None:
        """Make pages freed since the last merge available like all others."""
        if not self._released:
            return
        self._note_counts(wait=False)
        pages = torch.cat([self._main[self._main_from :], *self._released])
        is_late = self._is_late(Whereabouts.MAIN, Whereabouts.RELEASED)
        count = pages.numel() if is_late else self._free_sure
        if self.need_sort:
            # The count is known, so the marks can be read without asking the device how many there are; where
            # it is on its way, zeros follow.
            marks = torch.zeros(self.pages + 1, dtype=torch.bool, device=self.device)
            marks.index_fill_(0, pages, True)
            if self._has_gaps:
                marks[:1].zero_()
            pages = torch.nonzero_static(marks, size=count, fill_value=0).view(-1)
        elif self._has_gaps:
            pages = self._closed_up(pages, count)
        self._main, self._main_from, self._released = pages, 0, []
        self._main_sure = self._free_sure
        self._has_gaps = is_late or bool(self._pending)
        self._move_late(Whereabouts.RELEASED, Whereabouts.MAIN)

    def _closed_up(self, pages: torch.Tensor, count: int) -> torch.Tensor:
        """Return the first ``count`` nonzero pages, in order."""
        places = torch.nonzero_static(pages != 0, size=count, fill_value=pages.numel()).view(-1)
        return torch.cat([pages, pages.new_zeros(1)])[places]

    def _is_late(self, *where: Whereabouts) -> bool:
        return any(late.where in where for late in self._late)

    def _move_late(self, where: Whereabouts, to: Whereabouts) -> None:
        for late in self._late:
            if late.where is where:
                late.where = to

    @property
    def _reads_later(self) -> bool:
        """Whether freed pages are only recorded, and made distinct at the end of the group."""
        return self.group_open and self.page_size > 1 and not self.check_ownership

    def claim_loosely(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the page of each slot; repeats stay if the end of the group drops them, else as `claim`."""
        return self._pages_of(self._read(indices)) if self._reads_later else self.claim(indices)

    def give_loosely(self, pages: torch.Tensor) -> None:
        """Record pages if the end of the group makes them distinct; otherwise `give` them."""
        if self._reads_later:
            self._unread.append(pages)
        else:
            self.give(pages)

    def take_again_loosely(self, pages: torch.Tensor) -> None:
        """Undo the last `give_loosely`."""
        if self._reads_later:
            self._unread.pop()
        else:
            self.take_again(pages)

    def free_with(self, indices: torch.Tensor, table: torch.Tensor, others: SlotStore) -> None:
        """Free pages, and their table entries in another store.

        Without checks there is no wait for single slots, nor for pages inside a group, and one for pages and
        what the table has for them together.
        """
        assert isinstance(others, DeviceSlotStore)
        if self._reads_later:
            mine = self.give_loosely, self.take_again_loosely
            theirs = others.give_loosely, others.take_again_loosely
            self._free_both(self.claim_loosely(indices), table, mine, theirs)
        elif self.page_size == 1 and not self.check_ownership:
            self._free_distinct(self.claim(indices), table, others)
        else:
            super().free_with(indices, table, others)

    def free_starts_with(
        self, starts: torch.Tensor | NDArray[np.int64], table: torch.Tensor, others: SlotStore
    ) -> None:
        """Free the pages that begin at ``starts``, and their table entries in another store.

        Without checks there is no wait: how many of the others that are follows.
        """
        if self.check_ownership:
            super().free_starts_with(starts, table, others)
        else:
            self._free_distinct(self.claim_starts(starts), table, others)

    def _free_distinct(self, pages: torch.Tensor, table: torch.Tensor, others: SlotStore) -> None:
        """Free distinct pages, and their table entries in another store."""
        assert isinstance(others, DeviceSlotStore)
        # A count that is late, and what is only noted down, are of pages that were not all there.
        is_known = not (others._late or others._unread or self._unread)
        theirs = others._give_some, others._take_some_again
        if is_known and self.held_pages == others.held_pages:
            theirs = others.give, others.take_again
        self._free_both(pages, table, (self.give, self.take_again), theirs)

    def _free_both(self, pages: torch.Tensor, table: torch.Tensor, mine: _Way, theirs: _Way) -> None:
        """Free pages in one way and their table entries in another way; or, on an error, neither."""
        found = table[pages]
        mine[0](pages)
        try:
            theirs[0](found)
            try:
                self.forget(table, pages)
            except BaseException:
                table[pages] = found
                theirs[1](found)
                raise
        except BaseException:
            mine[1](pages)
            raise

    def free_starts(self, starts: torch.Tensor | NDArray[np.int64]) -> None:
        """Free the pages that begin at ``starts``, each named once."""
        self.give(self.claim_starts(starts))

    def claim_starts(self, starts: torch.Tensor | NDArray[np.int64]) -> torch.Tensor:
        """Return the pages that begin at ``starts``, each named once.

        Without checks nothing has to be told apart, so nothing waits for the device.
        """
        if self.check_ownership or self.page_size == 1:
            return self.claim(as_tensor(starts))
        return self._pages_of(self._read(as_tensor(starts)))

    def claim(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the distinct pages of slots ``indices``, after a check of ownership if it is on."""
        pages = self.check_held(indices)
        if self.page_size == 1:
            return pages.clone()  # they may be the caller's own
        return self._distinct(pages)

    def check_held(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the page of each slot, with repeats, after a check of ownership if it is on."""
        slots = self._read(indices)
        pages = self._pages_of(slots)
        if not self.check_ownership or not slots.numel():
            return pages
        state = self._state.index_select(0, pages.clamp(0, self.pages + 1))
        if state.any():
            self._refuse(slots, state, indices)
        if self.page_size == 1 and slots.numel() > 1:
            self._refuse_repeated(slots)
        return pages

    def claim_with(
        self, indices: torch.Tensor, table: torch.Tensor, whole: bool
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return the distinct pages of slots ``indices``, with their entries in ``table``.

        Without checks, one wait tells how many of both there are.
        """
        if whole or self.page_size == 1 or self.check_ownership:
            return super().claim_with(indices, table, whole)
        pages, is_first = self._in_order(self._pages_of(self._read(indices)))
        found = table[pages]
        firsts, left = self._places(is_first, is_first & (found != 0))
        return pages[firsts], found[left], (pages, found)

    def give(self, pages: torch.Tensor) -> None:
        """Append pages to the freed ones, or inside a group to the pending ones."""
        count = pages.numel()
        if not count:
            return
        parts, label = (self._pending, _PENDING) if self.group_open else (self._released, _FREE)
        parts.append(pages)
        try:
            self._label(pages, label, _HELD)
        except BaseException:
            parts.pop()
            raise
        if self.group_open:
            self._pending_sure += count
        else:
            self._free_sure += count

    def take_again(self, pages: torch.Tensor) -> None:
        """Remove from a list the pages that `give` has just appended."""
        count = pages.numel()
        if not count:
            return
        self._label(pages, _HELD, _HELD)
        if self.group_open:
            self._pending.pop()
            self._pending_sure -= count
        else:
            self._released.pop()
            self._free_sure -= count

    def _give_some(self, pages: torch.Tensor) -> None:
        """Take back pages among zeros, without a check of ownership; their count arrives later."""
        if not pages.numel():
            return
        self._note_counts(wait=False)
        where, parts = Whereabouts.RELEASED, self._released
        if self.group_open:
            where, parts = Whereabouts.PENDING, self._pending
        late = LateCount(pages, where)
        parts.append(pages)
        self._late.append(late)
        self._has_gaps = True

    def _take_some_again(self, pages: torch.Tensor) -> None:
        """Undo the last `_give_some`."""
        (self._pending if self.group_open else self._released).pop()
        self._late.pop()

    def end_group_with(self, others: SlotStore) -> None:
        """End the groups of two stores, with one wait to make all recorded pages distinct."""
        assert isinstance(others, DeviceSlotStore)
        if self._unread and others._unread:
            ordered, firsts = self._read_unread()
            other_ordered, other_firsts = others._read_unread()
            ours, theirs = self._places(firsts, other_firsts)
            mine, halves = ordered[ours], other_ordered[theirs]
            self.give(mine)
            try:
                others.give(halves)
            except BaseException:
                self.take_again(mine)
                raise
            self._unread, others._unread = [], []
        super().end_group_with(others)

    def _read_unread(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return recorded pages in order, with a mark on each distinct page other than zero."""
        ordered, is_first = self._in_order(torch.cat(self._unread))
        return ordered, is_first.logical_and_(ordered)

    def _release_pending(self) -> None:
        """Free the pending pages, made distinct now if they were only recorded."""
        pending, sure = self._pending, self._pending_sure
        if self._unread:
            ordered, is_first = self._read_unread()
            (firsts,) = self._places(is_first)
            distinct = ordered[firsts]
            sure += distinct.numel()
            pending = [*pending, distinct]
        try:
            for pages in pending:
                self._label(pages, _FREE, _PENDING)
        except BaseException:
            for pages in pending:
                self._label(pages, _PENDING, _PENDING)
            raise
        self._released += pending
        self._free_sure += sure
        self._pending, self._pending_sure, self._unread = [], 0, []
        self._move_late(Whereabouts.PENDING, Whereabouts.RELEASED)
        self.group_open = False

    def _group(self) -> tuple[Any, ...]:
        """Return the state of the open group, to undo its end."""
        return len(self._released), self._free_sure, self._pending, self._pending_sure, self._unread

    def _reopen_group(self, group: tuple[Any, ...]) -> None:
        """Undo the end of a group, so that its pages are pending again.

        Where counts come late nothing is checked nor told apart, so that no end fails and none is undone.
        """
        released, self._free_sure, self._pending, self._pending_sure, self._unread = group
        del self._released[released:]
        for pages in self._pending:
            self._label(pages, _PENDING, _PENDING)
        self.group_open = True

    def new_pages(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        """Return page numbers as a tensor on the device."""
        return bring(torch.from_numpy(numbers), self.device)

    def label_parked(self, pages: torch.Tensor, is_parked: bool) -> None:
        """Label pages in a transfer as pending, and other pages as handed out."""
        self._label(pages, _PENDING if is_parked else _HELD, _HELD)

    def slots_of(self, pages: torch.Tensor, count: int) -> torch.Tensor:
        """Return the first ``count`` slots of ``pages``, in order, as a new int32 tensor."""
        if self.page_size == 1:
            return pages.int()
        slots = torch.add(self._offsets, pages.unsqueeze(1), alpha=self.page_size).view(-1)
        return (slots if count == slots.numel() else slots[:count]).int()

    def locate(
        self, indices: torch.Tensor, *, check_range: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the page of each slot, with repeats, and its offset in the page."""
        slots = self._read(indices)
        if check_range and not torch.equal(slots, slots.clamp(0, self.last_slot)):
            raise self.outside_error(int(slots[(slots < 0) | (slots > self.last_slot)][0]), indices)
        if self.page_size == 1:
            return slots, self._offsets  # a zero, for all of them
        pages = self._pages_of(slots)
        return pages, torch.sub(slots, pages, alpha=self.page_size)

    def slots_at(self, pages: torch.Tensor, offsets: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Return the slot at each offset of each page, as int32 of ``shape``; 0 for page 0."""
        # No page is below 0, so that its sign is what blanks the offset: quicker than a mask.
        slots = pages if self.page_size == 1 else (offsets * pages.sign()).add_(pages, alpha=self.page_size)
        slots = slots.int()
        return slots if len(shape) == 1 else slots.view(shape)

    def new_table(self) -> torch.Tensor:
        """Return a table with a zero for each page, including page 0."""
        with torch.inference_mode(False):
            return torch.zeros(self.pages + 1, dtype=torch.int64, device=self.device)

    def forget(self, table: torch.Tensor, pages: torch.Tensor) -> None:
        """Set the table entries of pages, which may repeat, to zero."""
        # Assigning the number by index has torch 2.11 send it from the host, and wait until it is there.
        table.index_fill_(0, pages, 0)

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Return for each slot, inside the pool or not, whether a caller holds it: bool, same shape.

        Read from the lists alone, which is right with checks off too: a pass over the whole pool.
        """
        held = torch.ones(self.pages + 1, dtype=torch.bool, device=self.device)
        held[:1].zero_()
        for free in (self._main[self._main_from :], *self._released, *self._pending, *self._unread):
            held.index_fill_(0, free, False)
        if self._holds is not None:
            held &= torch.from_numpy(~self._holds.is_parked).to(self.device)
        pages = self._pages_of(self._read(indices))
        inside = (pages >= 1) & (pages <= self.pages)
        return (inside & held[pages * inside]).reshape(indices.shape)

    def _label(self, pages: torch.Tensor, label: int, before: int) -> None:
        """Label pages if ownership is checked; on an error, restore the label ``before``."""
        if self.check_ownership:
            try:
                self._state.index_fill_(0, pages, label)
            except BaseException:
                self._state.index_fill_(0, pages, before)
                raise

    def _read(self, indices: torch.Tensor) -> torch.Tensor:
        """Return ``indices`` as one dimension of int64 on the device, copied only if needed."""
        if not isinstance(indices, torch.Tensor):
            raise TypeError(f"indices must be a tensor of integers, got {type(indices).__name__}")
        if indices.dtype not in INTEGER_DTYPES and indices.numel():
            raise TypeError(f"indices must be integers, got a tensor of {indices.dtype}")
        slots = indices if indices.dim() == 1 else indices.reshape(-1)
        return bring(slots, self.device)

    def _pages_of(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the page of each slot; with pages of one slot, ``slots`` itself."""
        if self.page_size == 1:
            return slots
        if self._page_shift is None:
            return torch.floor_divide(slots, self.page_size)
        return torch.bitwise_right_shift(slots, self._page_shift)

    def _distinct(self, pages: torch.Tensor) -> torch.Tensor:
        """Return each page once, after asking the device for their number."""
        if pages.numel() < 2:
            return pages
        if not self._is_apart:  # where nothing waits, one call is quicker than six
            distinct: torch.Tensor = torch.unique(pages)
            return distinct
        ordered, is_first = self._in_order(pages)
        (firsts,) = self._places(is_first)
        return ordered[firsts]

    def _in_order(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pages sorted, with a mark on the first of each."""
        ordered = pages.sort().values
        is_first = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=is_first[1:])
        return ordered, is_first

    def _places(self, *marks: torch.Tensor) -> list[torch.Tensor]:
        """Return the marked positions of each list, with one wait for all counts."""
        counts = torch.stack([mark.sum() for mark in marks]).tolist()
        return [
            torch.nonzero_static(mark, size=count).view(-1) for mark, count in zip(marks, counts, strict=True)
        ]

    def _refuse_repeated(self, slots: torch.Tensor) -> None:
        """Raise an error for a slot that is named twice."""
        values, counts = torch.unique(slots, return_counts=True)
        if values.numel() != slots.numel():
            raise self.repeated_error(int(values[counts > 1][0]))

    def _refuse(self, slots: torch.Tensor, state: torch.Tensor, indices: torch.Tensor) -> NoReturn:
        """Raise an error for the first slot outside the pool, or else for the first that is not held."""
        outside = (state == _RESERVED).nonzero()
        if outside.numel():
            raise self.outside_error(int(slots[outside[0]]), indices)
        first = int(state.nonzero()[0])
        raise self.not_held_error(int(slots[first]), int(state[first]) == _PENDING)
