"""The allocator of KV slots for models that mix full and sliding-window attention.

Such a model has two KV pools: full layers keep every token, window layers only the last few. A token's
slot in the full pool is its name; its slot in the window pool, its *SWA half*, can be given back early.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.errors import OwnershipError
from pymllm.mem_cache.arguments import as_size
from pymllm.mem_cache.page_owners import PageOwners
from pymllm.mem_cache.slots.slot_store import Pages, SlotStore, is_nothing
from pymllm.mem_cache.slots.slot_transfers import SlotTransfers
from pymllm.mem_cache.slots.store_choice import StoreKind, make_slot_store
from pymllm.mem_cache.uploads import as_tensor


class SWATokenToKVPoolAllocator(SlotTransfers):
    """An allocator of slots in a full pool, each with a slot in a window pool.

    Halves go page by page: the slots of one full page have their halves in one SWA page, in order, so
    `free_swa` and `move_swa` act on whole pages, as `free` does.

    Parameters
    ----------
    size : int
        Slots of the full pool, in tokens; a multiple of ``page_size``.
    swa_size : int
        Slots of the window pool, in tokens; a multiple of ``page_size``.
    device : str or torch.device
        Where the indices live.
    page_size : int
        Slots per page, in both pools.
    need_sort : bool
        Whether the lowest slots go first after a merge, in both pools.
    check_ownership : bool or None
        Whether what is given back is verified; ``None``: on CPU only. ``True``, given as such, watches the
        caches as well, as of `TokenToKVPoolAllocator`: nobody but a cache gives the slots that it has back,
        nor gives back or moves their halves.
    store : {"auto", "host", "device"}
        Which free lists to use; anything but ``"auto"`` is for tests.

    Attributes
    ----------
    size, swa_size, page_size, device, need_sort, check_ownership
        As given; ``device`` as a `torch.device`, ``check_ownership`` decided.
    owners : PageOwners or None
        The caches that have its full slots, with ``check_ownership=True``.

    Raises
    ------
    TypeError
        A size is not an integer.
    ValueError
        A size is not positive or not a multiple of ``page_size``.

    Notes
    -----
    Not thread-safe: one scheduler thread owns a pool.
    A call that finds no memory has changed nothing; after an interrupt in the middle of one, `clear` is the
    only call that is promised to work, and makes the pool new.

    Laws: A1-A7, X1, X4, X7, for each pool. Source: docs/specification/slots.md; our choice: whole pages.

    Examples
    --------
    >>> allocator = SWATokenToKVPoolAllocator(size=8, swa_size=4, device="cpu")
    >>> slots = allocator.alloc(4)
    >>> allocator.free_swa(slots[:2])
    >>> allocator.translate_to_swa(slots).tolist()
    [0, 0, 3, 4]
    >>> allocator.full_available_size(), allocator.swa_available_size()
    (4, 2)
    """

    def __init__(
        self,
        size: int,
        swa_size: int,
        device: str | torch.device = "cuda",
        page_size: int = 1,
        need_sort: bool = True,
        *,
        check_ownership: bool | None = None,
        store: StoreKind = "auto",
    ) -> None:
        super().__init__()
        self._full = make_slot_store(size, device, page_size, need_sort, check_ownership, store)
        self._swa = make_slot_store(swa_size, device, page_size, need_sort, check_ownership, store)
        # SWA page by full page, 0 where the half is gone or the page is free.
        self._half_of = self._full.new_table()
        self.size = self._full.size
        self.swa_size = self._swa.size
        self.page_size = self._full.page_size
        self.device = self._full.device
        self.need_sort = self._full.need_sort
        self.check_ownership = self._full.check_ownership
        self.owners = self._full.owners = PageOwners(self._full) if check_ownership else None

    def __repr__(self) -> str:
        """Return the pools' dimensions and the numbers of their free slots."""
        return (
            f"{type(self).__name__}(size={self.size}, swa_size={self.swa_size}, "
            f"page_size={self.page_size}, device={str(self.device)!r}, "
            f"available={self.full_available_size()}+{self.swa_available_size()})"
        )

    def full_available_size(self) -> int:
        """Return the number of tokens for which the full pool has free pages."""
        return self._full.free_pages * self.page_size

    def swa_available_size(self) -> int:
        """Return the number of tokens for which the window pool has free pages."""
        return self._swa.free_pages * self.page_size

    def available_size(self) -> int:
        """Return the number of tokens that `alloc` can still provide: the smaller of the two pools."""
        pages = self._full.free_pages
        return (pages if self._swa.has_room(pages) else self._swa.free_pages) * self.page_size

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Allocate ``need_size`` full slots, each with an SWA half; or neither.

        Parameters
        ----------
        need_size : int
            Tokens to make room for, in whole pages as in `TokenToKVPoolAllocator.alloc`.

        Returns
        -------
        torch.Tensor or None
            Full slots, shape ``(need_size,)``, int32, on ``device``. ``None`` when either pool has
            too few pages; nothing has changed then, in either.

        Raises
        ------
        TypeError
            ``need_size`` is not an integer.
        ValueError
            ``need_size`` is negative.

        Notes
        -----
        Cost: what it hands out; no synchronisation, unless a count that is on its way (`free`) decides.
        Laws: A3, A4, A7, X4.
        """
        count = as_size("need_size", need_size, minimum=0)
        if not count:
            return torch.empty(0, dtype=torch.int32, device=self.device)
        if self.owners is not None:
            self.owners.step += 1
        wanted = -(-count // self.page_size)
        if not (self._full.has_room(wanted) and self._swa.has_room(wanted)):
            return None
        pages, halves = self._full.take(wanted), None
        try:
            halves = self._swa.take(wanted)
            slots = self._full.slots_of(pages, count)
            self._half_of[pages] = halves
        except BaseException:
            if halves is not None:
                self._full.forget(self._half_of, pages)
                self._swa.put_back(halves)
            self._full.put_back(pages)
            raise
        return slots

    def free(self, indices: torch.Tensor) -> None:
        """Free full slots with their remaining SWA halves, all of them or none.

        Parameters
        ----------
        indices : torch.Tensor
            Full slots, as in `TokenToKVPoolAllocator.free`.

        Raises
        ------
        TypeError
            ``indices`` is not a tensor of integers.
        OwnershipError
            As in `TokenToKVPoolAllocator.free`; nothing has changed then.

        Notes
        -----
        Cost: what it frees. On a device: as in `TokenToKVPoolAllocator.free`. Where halves are gone, single
        slots do not wait to learn how many are left: the count follows, and is waited for by who asks
        what is free in the window pool, and by an `alloc` that what is certain without it does not serve.
        Laws: A2, A5, A6, A7, X1.
        """
        if not is_nothing(indices):
            if self.owners is not None:
                self.owners.give_back(self._free_watched, indices)
            elif self._under_way:
                self._free_beside_transfers(indices)
            else:
                self._full.free_with(indices, self._half_of, self._swa)

    def free_pages(self, starts: torch.Tensor | NDArray[np.int64]) -> None:
        """Free whole pages with their remaining SWA halves, each page named once, by its first slot.

        As `TokenToKVPoolAllocator.free_pages`: on a device no synchronisation where ownership is not checked.
        Where halves are gone, the count of those that are left follows, as in `free`. Laws: A2, A5, A6, A7,
        X1.
        """
        if self.owners is not None:
            self.owners.give_back(self._free_watched, as_tensor(starts))
        elif self._under_way:
            self._free_beside_transfers(as_tensor(starts))
        else:
            self._full.free_starts_with(starts, self._half_of, self._swa)

    def _free_watched(self, indices: torch.Tensor) -> None:
        """Free slots with their halves, after a check that no cache owns any that it does not free itself."""
        if self._under_way:
            self._free_beside_transfers(indices)
        else:
            self._full.free_with(indices, self._half_of, self._swa)

    def _free_beside_transfers(self, indices: torch.Tensor) -> None:
        """Free slots with their halves, some of which may have to wait for a transfer."""
        pages = self._full.claim(indices)
        before = self._half_of[pages]
        full, swa = self._full.split(pages), self._swa.split(before[before != 0])
        self._full.give_split(full)
        try:
            self._swa.give_split(swa)
            try:
                self._full.forget(self._half_of, pages)
            except BaseException:
                self._half_of[pages] = before
                self._swa.take_split_again(swa)
                raise
        except BaseException:
            self._full.take_split_again(full)
            raise

    def _held_pages_of(self, indices: torch.Tensor) -> tuple[tuple[SlotStore, Pages], ...]:
        """Return the distinct pages of slots, and the pages of their halves."""
        pages = self._full.claim(indices)
        halves = self._half_of[pages]
        return (self._full, pages), (self._swa, halves[halves != 0])

    def free_swa(self, indices: torch.Tensor) -> None:
        """Free the SWA halves of full slots, which stay held.

        Parameters
        ----------
        indices : torch.Tensor
            Full slots whose halves are no longer needed. With pages, naming any slot of a page gives
            back the half of the whole page, once.

        Raises
        ------
        TypeError
            ``indices`` is not a tensor of integers.
        OwnershipError
            Ownership is checked and a slot is not handed out, is named twice (``page_size == 1``),
            or has no half any more. Nothing has changed then.

        Notes
        -----
        Takes part in free groups. Cost: what it frees; synchronises as `TokenToKVPoolAllocator.free`.
        Laws: A2, A5, A6, A7, X1.
        """
        if is_nothing(indices):
            return
        if self.owners is not None:
            self.owners.claim(indices)
        if self._under_way:
            self._free_halves_beside_transfers(indices)
            return
        way = self._swa.give_loosely, self._swa.take_again_loosely
        self._free_halves(self._full.claim_loosely(indices), *way)

    def free_swa_pages(self, starts: torch.Tensor | NDArray[np.int64]) -> None:
        """Free the SWA halves of whole pages, each page named once, by its first slot.

        For caches, as `free_pages`: the same as ``free_swa(starts)``, but that a page named twice, or whose
        half is gone, is not noticed where ownership is not checked. Cost: what it frees, and on a device no
        synchronisation where ownership is not checked. Laws: A2, A5, A6, A7, X1.
        """
        if self.owners is not None:
            self.owners.claim(as_tensor(starts))
        if self._under_way:
            self._free_halves_beside_transfers(as_tensor(starts))
        else:
            self._free_halves(self._full.claim_starts(starts), self._swa.give, self._swa.take_again)

    def _free_halves_beside_transfers(self, indices: torch.Tensor) -> None:
        """Free the halves of slots, some of which may have to wait for a transfer."""
        pages = self._full.claim(indices)
        split = self._swa.split(self._half_of[pages])
        give, undo = self._swa.give_split, self._swa.take_split_again
        self._free_halves(pages, lambda _: give(split), lambda _: undo(split))

    def _free_halves(
        self, pages: Pages, give: Callable[[Pages], None], undo: Callable[[Pages], None]
    ) -> None:
        """Free the halves of claimed pages in one of two ways, all of them or none."""
        halves = self._half_of[pages]
        if self.check_ownership and not halves.all():
            self._refuse(halves == 0, pages, "has no SWA half any more: free_swa a slot once")
        give(halves)
        try:
            self._full.forget(self._half_of, pages)
        except BaseException:
            self._half_of[pages] = halves
            undo(halves)
            raise

    def translate_to_swa(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the slot in the window pool of each full slot.

        Parameters
        ----------
        indices : torch.Tensor
            Full slots: any integer dtype, shape and device, repeats allowed; 0 is padding.

        Returns
        -------
        torch.Tensor
            Same shape, int32, on ``device``: the SWA slot; 0 for padding, where the half is gone, and
            where the full slot is not handed out.

        Raises
        ------
        TypeError
            ``indices`` is not a tensor of integers.
        OwnershipError
            Ownership is checked and an index is outside the pool.

        Notes
        -----
        Cost: one gather; no synchronisation with checks off. Law: A7.
        """
        if is_nothing(indices):
            return torch.empty(indices.shape, dtype=torch.int32, device=self.device)
        pages, offsets = self._full.locate(indices, check_range=self.check_ownership)
        return self._full.slots_at(self._half_of.take(pages), offsets, indices.shape)

    def move_swa(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Move the SWA halves of full slots ``src`` to full slots ``dst``, which have none.

        Parameters
        ----------
        src, dst : torch.Tensor
            Full slots, one to one: the half of ``src[i]`` becomes that of ``dst[i]``. With pages, they
            pair whole pages: slots of one page go to one page, at the same places.

        Raises
        ------
        TypeError
            One is not a tensor of integers.
        ValueError
            Different lengths, or (ownership checked) slots that do not pair page with page.
        OwnershipError
            Ownership is checked and a slot is not handed out, named twice (``page_size == 1``), a
            ``src`` has no half, or a ``dst`` has one. Nothing has changed then.

        Notes
        -----
        No slot becomes free or taken in either pool. Cost: what it moves; no synchronisation with
        checks off. Laws: A5, A7, X1.
        """
        if is_nothing(src) and is_nothing(dst):
            return
        source, source_offsets = self._full.locate(src)
        target, target_offsets = self._full.locate(dst)
        if len(source) != len(target):
            raise ValueError(f"move_swa pairs slots one to one, got {len(source)} src and {len(target)} dst")
        if self.check_ownership:
            self._full.check_held(src)
            self._full.check_held(dst)
            if self.owners is not None:
                self.owners.claim(src, dst)
        halves = self._half_of[source]
        if self.check_ownership:
            if not halves.all():
                self._refuse(halves == 0, source, "has no SWA half to move")
            if (taken := self._half_of[target]).any():
                self._refuse(taken != 0, target, "has an SWA half: free_swa it before")
            self._refuse_unpaired(source, target, source_offsets == target_offsets)
        try:
            self._full.forget(self._half_of, source)
            self._half_of[target] = halves
        except BaseException:
            self._full.forget(self._half_of, target)
            self._half_of[source] = halves
            raise

    def _refuse(self, wrong: Pages, pages: Pages, why: str) -> NoReturn:
        """Raise an error for the first page that ``wrong`` marks."""
        unit = "slot" if self.page_size == 1 else "page"
        raise OwnershipError(f"{unit} {int(pages[wrong][0])} {why}")

    def _refuse_unpaired(self, source: Pages, target: Pages, same_place: Pages) -> None:
        """Raise an error unless pages pair one to one and each slot keeps its place in the page."""
        pairs = set(zip(source.tolist(), target.tolist(), strict=True))
        sources, targets = {page for page, _ in pairs}, {page for _, page in pairs}
        if not (len(pairs) == len(sources) == len(targets) and same_place.all()):
            raise ValueError(
                f"src and dst do not pair pages of {self.page_size} slots: pass the slots of a page "
                "together, to one page, in the same places"
            )

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Return for each full slot whether a caller holds it.

        Returns bools of the same shape on ``device``.
        """
        return self._full.is_handed_out(indices)

    def merge_and_sort_free(self) -> None:
        """Merge both pools, as `TokenToKVPoolAllocator.merge_and_sort_free` does."""
        self._full.merge()
        self._swa.merge()

    def free_group_begin(self) -> None:
        """Open a group for `free` and `free_swa`."""
        self._full.begin_group()
        self._swa.begin_group()

    def free_group_end(self) -> None:
        """Close the group and free its pending slots in both pools.

        Cost: what the group frees; on a device with ``page_size > 1`` one synchronisation, for both pools.
        """
        self._full.end_group_with(self._swa)

    def clear(self) -> None:
        """Make all slots of both pools free, as in a new allocator; close the group and end transfers.

        Cost: one pass over both pools. Laws: A6, A7, X7.
        """
        full, swa, half_of = self._full.new_trackers(), self._swa.new_trackers(), self._full.new_table()
        owners = self.owners
        entries = ([], []) if owners is None else owners.new()
        self._full.open_trackers(full)
        self._swa.open_trackers(swa)
        self._half_of = half_of
        self._under_way = {}
        if owners is not None:
            owners.open(entries)
