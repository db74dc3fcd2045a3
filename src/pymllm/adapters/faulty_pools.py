"""Slot allocators, request rows, buffers, states and hashes that are wrong in one way each."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.adapters.faulty import Faulty, configured
from pymllm.adapters.own_pools import GDNStates, KeysAndHashes, KVBuffers, Rows
from pymllm.adapters.own_slots import SWASlots, TokenSlots
from pymllm.history.operations import HashInt64, SliceKey
from pymllm.history.outcomes import Number, Tokens
from pymllm.mem_cache.gdn_pool import GDNPool
from pymllm.mem_cache.host_queue import HostQueueStore
from pymllm.mem_cache.index_arguments import IndexLike
from pymllm.mem_cache.kv_pool import KVPool
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator


class _TokenSlots(Faulty, TokenSlots):
    SOUND = "token-slots"


class _SWASlots(Faulty, SWASlots):
    SOUND = "swa-slots"
    # Where misuse is refused, sizes are wrong by A5 too, if a page was named by several slots.
    CONFIGURATIONS = configured(SWASlots.CONFIGURATIONS, check_ownership=False)


# -- what is handed out --------------------------------------------------------------------------------------


@_TokenSlots.breaking("A1")
class SlotZero(TokenToKVPoolAllocator):
    """Hands out slot 0."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        slots = super().alloc(need_size)
        return None if slots is None else slots - self.page_size

    def free(self, indices: torch.Tensor) -> None:
        super().free(indices + self.page_size)


@_TokenSlots.breaking("A3", page_size=4)
class BackwardSlots(TokenToKVPoolAllocator):
    """Hands out the slots of a page backwards."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        slots = super().alloc(need_size)
        return None if slots is None else slots.flip(0)


# After a refusal or a call in vain a wrong order looks like its doing.
@_TokenSlots.breaking("A4", "X1", "X4", "X7", need_sort=True)
class EagerReuse(TokenToKVPoolAllocator):
    """Hands out what was freed last while older pages are free."""

    def free(self, indices: torch.Tensor) -> None:
        super().free(indices)
        self.merge_and_sort_free()


# X1: after a refusal, the order looks like its doing
@_TokenSlots.breaking("X4", "X1", need_sort=True)
class MergingFailure(TokenToKVPoolAllocator):
    """Merges what is free before it finds that it does not suffice."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        slots = super().alloc(need_size)
        if slots is None:
            self.merge_and_sort_free()
        return slots


# -- what comes back -----------------------------------------------------------------------------------------


class DoubleFree(_TokenSlots):
    """Claims to refuse misuse, and takes back what was never handed out."""

    BREAKS = "A5"
    CONFIGURATIONS = configured(TokenSlots.CONFIGURATIONS, check_ownership=True)

    def settings(self) -> dict[str, Any]:
        """Return the settings, with the check off."""
        return {**super().settings(), "check_ownership": False}


# Where misuse is refused, sizes are wrong by A5 too, if a page was named by several slots.
@_TokenSlots.breaking("A2", "A6", page_size=4, check_ownership=False)
class HalfHeardFrees(TokenToKVPoolAllocator):
    """Frees only those pages whose first slot is named."""

    def free(self, indices: torch.Tensor) -> None:
        super().free(indices[indices % self.page_size == 0])


@_TokenSlots.breaking("A6")
class NestedGroups(TokenToKVPoolAllocator):
    """Accepts a group inside a group."""

    def free_group_begin(self) -> None:
        if not self._store.group_open:
            super().free_group_begin()


@_TokenSlots.breaking("X7", "X4", "X1", need_sort=True)
class UnsortedClear(TokenToKVPoolAllocator):
    """Clears by freeing what is held, so that the next pages are not those of a new pool."""

    def clear(self) -> None:
        if self._store.group_open:
            self.free_group_end()
        slots = torch.arange(self.page_size, self.size + self.page_size)
        self.free(slots[self.is_handed_out(slots)])


class _KeepsItsRing(HostQueueStore):
    def open_books(self, books: NDArray[np.int32]) -> None:
        ring = getattr(self, "_ring", books)
        super().open_books(books)
        self._ring = ring


# A2, A3: a page that stands twice in the ring is handed out twice, to two or in one answer.
@_TokenSlots.breaking("X7", "A2", "A3", need_sort=False, check_ownership=False, store="host")
class ForgottenRing(TokenToKVPoolAllocator):
    """Clears a queue of pages and forgets its ring, which still has the pages of before."""

    def clear(self) -> None:
        self._store.__class__ = _KeepsItsRing
        super().clear()


# -- halves --------------------------------------------------------------------------------------------------


