"""Block allocators and cached states that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.adapters.faulty import Faulty
from pymllm.adapters.own_blocks import Blocks
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.core.inference.contexts.slot_books import SlotClaim
from pymllm.errors import UsageError


class _Blocks(Faulty, Blocks):
    SOUND = "blocks"


class _States(_Blocks):
    """Where there are slots for states."""

    CONFIGURATIONS = tuple(config for config in Blocks.CONFIGURATIONS if config["slots"] is not None)


# -- blocks --------------------------------------------------------------------------------------------------


@_Blocks.breaking("C1")
class OldestBlocks(KVBlockAllocator):
    """Evicts the oldest cached block, whatever was registered below it."""

    def _evict_lru_blocks(self, count: int) -> None:
        stamps = self._timestamps
        oldest = sorted(self._forest._idle, key=lambda block: (stamps[block], block))[:count]
        for block in oldest:
            self._forest.remove_subtree(block)
        self._drop(oldest)


@_Blocks.breaking("C1")
class ReleasesOnce(KVBlockAllocator):
    """Takes one reference from a block that is released twice in one call."""

    def release_memory_blocks(self, blocks: Any) -> None:
        super().release_memory_blocks(list(dict.fromkeys(np.asarray(blocks).tolist())))


@_Blocks.breaking("C3")
class LastRegistrations(KVBlockAllocator):
    """Lets a hash name the block that was registered with it last."""

    def register_kv_block_hashes(self, ids: Any, hashes: Any, parent_hashes: Any = None) -> None:
        super().register_kv_block_hashes(ids, hashes, parent_hashes)
        self.kv_hash_to_block_id.update(zip(hashes, np.asarray(ids).tolist(), strict=True))


@_Blocks.breaking("C3", "X1")
class ForeignParents(KVBlockAllocator):
    """Takes any block with the hash of a parent for the parent."""

    def register_kv_block_hashes(self, ids: Any, hashes: Any, parent_hashes: Any = None) -> None:
        super().register_kv_block_hashes([], hashes[len(ids) :], (parent_hashes or [])[len(ids) :])
        above = [0, *hashes] if parent_hashes is None else parent_hashes
        for block, value, parent in zip(np.asarray(ids).tolist(), hashes, above, strict=False):
            super().register_kv_block_hashes([block], [value], [parent])


@_Blocks.breaking("C9")
class StaleIndex(KVBlockAllocator):
    """Resets without forgetting which block had which hash."""

    def reset(self) -> None:
        kept = dict(self.kv_hash_to_block_id)
        super().reset()
        self.kv_hash_to_block_id.update(kept)


# -- errors and the observer ---------------------------------------------------------------------------------


# C6: a held block is told of twice, once for its parent and once for itself
@_Blocks.breaking("X1", "X6", "C6")
class PartialReleases(KVBlockAllocator):
    """Releases blocks one by one, up to the one that must be refused."""

    def release_memory_blocks(self, blocks: Any) -> None:
        for block in np.asarray(blocks).tolist():
            super().release_memory_blocks([block])


@_Blocks.breaking("X4")
class FailingEvictions(KVBlockAllocator):
    """Evicts what it can before it finds that it does not suffice."""

    def allocate_memory_blocks(self, n: int) -> torch.Tensor | None:
        if n > self.pool_avail + self.evictable_blocks:
            self._evict_lru_blocks(self.evictable_blocks)
        return super().allocate_memory_blocks(n)


@_Blocks.breaking("X6")
class EarlyObserver(KVBlockAllocator):
    """Calls the observer before the books are written."""

    def _drop(self, blocks: list[int]) -> None:
        observer, self.on_blocks_deregistered = self.on_blocks_deregistered, None
        try:
            if blocks:
                hashes = {int(self.block_hashes[block]) for block in blocks} - {-1}
                self._observer.run(observer, blocks, hashes)
            super()._drop(blocks)
        finally:
            self.on_blocks_deregistered = observer


@_Blocks.breaking("X6")
class OpenObserver(KVBlockAllocator):
    """Lets the observer call the allocator."""

    def _drop(self, blocks: list[int]) -> None:
        self._observer.refuse = lambda name: None  # type: ignore[method-assign]
        super()._drop(blocks)


@_Blocks.breaking("X2")
class UnsettledErrors(KVBlockAllocator):
    """Does not free what was released if the observer raises."""

    def _drop(self, blocks: list[int]) -> None:
        before = self.pool_avail
        try:
            super()._drop(blocks)
        except Exception:
            self.pool_avail = before
            raise


@_Blocks.breaking("X7")
class LoudReset(KVBlockAllocator):
    """Tells the observer of the blocks that a reset takes from their holders."""

    def reset(self) -> None:
        held = self.block_ref_counts.nonzero().flatten().tolist()
        super().reset()
        if held:
            self._observer.run(self.on_blocks_deregistered, held, set())


@_States.breaking("C6")
class UnheardBlocks(KVBlockAllocator):
    """Does not tell the observer of blocks without a hash."""

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


# -- slots ---------------------------------------------------------------------------------------------------


# X2: where the observer raises, what stays looks like left undone for its error
@_States.breaking("C2", "X2")
class StaleSlots(MambaSlotAllocator):
    """Frees the slots of blocks, and leaves the slots with their blocks."""

    def _invalidate_blocks_batch(self, block_ids_list: Sequence[int]) -> None:
        owners = self._books.block_of.copy()
        super()._invalidate_blocks_batch(block_ids_list)
        self._books.block_of[:] = owners


@_States.breaking("C4")
class KeptNames(MambaSlotAllocator):
    """Frees the slots of blocks, and finds their states all the same."""

    def _invalidate_blocks_batch(self, block_ids_list: Sequence[int]) -> None:
        names = dict(self.hash_to_block_id)
        super()._invalidate_blocks_batch(block_ids_list)
        self.hash_to_block_id.update(names)


@_States.breaking("C4")
class ForeignNames(MambaSlotAllocator):
    """Forgets a hash that is deregistered, although it names another block's state."""

    def on_kv_blocks_deregistered(self, block_ids_list: Sequence[int], hashes_to_delete: set[int]) -> None:
        super().on_kv_blocks_deregistered(block_ids_list, hashes_to_delete)
        for value in hashes_to_delete:
            self.hash_to_block_id.pop(value, None)


