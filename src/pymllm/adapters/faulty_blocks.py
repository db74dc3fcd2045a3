"""Block allocators and cached states that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.adapters.faulty import Faulty, configured
from pymllm.adapters.own_blocks import Blocks
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.core.inference.contexts.slot_books import SlotClaim
from pymllm.errors import UsageError

__all__ = [
    "EarlyObserver",
    "EvictedBatch",
    "FailingEvictions",
    "ForeignNames",
    "ForeignParents",
    "KeptNames",
    "LastRegistrations",
    "LeakingBatches",
    "LoudReset",
    "OldestBlocks",
    "OneLayerSaves",
    "OpenObserver",
    "PartialReleases",
    "ReleasesOnce",
    "RequestsAsRows",
    "StaleIndex",
    "StaleSlots",
    "StaleStates",
    "UnheardBlocks",
    "UnsettledErrors",
    "WipedLive",
    "YoungestSlots",
]


class _Blocks(Faulty, Blocks):
    SOUND = "blocks"


class _States(_Blocks):
    """Where there are slots for states."""

    CONFIGURATIONS = tuple(config for config in Blocks.CONFIGURATIONS if config["slots"] is not None)


# -- blocks --------------------------------------------------------------------------------------------------


class _EvictsParents(KVBlockAllocator):
    def _evict_lru_blocks(self, count: int) -> None:
        stamps = self._timestamps
        oldest = sorted(self._forest._idle, key=lambda block: (stamps[block], block))[:count]
        for block in oldest:
            self._forest.remove_subtree(block)
        self._drop(oldest)


class OldestBlocks(_Blocks):
    """Evicts the oldest cached block, whatever was registered below it."""

    BREAKS = "C1"
    BLOCKS = _EvictsParents


class _HearsOnce(KVBlockAllocator):
    def release_memory_blocks(self, blocks: Any) -> None:
        super().release_memory_blocks(list(dict.fromkeys(np.asarray(blocks).tolist())))


class ReleasesOnce(_Blocks):
    """Takes one reference from a block that is released twice in one call."""

    BREAKS = "C1"
    BLOCKS = _HearsOnce


class _Overwrites(KVBlockAllocator):
    def register_kv_block_hashes(self, ids: Any, hashes: Any, parent_hashes: Any = None) -> None:
        super().register_kv_block_hashes(ids, hashes, parent_hashes)
        self.kv_hash_to_block_id.update(zip(hashes, np.asarray(ids).tolist(), strict=True))


class LastRegistrations(_Blocks):
    """Lets a hash name the block that was registered with it last."""

    BREAKS = "C3"
    BLOCKS = _Overwrites


class _TakesEqualHashes(KVBlockAllocator):
    def register_kv_block_hashes(self, ids: Any, hashes: Any, parent_hashes: Any = None) -> None:
        super().register_kv_block_hashes([], hashes[len(ids) :], (parent_hashes or [])[len(ids) :])
        above = [0, *hashes] if parent_hashes is None else parent_hashes
        for block, value, parent in zip(np.asarray(ids).tolist(), hashes, above, strict=False):
            super().register_kv_block_hashes([block], [value], [parent])


class ForeignParents(_Blocks):
    """Takes any block with the hash of a parent for the parent."""

    BREAKS = "C3"
    ALSO = ("X1",)
    BLOCKS = _TakesEqualHashes


class _KeepsIndex(KVBlockAllocator):
    def reset(self) -> None:
        kept = dict(self.kv_hash_to_block_id)
        super().reset()
        self.kv_hash_to_block_id.update(kept)


class StaleIndex(_Blocks):
    """Resets without forgetting which block had which hash."""

    BREAKS = "C9"
    BLOCKS = _KeepsIndex


# -- errors and the observer ---------------------------------------------------------------------------------


class _ReleasesOneByOne(KVBlockAllocator):
    def release_memory_blocks(self, blocks: Any) -> None:
        for block in np.asarray(blocks).tolist():
            super().release_memory_blocks([block])


class PartialReleases(_Blocks):
    """Releases blocks one by one, up to the one that must be refused."""

    BREAKS = "X1"
    ALSO = ("X6", "C6")  # C6: a held block is told of twice, once for its parent and once for itself
    BLOCKS = _ReleasesOneByOne


class _EvictsBeforeItFails(KVBlockAllocator):
    def allocate_memory_blocks(self, n: int) -> torch.Tensor | None:
        if n > self.pool_avail + self.evictable_blocks:
            self._evict_lru_blocks(self.evictable_blocks)
        return super().allocate_memory_blocks(n)


class FailingEvictions(_Blocks):
    """Evicts what it can before it finds that it does not suffice."""

    BREAKS = "X4"
    BLOCKS = _EvictsBeforeItFails


class _CallsFirst(KVBlockAllocator):
    def _drop(self, blocks: list[int]) -> None:
        observer, self.on_blocks_deregistered = self.on_blocks_deregistered, None
        try:
            if blocks:
                hashes = {int(self.block_hashes[block]) for block in blocks} - {-1}
                self._observer.run(observer, blocks, hashes)
            super()._drop(blocks)
        finally:
            self.on_blocks_deregistered = observer


class EarlyObserver(_Blocks):
    """Calls the observer before the books are written."""

    BREAKS = "X6"
    BLOCKS = _CallsFirst


class _LetsIn(KVBlockAllocator):
    def _drop(self, blocks: list[int]) -> None:
        self._observer.refuse = lambda name: None  # type: ignore[method-assign]
        super()._drop(blocks)


class OpenObserver(_Blocks):
    """Lets the observer call the allocator."""

    BREAKS = "X6"
    BLOCKS = _LetsIn


class _TakesBack(KVBlockAllocator):
    def _drop(self, blocks: list[int]) -> None:
        before = self.pool_avail
        try:
            super()._drop(blocks)
        except Exception:
            self.pool_avail = before
            raise


class UnsettledErrors(_Blocks):
    """Does not free what was released if the observer raises."""

    BREAKS = "X2"
    BLOCKS = _TakesBack


class _TellsOfResets(KVBlockAllocator):
    def reset(self) -> None:
        held = self.block_ref_counts.nonzero().flatten().tolist()
        super().reset()
        if held:
            self._observer.run(self.on_blocks_deregistered, held, set())


class LoudReset(_Blocks):
    """Tells the observer of the blocks that a reset takes from their holders."""

    BREAKS = "X7"
    BLOCKS = _TellsOfResets


class _NamesHashed(KVBlockAllocator):
    def _drop(self, blocks: list[int]) -> None:
        observer = self.on_blocks_deregistered
        known = [block for block in blocks if self.block_hashes[block] >= 0]

        def tell(told: list[int], hashes: set[int]) -> None:
            if known and observer is not None:
                observer(known, hashes)

        self.on_blocks_deregistered = tell
        try:
            super()._drop(blocks)
        finally:
            self.on_blocks_deregistered = observer


class UnheardBlocks(_States):
    """Does not tell the observer of blocks without a hash."""

    BREAKS = "C6"
    BLOCKS = _NamesHashed


# -- slots ---------------------------------------------------------------------------------------------------


class _LeavesOwners(MambaSlotAllocator):
    def _invalidate_blocks_batch(self, block_ids_list: Sequence[int]) -> None:
        owners = self._books.block_of.copy()
        super()._invalidate_blocks_batch(block_ids_list)
        self._books.block_of[:] = owners


class StaleSlots(_States):
    """Frees the slots of blocks, and leaves the slots with their blocks."""

    BREAKS = "C2"
    ALSO = ("X2",)  # where the observer raises, what stays looks like left undone for its error
    SLOTS = _LeavesOwners


class _LeavesNames(MambaSlotAllocator):
    def _invalidate_blocks_batch(self, block_ids_list: Sequence[int]) -> None:
        names = dict(self.hash_to_block_id)
        super()._invalidate_blocks_batch(block_ids_list)
        self.hash_to_block_id.update(names)


class KeptNames(_States):
    """Frees the slots of blocks, and finds their states all the same."""

    BREAKS = "C4"
    SLOTS = _LeavesNames


class _ForgetsHashes(MambaSlotAllocator):
    def on_kv_blocks_deregistered(self, block_ids_list: Sequence[int], hashes_to_delete: set[int]) -> None:
        super().on_kv_blocks_deregistered(block_ids_list, hashes_to_delete)
        for value in hashes_to_delete:
            self.hash_to_block_id.pop(value, None)


class ForeignNames(_States):
    """Forgets a hash that is deregistered, although it names another block's state."""

    BREAKS = "C4"
    SLOTS = _ForgetsHashes


