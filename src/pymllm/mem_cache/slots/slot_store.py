"""The interface of a free list, as slot allocators use it.

A `SlotStore` knows which pages of a pool are free, pending in a free group, or handed out. It counts
in pages (a page of size 1 is a slot); `TokenToKVPoolAllocator` and `SWATokenToKVPoolAllocator` put
tokens, slots and argument checks around it. `HostSlotStore` keeps NumPy arrays and serves the CPU, or
`HostQueueStore` where nothing is to be checked or sorted; `DeviceSlotStore` keeps tensors on the pool's own
device and does not synchronise.

Nothing here knows about KV rows, requests or trees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.errors import OwnershipError
from pymllm.mem_cache.arguments import INTEGER_DTYPES
from pymllm.mem_cache.ownership import refuse_other_thread
from pymllm.mem_cache.slots.page_holds import PageHolds, Split, on_host
from pymllm.mem_cache.uploads import as_tensor

if TYPE_CHECKING:
    from pymllm.mem_cache.page_owners import PageOwners

#: A one-dimensional list of page numbers (or, as a table, of values by page number): a NumPy array in
#: the host store, a tensor in the device store. The operators that the allocators use on one (index,
#: assign, compare) are spelled the same for both; no common type says so.
Pages: TypeAlias = Any


class SlotStore(ABC):
    """The pages of one pool, with the record of which are free.

    Page ``p`` (``1 <= p <= pages``) is slots ``[p * page_size, (p + 1) * page_size)``; page 0 is padding and
    is never handed out (law A1). ``size``: slots in the pool, a multiple of ``page_size``, padding not
    counted. ``page_size``: slots per page. ``device``: device of the slots handed out. ``need_sort``: whether
    the lowest pages go first after a merge. ``check_ownership``: whether `claim` verifies that what it is
    given was handed out.
    """

    #: The highest number of a slot in the pool; the lowest is 0, which is padding.
    last_slot: int
    #: Pages that `take` can still deliver, pending ones not counted.
    free_pages: int
    #: Pages given back inside the open group; they are neither free nor handed out (law A2).
    pending_pages: int
    #: Pages of the pool but those that were given back and wait for a transfer.
    unparked_pages: int
    #: The transfers of each page, once there was one since the last `clear`.
    _holds: PageHolds | None
    #: The caches that have its pages, where a caller wants them watched.
    owners: PageOwners | None = None
    #: Whether a free group is open.
    group_open: bool
    #: Who opened it.
    _group_thread = 0
    #: What was given back inside it; another list after each group.
    _pending: list[Pages]

    def __init__(
        self, size: int, page_size: int, device: torch.device, need_sort: bool, check_ownership: bool
    ) -> None:
        self.size = size
        self.page_size = page_size
        self.pages = size // page_size
        self.last_slot = size + page_size - 1
        self.device = device
        self.need_sort = need_sort
        self.check_ownership = check_ownership

    @property
    def held_pages(self) -> int:
        """The number of pages that callers hold."""
        return self.unparked_pages - self.free_pages - self.pending_pages

    def has_room(self, count: int) -> bool:
        """Tell whether ``count`` pages are free."""
        return count <= self.free_pages

    def free(self, indices: torch.Tensor) -> None:
        """Free the pages of slots ``indices``, or raise an error and free none."""
        self.give_loosely(self.claim_loosely(indices))

    def free_with(self, indices: torch.Tensor, table: Pages, others: SlotStore) -> None:
        """Free pages and their table entries in another store, or raise an error and free none."""
        whole = self.held_pages == others.held_pages
        pages, found, (where, before) = self.claim_with(indices, table, whole)
        self.give(pages)
        try:
            others.give(found)
            try:
                self.forget(table, pages)
            except BaseException:
                table[where] = before
                others.take_again(found)
                raise
        except BaseException:
            self.take_again(pages)
            raise

    def free_starts(self, starts: torch.Tensor | NDArray[np.int64]) -> None:
        """Free the pages that begin at ``starts``, each named once; with checks, all or none."""
        self.free(as_tensor(starts))

    def free_starts_with(
        self, starts: torch.Tensor | NDArray[np.int64], table: Pages, others: SlotStore
    ) -> None:
        """Free pages by ``starts``, and their table entries in another store, or raise an error."""
        self.free_with(as_tensor(starts), table, others)

    def claim_starts(self, starts: torch.Tensor | NDArray[np.int64]) -> Pages:
        """Return the pages that begin at ``starts``, each named once, as `claim` does."""
        return self.claim(as_tensor(starts))

    def clear(self) -> None:
        """Make every page free, as in a new store, and close the open group.

        Reads nothing of what it replaces, so that it works after an interrupt anywhere. Cost: one pass over
        the pool. Laws: A6, X7.
        """
        self.open_trackers(self.new_trackers())

    @abstractmethod
    def new_trackers(self) -> Any:
        """Return the trackers of a new store for `open_trackers`, so that the rest of `clear` cannot fail."""

    @abstractmethod
    def open_trackers(self, tracker: Any) -> None:
        """Start again with the trackers that `new_trackers` returned."""

    @abstractmethod
    def take(self, count: int) -> Pages | None:
        """Hand out ``count`` pages; or return ``None`` and change nothing (laws A3, A4, X4)."""

    @abstractmethod
    def put_back(self, pages: Pages) -> None:
        """Undo the `take` that has just returned ``pages``, which its caller never received (X2)."""

    def take_slots(self, count: int) -> torch.Tensor | None:
        """Hand out ``count`` slots in whole pages, as `take` and `slots_of` do."""
        pages = self.take(-(-count // self.page_size))
        if pages is None:
            return None
        try:
            return self.slots_of(pages, count)
        except BaseException:
            self.put_back(pages)
            raise

    @abstractmethod
    def claim(self, indices: torch.Tensor) -> Pages:
        """Return the distinct pages of slots that a caller names; nothing changes.

        Raises as `check_held`.
        """

    def claim_loosely(self, indices: torch.Tensor) -> Pages:
        """Return pages for `give_loosely`: as `claim`, or with repeats that are dropped later."""
        return self.claim(indices)

    @abstractmethod
    def check_held(self, indices: torch.Tensor) -> Pages:
        """Return the page of each slot that a caller names, with repeats; nothing changes."""

    def claim_with(
        self, indices: torch.Tensor, table: Pages, whole: bool
    ) -> tuple[Pages, Pages, tuple[Pages, Pages]]:
        """Return the distinct pages that a caller names, as `claim`, with their table entries.

        Last, what to write where so that the table is as it was.
        """
        pages = self.claim(indices)
        found = before = table[pages]
        if not whole:
            found = found[found != 0]
        return pages, found, (pages, before)

    @abstractmethod
    def give(self, pages: Pages) -> None:
        """Take back distinct pages that are handed out; inside an open group they stay pending."""

    @abstractmethod
    def take_again(self, pages: Pages) -> None:
        """Undo the last `give`, of ``pages``, because another part of the same change failed (X2)."""

    def give_loosely(self, pages: Pages) -> None:
        """Take back pages that `claim_loosely` returned, or their table entries."""
        self.give(pages)

    def take_again_loosely(self, pages: Pages) -> None:
        """Undo the last `give_loosely`, as `take_again` undoes a `give`."""
        self.take_again(pages)

    # -- transfers -----------------------------------------------------------------------------------------

    def open_holds(self) -> PageHolds:
        """Return the transfers of each page, created empty at the first call."""
        if self._holds is None:
            self._holds = PageHolds(self.pages)
        return self._holds

    def split(self, pages: Pages) -> Split:
        """Return which of some distinct pages would become free when given back; nothing changes."""
        numbers = on_host(pages)
        if self._holds is None:
            return Split(pages, self.new_pages(numbers[:0]), numbers[:0])
        is_busy = self._holds.transfers[numbers] > 0
        parked = numbers[is_busy]
        return Split(self.new_pages(numbers[~is_busy]), self.new_pages(parked), parked)

    def give_split(self, split: Split) -> None:
        """Take back distinct pages that are handed out; those in a transfer wait for its end."""
        self.give(split.free)
        try:
            self._note_parked(split)
        except BaseException:
            self.take_split_again(split)
            raise

    def take_split_again(self, split: Split) -> None:
        """Undo the last `give_split`, as `take_again` undoes a `give`."""
        self._note_held(split)
        self.take_again(split.free)

    def plan_return(self, parked: NDArray[np.int64]) -> Split:
        """Return parked pages in the form for `unpark`; nothing changes."""
        pages = self.new_pages(parked)
        return Split(pages, pages, parked)

    def unpark(self, split: Split) -> None:
        """Take back parked pages for good: they become free, or pending inside a group."""
        try:
            self._note_held(split)
            self.give(split.free)
        except BaseException:
            self._note_parked(split)
            raise

    def park_again(self, split: Split) -> None:
        """Undo the last `unpark`, as `take_again` undoes a `give`."""
        self.take_again(split.free)
        self._note_parked(split)

    def _note_parked(self, split: Split) -> None:
        """Record that pages wait for a transfer; the count comes first, so that this can be undone."""
        self._count_parked(split, is_parked=True)
        self.label_parked(split.waiting, True)

    def _note_held(self, split: Split) -> None:
        """Record that pages are handed out again after waiting for a transfer."""
        self._count_parked(split, is_parked=False)
        self.label_parked(split.waiting, False)

    def _count_parked(self, split: Split, is_parked: bool) -> None:
        self.unparked_pages -= split.parked.size if is_parked else -split.parked.size
        if split.parked.size:
            self.open_holds().is_parked[split.parked] = is_parked

    @abstractmethod
    def new_pages(self, numbers: NDArray[np.int64]) -> Pages:
        """Return pages in the form of this store."""

    @abstractmethod
    def label_parked(self, pages: Pages, is_parked: bool) -> None:
        """Label pages as waiting for a transfer, or as handed out again."""

    @abstractmethod
    def merge(self) -> None:
        """Make pages freed since the last merge available like all others (law A4)."""

    def begin_group(self) -> None:
        """Open a group, in which pages that are given back stay pending until `end_group`."""
        if self.group_open:
            refuse_other_thread("free_group_begin", "allocator", self._group_thread, "has a free group open")
            raise RuntimeError("a free group is open already: call free_group_end first, groups do not nest")
        self.group_open, self._group_thread = True, get_ident()

    def end_group(self) -> None:
        """Free the pages that were given back since `begin_group`."""
        if not self.group_open:
            raise RuntimeError("no free group is open: call free_group_begin first")
        self._release_pending()

    def end_group_with(self, others: SlotStore) -> None:
        """End the groups of this store and another, as `end_group`: both or neither."""
        group = self._group()
        self.end_group()
        try:
            others.end_group()
        except BaseException:
            self._reopen_group(group)
            raise

    @abstractmethod
    def _release_pending(self) -> None:
        """Close the group and free the pending pages; on an error, leave both unchanged."""

    def _group(self) -> Any:
        """Return the state of the open group that `_reopen_group` needs."""
        return self._pending

    @abstractmethod
    def _reopen_group(self, group: Any) -> None:
        """Undo the end of a group whose state was ``group``."""

    @abstractmethod
    def slots_of(self, pages: Pages, count: int) -> torch.Tensor:
        """Return the first ``count`` slots of ``pages``, in order, as a new int32 tensor."""

    @abstractmethod
    def locate(self, indices: torch.Tensor, *, check_range: bool = False) -> tuple[Pages, Pages]:
        """Return the page of each slot, with repeats, and its offset; a single offset if all are 0.

        ``indices``: slots, of any shape.
        """

    @abstractmethod
    def slots_at(self, pages: Pages, offsets: Pages, shape: torch.Size) -> torch.Tensor:
        """Return the slot at each offset of each page, as int32 of ``shape``; 0 for page 0."""

    @abstractmethod
    def new_table(self) -> Pages:
        """Return a table with a zero for each page, including page 0."""

    @abstractmethod
    def forget(self, table: Pages, pages: Pages) -> None:
        """Set the table entries of pages, which may repeat, to zero."""

    @abstractmethod
    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Return for each slot, inside the pool or not, whether a caller holds it: bool, same shape."""

    def outside_error(self, slot: int, indices: torch.Tensor) -> OwnershipError:
        """Return the error for the first slot that the pool lacks or never hands out."""
        if slot < 0 and indices.dtype is torch.uint64:
            slot += 2**64  # read as int64, a number beyond that is negative
        first, last = self.page_size, self.last_slot
        reserved = 0 <= slot < first
        what = "is padding and belongs to nobody" if reserved else "is outside the pool"
        return OwnershipError(
            f"slot {slot} {what}: this pool hands out slots {first}..{last}; pass slots that alloc returned"
        )

    def not_held_error(self, slot: int, pending: bool) -> OwnershipError:
        """Return the error for a slot that is already free, or pending in the open group."""
        page = slot // self.page_size
        unit = "slot" if self.page_size == 1 else f"page {page} of slot"
        state = "already given back inside the open free group" if pending else "not handed out"
        if self._holds is not None and self._holds.is_parked[page]:
            state = "already given back, and waits for a transfer to end"
        if self.owners is not None:
            state += self.owners.told(page)
        return OwnershipError(f"{unit} {slot} is {state}: give each one back once, after alloc returned it")

    def repeated_error(self, slot: int) -> OwnershipError:
        """Return the error for a slot that one call names twice."""
        return OwnershipError(f"slot {slot} is named more than once in one call: name each slot once")


def is_nothing(indices: torch.Tensor) -> bool:
    """Tell whether a caller names no slots at all.

    Caches and engines often do: what is behind the last whole page, or in front of a window, may be empty. On
    the CPU a free of nothing takes 0.2 us, and 6 to 18 where all its steps are taken; a GPU is spared their
    launches. Anything but integers is left to the store, which knows what it refuses.
    """
    return isinstance(indices, torch.Tensor) and not indices.numel() and indices.dtype in INTEGER_DTYPES
