"""Slot allocators that are wrong in one way each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.adapters.faulty import Faulty, configured
from pymllm.adapters.own_slots import SWASlots, TokenSlots
from pymllm.mem_cache.host_queue import HostQueueStore
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator

__all__ = [
    "BackwardSlots",
    "DoubleFree",
    "EagerReuse",
    "ForgottenHalves",
    "ForgottenRing",
    "HalfHeardFrees",
    "MergingFailure",
    "NestedGroups",
    "SharedHalves",
    "SlotZero",
    "UnsortedClear",
]


class _TokenSlots(Faulty, TokenSlots):
    SOUND = "token-slots"


class _SWASlots(Faulty, SWASlots):
    SOUND = "swa-slots"
    # Where misuse is refused, sizes are wrong by A5 too, if a page was named by several slots.
    CONFIGURATIONS = configured(SWASlots.CONFIGURATIONS, check_ownership=False)


# -- what is handed out --------------------------------------------------------------------------------------


class _CountsFromZero(TokenToKVPoolAllocator):
    def alloc(self, need_size: int) -> torch.Tensor | None:
        slots = super().alloc(need_size)
        return None if slots is None else slots - self.page_size

    def free(self, indices: torch.Tensor) -> None:
        super().free(indices + self.page_size)


class SlotZero(_TokenSlots):
    """Hands out slot 0."""

    BREAKS = "A1"
    POOL = _CountsFromZero


class _HandsOutBackwards(TokenToKVPoolAllocator):
    def alloc(self, need_size: int) -> torch.Tensor | None:
        slots = super().alloc(need_size)
        return None if slots is None else slots.flip(0)


class BackwardSlots(_TokenSlots):
    """Hands out the slots of a page backwards."""

    BREAKS = "A3"
    CONFIGURATIONS = configured(TokenSlots.CONFIGURATIONS, page_size=4)
    POOL = _HandsOutBackwards


class _MergesAtOnce(TokenToKVPoolAllocator):
    def free(self, indices: torch.Tensor) -> None:
        super().free(indices)
        self.merge_and_sort_free()


class EagerReuse(_TokenSlots):
    """Hands out what was freed last while older pages are free."""

    BREAKS = "A4"
    # After a refusal or a call in vain a wrong order looks like its doing.
    ALSO = ("X1", "X4", "X7")
    CONFIGURATIONS = configured(TokenSlots.CONFIGURATIONS, need_sort=True)
    POOL = _MergesAtOnce


class _MergesWhenItFails(TokenToKVPoolAllocator):
    def alloc(self, need_size: int) -> torch.Tensor | None:
        slots = super().alloc(need_size)
        if slots is None:
            self.merge_and_sort_free()
        return slots


class MergingFailure(_TokenSlots):
    """Merges what is free before it finds that it does not suffice."""

    BREAKS = "X4"
    ALSO = ("X1",)  # after a refusal, the order looks like its doing
    CONFIGURATIONS = configured(TokenSlots.CONFIGURATIONS, need_sort=True)
    POOL = _MergesWhenItFails


# -- what comes back -----------------------------------------------------------------------------------------


class DoubleFree(_TokenSlots):
    """Claims to refuse misuse, and takes back what was never handed out."""

    BREAKS = "A5"
    CONFIGURATIONS = configured(TokenSlots.CONFIGURATIONS, check_ownership=True)

    def settings(self) -> dict[str, Any]:
        """Return the settings, with the check off."""
        return {**super().settings(), "check_ownership": False}


class _NeedsTheFirstSlot(TokenToKVPoolAllocator):
    def free(self, indices: torch.Tensor) -> None:
        super().free(indices[indices % self.page_size == 0])


class HalfHeardFrees(_TokenSlots):
    """Frees only those pages whose first slot is named."""

    BREAKS = "A2"
    ALSO = ("A6",)
    # Where misuse is refused, sizes are wrong by A5 too, if a page was named by several slots.
    CONFIGURATIONS = configured(TokenSlots.CONFIGURATIONS, page_size=4, check_ownership=False)
    POOL = _NeedsTheFirstSlot


class _Nests(TokenToKVPoolAllocator):
    def free_group_begin(self) -> None:
        if not self._store.group_open:
            super().free_group_begin()


class NestedGroups(_TokenSlots):
    """Accepts a group inside a group."""

    BREAKS = "A6"
    POOL = _Nests


class _FreesWhatIsHeld(TokenToKVPoolAllocator):
    def clear(self) -> None:
        if self._store.group_open:
            self.free_group_end()
        slots = torch.arange(self.page_size, self.size + self.page_size)
        self.free(slots[self.is_handed_out(slots)])


class UnsortedClear(_TokenSlots):
    """Clears by freeing what is held, so that the next pages are not those of a new pool."""

    BREAKS = "X7"
    ALSO = ("X4", "X1")
    CONFIGURATIONS = configured(TokenSlots.CONFIGURATIONS, need_sort=True)
    POOL = _FreesWhatIsHeld


class _KeepsItsRing(HostQueueStore):
    def open_books(self, books: NDArray[np.int32]) -> None:
        ring = getattr(self, "_ring", books)
        super().open_books(books)
        self._ring = ring


class _QueueKeepsItsRing(TokenToKVPoolAllocator):
    def clear(self) -> None:
        self._store.__class__ = _KeepsItsRing
        super().clear()


class ForgottenRing(_TokenSlots):
    """Clears a queue of pages and forgets its ring, which still has the pages of before."""

    BREAKS = "X7"
    ALSO = ("A2", "A3")  # a page that stands twice in the ring is handed out twice, to two or in one answer
    CONFIGURATIONS = configured(
        TokenSlots.CONFIGURATIONS, need_sort=False, check_ownership=False, store="host"
    )
    POOL = _QueueKeepsItsRing


# -- halves --------------------------------------------------------------------------------------------------


class _LosesHalves(SWATokenToKVPoolAllocator):
    def free(self, indices: torch.Tensor) -> None:
        pages = self._full.claim(indices)
        self._half_of[pages] = 0
        self._full.give(pages)


class ForgottenHalves(_SWASlots):
    """Frees slots and forgets to give their SWA halves back."""

    BREAKS = "A7"
    ALSO = ("A6",)
    POOL = _LosesHalves


class _SharesHalves(SWATokenToKVPoolAllocator):
    def alloc(self, need_size: int) -> torch.Tensor | None:
        slots = super().alloc(need_size)
        if slots is not None and len(slots):
            pages, _ = self._full.locate(slots)
            self._half_of[pages] = int(self._half_of[pages[0]])
        return slots


class SharedHalves(_SWASlots):
    """Puts one SWA half behind all slots of an allocation."""

    BREAKS = "A7"
    POOL = _SharesHalves