@_SWASlots.breaking("A7", "A6")
class ForgottenHalves(SWATokenToKVPoolAllocator):
    """Frees slots and forgets to give their SWA halves back."""

    def free(self, indices: torch.Tensor) -> None:
        pages = self._full.claim(indices)
        self._half_of[pages] = 0
        self._full.give(pages)


@_SWASlots.breaking("A7")
class SharedHalves(SWATokenToKVPoolAllocator):
    """Puts one SWA half behind all slots of an allocation."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        slots = super().alloc(need_size)
        if slots is not None and len(slots):
            pages, _ = self._full.locate(slots)
            self._half_of[pages] = int(self._half_of[pages[0]])
        return slots


# -- rows ----------------------------------------------------------------------------------------------------


class _Rows(Faulty, Rows):
    SOUND = "rows"


@_Rows.breaking("P1")
class RowZero(ReqToTokenPool):
    """Hands out row 0."""

    def alloc(self, n: int = 1) -> list[int] | None:
        rows = super().alloc(n)
        return None if rows is None else [row - 1 for row in rows]

    def free(self, slot: int) -> None:
        super().free(slot + 1)


@_Rows.breaking("P2")
class DirtyRows(ReqToTokenPool):
    """Frees rows without zeroing them."""

    def free(self, slot: int) -> None:
        table, self.req_to_token = self.req_to_token, self.req_to_token.clone()
        try:
            super().free(slot)
        finally:
            self.req_to_token = table


# -- buffers -------------------------------------------------------------------------------------------------


class _KVBuffers(Faulty, KVBuffers):
    SOUND = "kv-buffers"


@_KVBuffers.breaking("P3", where=lambda config: config["layers"] != 1)
class WritesEverywhere(KVPool):
    """Writes rows into every layer."""

    def _write_rows(
        self, layer: int, index: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor
    ) -> None:
        for each in range(self.layer_num):
            super()._write_rows(each, index, k_rows, v_rows)


@_KVBuffers.breaking("P3")
class SilentCasts(KVPool):
    """Casts rows of another dtype."""

    def set_kv_buffer(self, layer_id: int, indices: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        super().set_kv_buffer(layer_id, indices, k.to(self.dtype), v.to(self.dtype))


@_KVBuffers.breaking("E5")
class LostPadding(KVPool):
    """Drops what is written to slot 0."""

    def _write_rows(
        self, layer: int, index: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor
    ) -> None:
        kept = index != 0
        super()._write_rows(layer, index[kept], k_rows[kept], v_rows[kept])


# -- states --------------------------------------------------------------------------------------------------


class _GDNStates(Faulty, GDNStates):
    SOUND = "gdn-states"


@_GDNStates.breaking("P5", where=lambda config: config["track_slots"] != 0)
class WorkingSnapshots(GDNPool):
    """Hands out a working row as a track slot."""

    def _forget_track_slots(self) -> None:
        super()._forget_track_slots()
        self._free_track_slots = [slot - 1 for slot in self._free_track_slots]


@_GDNStates.breaking("P5")
class OneLayerCopies(GDNPool):
    """Copies the states of the first layer only."""

    def copy_states(self, src_index: IndexLike | SupportsIndex, dst_index: IndexLike | SupportsIndex) -> None:
        others = self.recurrent_state[1:].clone(), self.conv_state[1:].clone()
        super().copy_states(src_index, dst_index)
        self.recurrent_state[1:], self.conv_state[1:] = others


@_GDNStates.breaking("P4")
class SwappedHeads(GDNPool):
    """Keeps the two dimensions of a head in the wrong order."""

    def __init__(self, *sizes: Any, **options: Any) -> None:
        reqs, layers, heads, k_dim, v_dim, *others = sizes
        super().__init__(reqs, layers, heads, v_dim, k_dim, *others, **options)


# -- keys and hashes -----------------------------------------------------------------------------------------


class _KeysAndHashes(Faulty, KeysAndHashes):
    SOUND = "hashes"


class LostNamespace(_KeysAndHashes):
    """Forgets the namespace of a key that is sliced."""

    BREAKS = "K1"

    def do_slice_key(self, step: int, operation: SliceKey) -> Tokens:
        """Slice a key."""
        return Tokens(super().do_slice_key(step, operation).tokens)


class UnsignedDigests(_KeysAndHashes):
    """Turns a digest into an unsigned number."""

    BREAKS = "H1"

    def do_hash_int64(self, step: int, operation: HashInt64) -> Number:
        """Turn a digest into a number."""
        return Number(super().do_hash_int64(step, operation).value % 2**64)