class _ProtectsNothing(MambaSlotAllocator):
    def _choose_victims(self, count: int, keep: NDArray[np.int64]) -> NDArray[np.int32]:
        return super()._choose_victims(count, keep[:0])


class EvictedBatch(_States):
    """Evicts slots of blocks that the same batch names."""

    BREAKS = "C5"
    SLOTS = _ProtectsNothing


class _PopsFirst(MambaSlotAllocator):
    def _claim_slots(self, count: int, keep: NDArray[np.int64]) -> SlotClaim:
        free = self._books.claim(min(count, self.free_count), keep[:0])
        self._books.take(free)
        rest = self._books.claim(0, self._choose_victims(count - free.free, keep))
        return rest._replace(
            slots=np.append(free.slots, rest.slots), places=np.append(free.places, rest.places)
        )


class LeakingBatches(_States):
    """Takes the free slots before it finds that they do not suffice."""

    BREAKS = "C5"
    SLOTS = _PopsFirst


class _TakesTheYoungest(MambaSlotAllocator):
    def _choose_victims(self, count: int, keep: NDArray[np.int64]) -> NDArray[np.int32]:
        order = super()._choose_victims(self._evictable(keep).size, keep)
        chosen = super()._choose_victims(count, keep)
        return order[::-1][: chosen.size]