@_States.breaking("C5")
class EvictedBatch(MambaSlotAllocator):
    """Evicts slots of blocks that the same batch names."""

    def _choose_victims(self, count: int, keep: NDArray[np.int64]) -> NDArray[np.int32]:
        return super()._choose_victims(count, keep[:0])


@_States.breaking("C5")
class LeakingBatches(MambaSlotAllocator):
    """Takes the free slots before it finds that they do not suffice."""

    def _claim_slots(self, count: int, keep: NDArray[np.int64]) -> SlotClaim:
        free = self._books.claim(min(count, self.free_count), keep[:0])
        self._books.take(free)
        rest = self._books.claim(0, self._choose_victims(count - free.free, keep))
        return rest._replace(
            slots=np.append(free.slots, rest.slots), places=np.append(free.places, rest.places)
        )


@_States.breaking("C6")
class YoungestSlots(MambaSlotAllocator):
    """Evicts the slots of those blocks that were used last."""

    def _choose_victims(self, count: int, keep: NDArray[np.int64]) -> NDArray[np.int32]:
        order = super()._choose_victims(self._evictable(keep).size, keep)
        chosen = super()._choose_victims(count, keep)
        return order[::-1][: chosen.size]


# -- states --------------------------------------------------------------------------------------------------


@_Blocks.breaking("C7", layers=2, slots=3)
class OneLayerSaves(MambaSlotAllocator):
    """Saves the recurrent states of the first layer only."""

    def store_from_live_batch(self, slots: Sequence[int], request_indices: Sequence[int]) -> None:
        kept = self.ssm_states[1:].clone()
        super().store_from_live_batch(slots, request_indices)
        self.ssm_states[1:] = kept


@_States.breaking("C7")
class RequestsAsRows(MambaSlotAllocator):
    """Restores a state to the row with the request's number, whoever has that row."""

    def restore_to_live(self, request_idx: int, block_id: int) -> bool:
        if request_idx not in range(self.context.max_requests - 1):
            raise UsageError(f"request {request_idx} has no live state")
        slot = self.get_slot(block_id)
        if slot < 0:
            return False
        conv, ssm = self._live.buffers()
        conv[:, request_idx], ssm[:, request_idx] = self.conv_states[:, slot], self.ssm_states[:, slot]
        return True


@_States.breaking("C7")
class WipedLive(MambaSlotAllocator):
    """Zeroes a live state for which it finds no cached one."""

    def restore_to_live(self, request_idx: int, block_id: int) -> bool:
        found = super().restore_to_live(request_idx, block_id)
        if not found:
            self.context.mamba_ssm_states[:, self._live.rows([request_idx])] = 0
        return found


@_States.breaking("C9")
class StaleStates(MambaSlotAllocator):
    """Resets without zeroing the recurrent states."""

    def reset(self) -> None:
        kept = self.ssm_states.clone()
        super().reset()
        self.ssm_states.copy_(kept)
