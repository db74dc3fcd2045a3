"""The allocator of KV slots for full attention, which hands out rows of a `KVPool`.

It hands out indices and never touches a KV row. Windowed caches use
`pymllm.mem_cache.slots.swa_allocator.SWATokenToKVPoolAllocator`, which has a second pool behind each slot.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.arguments import as_size
from pymllm.mem_cache.page_owners import PageOwners
from pymllm.mem_cache.slots.slot_store import Pages, SlotStore, is_nothing
from pymllm.mem_cache.slots.slot_transfers import SlotTransfers
from pymllm.mem_cache.slots.store_choice import StoreKind, make_slot_store
from pymllm.mem_cache.uploads import as_tensor


class TokenToKVPoolAllocator(SlotTransfers):
    """An allocator of the slots of a KV pool, in pages.

    Page p (``1 <= p <= size // page_size``) is slots ``[p * page_size, (p + 1) * page_size)``. Page 0
    holds the padding slot 0 and is never handed out, so a KV buffer needs ``size + page_size`` rows.

    Parameters
    ----------
    size : int
        Slots to hand out, in tokens; a multiple of ``page_size``.
    device : str or torch.device
        Where the indices live. On CPU the free list is kept in NumPy, elsewhere in tensors on the
        device, without synchronising.
    page_size : int
        Slots per page (1 = single slots).
    need_sort : bool
        Whether the lowest slots go first after a merge, for locality.
    check_ownership : bool or None
        Whether `free` verifies that what it is given was handed out. ``None``: on CPU only, since
        on CUDA it synchronises. Unchecked misuse is undefined. ``True``, given as such, is a switch for
        debugging, which reaches the caches over the pool: `free` refuses slots that a cache has, and
        ``insert`` slots that are free or cached already, with the node that has them and the steps in which
        that came about.
    store : {"auto", "host", "device"}
        Which free list to use; anything but ``"auto"`` is for tests.

    Attributes
    ----------
    size, page_size, device, need_sort, check_ownership
        As given; ``device`` as a `torch.device`, ``check_ownership`` decided.
    owners : PageOwners or None
        The caches that have its pages, with ``check_ownership=True``.

    Raises
    ------
    TypeError
        ``size`` or ``page_size`` is not an integer.
    ValueError
        ``size`` or ``page_size`` is not positive, or ``size`` is not a multiple of ``page_size``.

    Notes
    -----
    Not thread-safe: one scheduler thread owns a pool.
    A call that finds no memory has changed nothing; after an interrupt in the middle of one, `clear` is the
    only call that is promised to work, and makes the pool new.

    Laws: A1-A6, X1, X4, X7. Source: docs/specification/slots.md.

    Examples
    --------
    >>> allocator = TokenToKVPoolAllocator(size=8, device="cpu")
    >>> slots = allocator.alloc(3)
    >>> slots.tolist()
    [1, 2, 3]
    >>> allocator.free(slots[:2])
    >>> allocator.available_size()
    7
    """

    def __init__(
        self,
        size: int,
        device: str | torch.device = "cuda",
        page_size: int = 1,
        need_sort: bool = True,
        *,
        check_ownership: bool | None = None,
        store: StoreKind = "auto",
    ) -> None:
        super().__init__()
        self._store = make_slot_store(size, device, page_size, need_sort, check_ownership, store)
        self.size = self._store.size
        self.page_size = self._store.page_size
        self.device = self._store.device
        self.need_sort = self._store.need_sort
        self.check_ownership = self._store.check_ownership
        self.owners = self._store.owners = PageOwners(self._store) if check_ownership else None

    def __repr__(self) -> str:
        """Return the pool's dimensions and the number of its free slots."""
        return (
            f"{type(self).__name__}(size={self.size}, page_size={self.page_size}, "
            f"device={str(self.device)!r}, available={self.available_size()})"
        )

    def available_size(self) -> int:
        """Return the number of tokens for which there are free pages.

        Notes
        -----
        Pages pending in an open group do not count, nor what was given back under a transfer that has not
        ended. Cost: a counter. Law: A2.
        """
        return self._store.free_pages * self.page_size

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Allocate ``need_size`` slots, or none.

        Parameters
        ----------
        need_size : int
            Tokens to make room for. With pages, ``ceil(need_size / page_size)`` whole pages are
            taken; the rest of the last page is the caller's too, its numbers follow on.

        Returns
        -------
        torch.Tensor or None
            Shape ``(need_size,)``, int32, on ``device``, in memory of its own: distinct slots, page
            by page in order. ``None`` when too few pages are free; nothing has changed then, not
            even the order of what is handed out next.

        Raises
        ------
        TypeError
            ``need_size`` is not an integer.
        ValueError
            ``need_size`` is negative.

        Notes
        -----
        Slots freed since the last merge wait while older free ones suffice; need merges them.
        Cost: what it hands out, plus a search of bounded length; no synchronisation.
        Laws: A1, A3, A4, X4.
        """
        count = as_size("need_size", need_size, minimum=0)
        if not count:
            return torch.empty(0, dtype=torch.int32, device=self.device)
        if self.owners is not None:
            self.owners.step += 1
        return self._store.take_slots(count)

    def free(self, indices: torch.Tensor) -> None:
        """Free slots, all of them or none.

        Parameters
        ----------
        indices : torch.Tensor
            Slots that `alloc` returned: any integer dtype, shape and device, read as one dimension.
            An empty tensor frees nothing. With pages, naming any slot of a page frees the page, once.

        Raises
        ------
        TypeError
            ``indices`` is not a tensor of integers.
        OwnershipError
            Ownership is checked and a slot is outside the pool, padding, not handed out, pending in
            the open group, or (``page_size == 1``) named twice; or, with ``check_ownership=True``, a cache
            has it. Nothing has changed then.

        Notes
        -----
        Cost: what it frees. On a device: no synchronisation, but one to tell pages apart with
        ``page_size > 1`` (for a whole group, one at its end), and some where ownership is checked;
        indices on another device are copied over.
        Laws: A2, A5, A6, X1.
        """
        if not is_nothing(indices):
            if self.owners is not None:
                give = self._free_beside_transfers if self._under_way else self._store.free
                self.owners.give_back(give, indices)
            elif self._under_way:
                self._free_beside_transfers(indices)
            else:
                self._store.free(indices)

    def free_pages(self, starts: torch.Tensor | NDArray[np.int64]) -> None:
        """Free whole pages, each named once, by its first slot.

        For caches, which know their pages: `free` would have to tell them apart among all their slots.
        ``starts``: first slots of pages that `alloc` handed out, no page twice: any integer dtype, shape and
        device. An array is ``int64`` and has one dimension, as caches keep them. The same as
        ``free(starts)``, but that a page named twice is not noticed where ownership is not checked. Cost:
        what it frees, and on a device no synchronisation where ownership is not checked. Laws: A2, A5, A6,
        X1.
        """
        if self.owners is not None:
            give = self._free_beside_transfers if self._under_way else self._store.free_starts
            self.owners.give_back(give, as_tensor(starts))
        elif self._under_way:
            self._free_beside_transfers(as_tensor(starts))
        else:
            self._store.free_starts(starts)

    def _free_beside_transfers(self, indices: torch.Tensor) -> None:
        """Free slots, some of which may have to wait for a transfer."""
        store = self._store
        store.give_split(store.split(store.claim(indices)))

    def _held_pages_of(self, indices: torch.Tensor) -> tuple[tuple[SlotStore, Pages], ...]:
        """Return the distinct pages of slots."""
        return ((self._store, self._store.claim(indices)),)

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Return for each slot whether a caller holds it.

        ``indices``: slots: any integers, any shape. Slots outside the pool are in nobody's hands. Returns
        bool, same shape, on ``device``. Slots pending in a group are no longer handed out. Meant for checks.
        Cost: on the host what is asked, on a device a pass over the pool. Law: A2.
        """
        return self._store.is_handed_out(indices)

    def merge_and_sort_free(self) -> None:
        """Make slots freed since the last merge available again, lowest first if ``need_sort``.

        Notes
        -----
        `alloc` does this by itself when older slots do not suffice. Cost: on the host a byte per 1024
        pages; on a device five launches and no synchronisation. Law: A4.
        """
        self._store.merge()

    def free_group_begin(self) -> None:
        """Open a group, in which slots given to `free` stay pending until `free_group_end`.

        Raises
        ------
        RuntimeError
            A group is open already.

        Notes
        -----
        Each call inside the group is still checked at once. Laws: A2, A5, A6.
        """
        self._store.begin_group()

    def free_group_end(self) -> None:
        """Close the group and free its pending slots.

        Raises
        ------
        RuntimeError
            No group is open.

        Notes
        -----
        Cost: what the group frees. Laws: A2, A6.
        """
        self._store.end_group()

    def clear(self) -> None:
        """Make all slots free, held or not, as in a new allocator; close the group and end transfers.

        Notes
        -----
        Call it only when nothing outside reads or writes slots any more. Cost: one pass over the pool.
        Laws: A6, X7.
        """
        owners = self.owners
        entries = ([], []) if owners is None else owners.new()
        self._store.clear()
        self._under_way = {}
        if owners is not None:
            owners.open(entries)