class YoungestSlots(_States):
    """Evicts the slots of those blocks that were used last."""

    BREAKS = "C6"
    SLOTS = _TakesTheYoungest


# -- states --------------------------------------------------------------------------------------------------


class _SavesOneLayer(MambaSlotAllocator):
    def store_from_live_batch(self, slots: Sequence[int], request_indices: Sequence[int]) -> None:
        kept = self.ssm_states[1:].clone()
        super().store_from_live_batch(slots, request_indices)
        self.ssm_states[1:] = kept


class OneLayerSaves(_Blocks):
    """Saves the recurrent states of the first layer only."""

    BREAKS = "C7"
    CONFIGURATIONS = configured(Blocks.CONFIGURATIONS, layers=2, slots=3)
    SLOTS = _SavesOneLayer


class _SkipsTheTable(MambaSlotAllocator):
    def restore_to_live(self, request_idx: int, block_id: int) -> bool:
        if request_idx not in range(self.context.max_requests - 1):
            raise UsageError(f"request {request_idx} has no live state")
        slot = self.get_slot(block_id)
        if slot < 0:
            return False
        conv, ssm = self._live.buffers()
        conv[:, request_idx], ssm[:, request_idx] = self.conv_states[:, slot], self.ssm_states[:, slot]
        return True


class RequestsAsRows(_States):
    """Restores a state to the row with the request's number, whoever has that row."""

    BREAKS = "C7"
    SLOTS = _SkipsTheTable


class _WipesWhatItMisses(MambaSlotAllocator):
    def restore_to_live(self, request_idx: int, block_id: int) -> bool:
        found = super().restore_to_live(request_idx, block_id)
        if not found:
            self.context.mamba_ssm_states[:, self._live.rows([request_idx])] = 0
        return found


class WipedLive(_States):
    """Zeroes a live state for which it finds no cached one."""

    BREAKS = "C7"
    SLOTS = _WipesWhatItMisses


class _KeepsStates(MambaSlotAllocator):
    def reset(self) -> None:
        kept = self.ssm_states.clone()
        super().reset()
        self.ssm_states.copy_(kept)


class StaleStates(_States):
    """Resets without zeroing the recurrent states."""

    BREAKS = "C9"
    SLOTS = _KeepsStates
