"""Transfers of slots that offloading, another server or a running step still reads or writes."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.errors import OwnershipError
from pymllm.mem_cache.arguments import as_int
from pymllm.mem_cache.ownership import OneOwner
from pymllm.mem_cache.slots.page_holds import Split, on_host
from pymllm.mem_cache.slots.slot_store import Pages, SlotStore, is_nothing


class _Part(NamedTuple):
    """The pages of one store in a transfer."""

    store: SlotStore
    pages: NDArray[np.int64]


class _End(NamedTuple):
    """The effects of a transfer's end on one store, computed before anything changes."""

    store: SlotStore
    pages: NDArray[np.int64]
    counts: NDArray[np.int32]
    """The number of transfers of each page in the store."""
    before: NDArray[np.int32]
    left: NDArray[np.int32]
    """The counts of this transfer's pages, before and after its end."""
    back: Split
    """The pages that no other transfer uses and no caller holds."""

    @classmethod
    def plan(cls, store: SlotStore, pages: NDArray[np.int64]) -> _End:
        """Return the effects of a transfer's end; nothing changes."""
        holds = store.open_holds()
        before = holds.transfers[pages]
        is_back = (before == 1) & holds.is_parked[pages]
        return cls(store, pages, holds.transfers, before, before - 1, store.plan_return(pages[is_back]))


class SlotTransfers(OneOwner):
    """The transfers of an allocator that are under way, by their numbers."""

    def __init__(self) -> None:
        self._last_transfer = 0
        self._under_way: dict[int, tuple[_Part, ...]] = {}

    @abstractmethod
    def _held_pages_of(self, indices: torch.Tensor) -> tuple[tuple[SlotStore, Pages], ...]:
        """Return the distinct pages of slots in each store, or raise an error as `free` does."""

    def begin_transfer(self, indices: torch.Tensor) -> int:
        """Keep slots from being handed out again until `end_transfer`, even if they are freed.

        Parameters
        ----------
        indices : torch.Tensor
            Slots in the hands of a caller, in whole pages, as `free` takes them. SWA halves behind them are
            kept, too, wherever they move. A page may be in several transfers.

        Returns
        -------
        int
            The number of the transfer, for `end_transfer`. No other transfer of this allocator ever has it.

        Raises
        ------
        TypeError
            ``indices`` is not a tensor of integers.
        OwnershipError
            As `free`; nothing has changed then.

        Notes
        -----
        What is given back meanwhile is no longer the caller's: it counts neither as handed out nor as
        available. Only an allocator with a transfer under way looks for such pages as it takes pages back, on
        a device with a wait for it. `clear` ends all transfers. Cost: what is named, and at the first
        transfer 5 bytes a page. Laws: A2, A5, X1, X2.

        Examples
        --------
        >>> from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
        >>> allocator = TokenToKVPoolAllocator(size=4, device="cpu")
        >>> slots = allocator.alloc(4)
        >>> transfer = allocator.begin_transfer(slots[:2])
        >>> allocator.free(slots)
        >>> allocator.available_size()
        2
        >>> allocator.end_transfer(transfer)
        >>> allocator.available_size()
        4
        """
        parts: tuple[_Part, ...] = ()
        if not is_nothing(indices):
            parts = tuple(_Part(store, on_host(pages)) for store, pages in self._held_pages_of(indices))
        counts = [part.store.open_holds().transfers for part in parts]
        before = [of_store[part.pages] for of_store, part in zip(counts, parts, strict=True)]
        raised = [numbers + 1 for numbers in before]
        try:
            for of_store, part, numbers in zip(counts, parts, raised, strict=True):
                of_store[part.pages] = numbers
        except BaseException:
            for of_store, part, numbers in zip(counts, parts, before, strict=True):
                of_store[part.pages] = numbers
            raise
        self._last_transfer += 1
        self._under_way[self._last_transfer] = parts
        return self._last_transfer

    def end_transfer(self, transfer: int) -> None:
        """End a transfer, and free the slots that were given back and are in no other transfer.

        Parameters
        ----------
        transfer : int
            What `begin_transfer` returned. Whether the transfer succeeded, failed or was aborted makes no
            difference: nothing may touch its slots from now on.

        Raises
        ------
        TypeError
            ``transfer`` is not an integer.
        OwnershipError
            No such transfer is under way: it has ended, in a `clear` perhaps, or never began. Nothing has
            changed then.

        Notes
        -----
        Inside a group pages become free at its end. Cost: the pages of the transfer. Laws: A2, A4-A6, X1, X2.
        """
        number = as_int("transfer", transfer)
        if number not in self._under_way:
            raise OwnershipError(
                f"transfer {number} is not under way: end each one once, by the number that begin_transfer "
                "returned, and none after a clear"
            )
        ends = [_End.plan(*part) for part in self._under_way[number]]
        returned: list[_End] = []
        try:
            for end in ends:
                end.store.unpark(end.back)
                returned.append(end)
            for end in ends:
                end.counts[end.pages] = end.left
        except BaseException:
            for end in ends:
                end.counts[end.pages] = end.before
            for end in reversed(returned):
                end.store.park_again(end.back)
            raise
        del self._under_way[number]
