"""Contexts of whole requests that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pymllm.adapters.faulty import Faulty, configured
from pymllm.adapters.own_requests import Prompted, Requests
from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.live_request import LiveRequest, Region
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.core.inference.contexts.prefix_index import PrefixIndex, block_hash


class _FaultyContext(Faulty, Requests):
    SOUND = "requests"


class _FaultySlots(_FaultyContext):
    """Its allocator of slots is of another class."""

    SLOTS: ClassVar[type[MambaSlotAllocator]] = MambaSlotAllocator
    CONFIGURATIONS = configured(Requests.CONFIGURATIONS, mamba_slots=3, block_size=4, chunk_size=2)

    def make_context(self) -> DynamicInferenceContext:
        """Build a context and exchange the class of its slots."""
        context = super().make_context()
        assert context.mamba_slot_allocator is not None  # every configuration of these has slots
        context.mamba_slot_allocator.__class__ = self.SLOTS
        # The old class's method was bound before.
        context.kv_block_allocator.on_blocks_deregistered = (
            context.mamba_slot_allocator.on_kv_blocks_deregistered
        )
        return context


# -- states --------------------------------------------------------------------------------------------------


@_FaultySlots.breaking("C7")
class BatchSnapshots(MambaSlotAllocator):
    """Stores the state of the first request of a batch for all whose prompts end."""

    def store_from_live_batch(self, slots: Sequence[int], request_indices: Sequence[int]) -> None:
        super().store_from_live_batch(slots, [*request_indices][:1] * len(request_indices))


# C7: an end that is counted elsewhere is one whose state nobody keeps
@_FaultySlots.breaking("C8", "C7")
class PromptOffsets(MambaSlotAllocator):
    """Counts the ends of blocks in a later chunk as if the prompt began there."""

    def compute_and_store_offsets(self, req: Any, *arguments: Any) -> None:
        finished = req.finished_chunk_token_count
        super().compute_and_store_offsets(
            Prompted(req.prompt_tokens[finished:]) if finished else req, *arguments
        )


@_FaultySlots.breaking("C7")
class TrunksFirst(MambaSlotAllocator):
    """Keeps the states inside of prompts before those at their ends."""

    def _which_fit(self, blocks: list[int]) -> list[bool]:
        return super()._which_fit(blocks[::-1])[::-1]


@_FaultySlots.breaking("X2", "C1")
class UnfilledSlots(MambaSlotAllocator):
    """Keeps slots that a failing commit has not filled."""

    def _invalidate_one_by_one(self, block_ids: Sequence[int]) -> None:
        """Leave a commit that failed as it is."""


@_FaultySlots.breaking("E1")
class StaleRestores(MambaSlotAllocator):
    """Resumes behind a cached state without a copy of it."""

    def restore_to_live(self, request_idx: int, block_id: int) -> bool:
        return self.has_state(block_id)


# -- hits ----------------------------------------------------------------------------------------------------


class _ByHashAlone(PrefixIndex):
    def match(self, prompt: NDArray[np.uint32]) -> tuple[list[int], list[str]]:
        blocks: list[int] = []
        digests: list[str] = []
        for start in range(0, prompt.size - self._block_size + 1, self._block_size):
            page = prompt[start : start + self._block_size]
            digest = self._hash_page(page, digests[-1] if digests else None)
            block = self._allocator.kv_hash_to_block_id.get(block_hash(digest))
            if block is None or block in blocks:
                break
            blocks.append(block)
            digests.append(digest)
        return blocks, digests


class BareHashes(_FaultyContext):
    """Takes every block with the right hash for a hit."""

    BREAKS = "C3"
    ALSO = ("C1", "X4")  # X4: with a wrong hit a request fits where there is no room
    CONFIGURATIONS = configured(Requests.CONFIGURATIONS, hash_digits=2, layers=0)

    def make_context(self) -> DynamicInferenceContext:
        """Build a context and exchange the class of its index."""
        context = super().make_context()
        context._index.__class__ = _ByHashAlone
        return context


@_FaultyContext.breaking("E4", layers=0)
class FullHits(DynamicInferenceContext):
    """Leaves nothing to compute of a prompt that is cached as a whole."""

    def _resume(self, live: LiveRequest) -> int:
        return live.matched * self.block_size_tokens


# C1: the block found is evicted and handed out, and so has two references
@_FaultyContext.breaking("X4", "C1", layers=0)
class UnheldHits(DynamicInferenceContext):
    """Holds what it has found only once the rest is allocated."""

    def _match(self, req: Any, prompt: NDArray[np.uint32], undo: ExitStack) -> LiveRequest:
        blocks, digests = self._index.match(prompt)
        return LiveRequest(req, prompt, blocks, digests, matched=len(blocks), registered=len(blocks))

    def _schedule(self, live: LiveRequest, chunk: int) -> None:
        if not live.computed and live.region is Region.WAITING:
            self.kv_block_allocator.retain_memory_blocks(live.blocks[: live.matched])
        super()._schedule(live, chunk)


# -- requests ------------------------------------------------------------------------------------------------


# E3: a failed admission does not give everything back
@_FaultyContext.breaking("C1", "X2", "E3")
class LeakyAdmissions(DynamicInferenceContext):
    """Keeps the shared blocks of a request that it could not take up."""

    def _match(self, req: Any, prompt: NDArray[np.uint32], undo: ExitStack) -> LiveRequest:
        with ExitStack() as lost:
            live = super()._match(req, prompt, lost)
            lost.pop_all()
        return live


@_FaultyContext.breaking("E3", "C1")
class SharedReleases(DynamicInferenceContext):
    """Gives a shared block up on behalf of two requests when one of them leaves."""

    def release(self, req: Any) -> None:
        live = self._find(req, "release")
        blocks = list(live.blocks)
        super().release(req)
        counts = self.kv_block_allocator.block_ref_counts
        self.kv_block_allocator.release_memory_blocks([block for block in blocks if counts[block] > 0])


# C3: what is left in a row looks like a hit
@_FaultyContext.breaking("E2", "C3")
class LongRows(DynamicInferenceContext):
    """Leaves the blocks of a released request in the last row."""

    def release(self, req: Any) -> None:
        row = self._find(req, "release").row
        kept = self.request_to_kv_block_ids[row].clone()
        last = len(self.requests) - 1
        super().release(req)
        self.request_to_kv_block_ids[last] = kept


@_FaultyContext.breaking("C1")
class UnboundedPauses(DynamicInferenceContext):
    """Lets paused requests keep as many blocks as they have."""

    def pause(self, req: Any) -> bool:
        limit, self.kv_block_allocator.paused_limit = self.kv_block_allocator.paused_limit, 10**6
        try:
            return super().pause(req)
        finally:
            self.kv_block_allocator.paused_limit = limit


# X7: what comes after it goes another way than on a new one
@_FaultyContext.breaking("C9", "X7", "C1")
class DurableHashes(DynamicInferenceContext):
    """Resets by releasing every request, so that what was cached is found again."""

    def reset(self) -> None:
        blocks = self.kv_block_allocator
        observer, blocks.on_blocks_deregistered = blocks.on_blocks_deregistered, None
        for req in list(self.requests):
            self.release(req)
        blocks.on_blocks_deregistered = observer
