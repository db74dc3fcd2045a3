"""Cached recurrent states for prefix caching in hybrid models: one slot for each block that has a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.core.inference.contexts.host_numbers import host_array, host_integers
from pymllm.core.inference.contexts.live_request import refuse_batch
from pymllm.core.inference.contexts.slot_states import MAX_INTERMEDIATE_OFFSETS_PER_REQUEST, SlotStates
from pymllm.core.inference.contexts.snapshot_offsets import (
    OffsetTable,
    Snapshots,
    commit_candidates,
    snapshot_positions,
)
from pymllm.errors import MambaSlotCapacityError, UsageError
from pymllm.mem_cache.arguments import as_int, as_size

__all__ = ["MAX_INTERMEDIATE_OFFSETS_PER_REQUEST", "MambaSlotAllocator", "MambaSlotCapacityError"]

CommitData = tuple[list[int], list[int], list[int], list[int], list[int]]


class MambaSlotAllocator(SlotStates):
    """An allocator of slots for recurrent states at block ends, from which requests resume.

    Owns the slots with their states, which block has which slot, under which hash a cached state is known,
    and what the requests of a step will leave. Reference counts, stamps and hashes of blocks are the block
    allocator's and are read through the context.

    Parameters
    ----------
    context : object
        Any object with the attributes that a `DynamicInferenceContext` offers; tables may be tensors on any
        device, arrays or lists. Its ``kv_block_allocator`` is to call `on_kv_blocks_deregistered`.
    max_slots : int
        States that can be kept at a time.
    num_mamba_layers : int
        Recurrent layers of the model.
    conv_states_shape, ssm_states_shape : tuple of int
        Shape of one layer's states of one request.
    conv_states_dtype, ssm_states_dtype : torch.dtype
        Their dtypes, the same as of the live states.
    fused : bool, optional
        Copy both states by one launch of a Triton kernel: always, never, or (None) on CUDA devices where
        Triton is installed and compiles. The bits are the same.

    Attributes
    ----------
    conv_states, ssm_states : torch.Tensor
        ``[num_mamba_layers, max_slots, ...]`` on the context's device: the cached states.
    intermediate_conv_out, intermediate_ssm_out : torch.Tensor
        ``[num_mamba_layers, max_intermediate_count, ...]``: where the forward pass writes the states at the
        offsets of `get_intermediate_gpu_data`, those of the first request first, without gaps.
    is_fused : bool
        Whether a kernel copies both states.
    max_intermediate_count : int
        ``MAX_INTERMEDIATE_OFFSETS_PER_REQUEST * context.max_requests``.
    block_to_slot, slot_to_block : torch.Tensor
        ``[blocks]`` and ``[max_slots]`` int32 on the host, -1 for none; inverse of each other. For reading.
    free_slots, free_count
        ``free_slots[:free_count]`` are free, int32 on the host. For reading.
    hash_to_block_id : dict of int to int
        The block with the cached state of each hash.

    Raises
    ------
    TypeError
        A size is not an int, or a dtype not a `torch.dtype`.
    ValueError
        A size is below 1, torch cannot read rows of such a dtype by index, or ``fused`` is True and cannot
        be.

    Notes
    -----
    What Python reads lives on the host and states live on the device; no call waits for the device unless the
    context keeps its tables there. The output buffers have room for three states of every request, so
    `mem_bytes` is well above what ``max_slots`` alone would say. Not thread-safe.

    Laws: C2, C4, C5, C6, C7, C8, C9, X1, X5.
    """

    def __init__(
        self,
        context: Any,
        max_slots: int,
        num_mamba_layers: int,
        conv_states_shape: tuple[int, ...],
        ssm_states_shape: tuple[int, ...],
        conv_states_dtype: torch.dtype,
        ssm_states_dtype: torch.dtype,
        *,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            context,
            max_slots,
            num_mamba_layers,
            conv_states_shape,
            ssm_states_shape,
            conv_states_dtype,
            ssm_states_dtype,
            fused=fused,
        )
        self._offsets = OffsetTable(
            self.max_intermediate_count // MAX_INTERMEDIATE_OFFSETS_PER_REQUEST, self.device
        )

    def __repr__(self) -> str:
        """Show the numbers of slots, layers and free slots."""
        return (
            f"MambaSlotAllocator(max_slots={self.max_slots}, num_mamba_layers={self.num_mamba_layers}, "
            f"device='{self.device}', free_count={self.free_count})"
        )

    def compute_and_store_offsets(
        self,
        req: Any,
        current_id: int,
        skip_tokens: int,
        prefill_chunk_length: int,
        num_matched_blocks: int,
        matched_block_ids: Sequence[int],
        overall_required_blocks: int,
    ) -> None:
        """Choose the states that a request's chunk leaves for the cache, and remember them until the commit.

        Parameters
        ----------
        req : object
            Has ``prompt_tokens`` and ``finished_chunk_token_count``.
        current_id : int
            Row of the context.
        skip_tokens : int
            Tokens at the start of the chunk that a restored state stands for.
        prefill_chunk_length : int
            Tokens of the chunk, the skipped ones included.
        num_matched_blocks : int
            Blocks whose KV was cached when the request was admitted.
        matched_block_ids : list of int
            Those blocks, which the row of the context need not name yet.
        overall_required_blocks : int
            Blocks that the request needs up to the end of this chunk.

        Raises
        ------
        IndexError
            The context has no such row, or a block is outside the pool.
        UsageError
            No block is named where a state is to be kept.
        ValueError
            A number is negative, more tokens are skipped than the chunk has, or the prompt is a batch.
        TypeError
            Something is not an integer.

        Notes
        -----
        States are kept where the cached KV ended, at the last whole block of the prompt and at the last whole
        block of the chunk, as far as these lie strictly inside what is computed and the kernel has a
        state there; and at the end of a prompt of whole blocks, with its last chunk. What was remembered
        for the row is replaced. Cost: O(1), and reading one row of the context. Laws: C8, X1.
        """
        row = as_int("current_id", current_id)
        if not 0 <= row < self.context.max_requests:
            raise IndexError(f"current_id {row} is outside 0..{self.context.max_requests - 1}")
        skipped = as_size("skip_tokens", skip_tokens, minimum=0)
        length = as_size("prefill_chunk_length", prefill_chunk_length, minimum=0)
        if skipped > length:
            raise ValueError(f"{skipped} tokens of a chunk of {length} cannot be skipped")
        matched = as_size("num_matched_blocks", num_matched_blocks, minimum=0)
        required = as_size("overall_required_blocks", overall_required_blocks, minimum=0)

        start = as_size("finished_chunk_token_count", req.finished_chunk_token_count, minimum=0)
        known = host_integers("matched_block_ids", matched_block_ids, self._tracker.slot_of.size)

        refuse_batch(req.prompt_tokens)
        size, prompt = self.context.block_size_tokens, len(req.prompt_tokens)
        whole = prompt // size * size
        first = start + skipped
        boundaries = [matched * size, whole, (required - 1) * size]
        depths = snapshot_positions(boundaries, first, start + length, self.context.mamba_chunk_size)
        ends = whole == prompt > 0 and start + length >= prompt
        blocks = self._blocks_ending_at(row, known, [*depths, prompt] if ends else depths)
        self._offsets.of_request[row] = Snapshots(
            offsets=tuple(depth - first for depth in depths),
            depths=tuple(depths),
            blocks=tuple(blocks[: len(depths)]),
            end_block=blocks[-1] if ends else -1,
            end_depth=prompt,
        )

    def get_intermediate_gpu_data(self) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """Return the offsets of the current prefill batch on the device.

        Returns
        -------
        offsets_gpu : torch.Tensor or None
            ``[prefill_count, 3]`` int32: per request, ascending offsets into what it computes, then zeros.
        counts_gpu : torch.Tensor or None
            ``[prefill_count]`` int32: how many of them count. Both are ``None`` if no request of the batch
            has any.

        Notes
        -----
        The tensors are the beginning of buffers that are never replaced, so a captured graph may read them;
        call this before each replay, outside of a capture, and it refreshes them.
        Cost: one copy to the device; no synchronisation. Laws: C8, X5 (shared by design).
        """
        first, count = self._prefill_rows()
        return self._offsets.show(first, count)

    def intermediate_offsets(self) -> list[tuple[int, ...]]:
        """Return the offsets of the current prefill batch on the host (beyond the reference).

        Cost: O(requests). Law: C8.
        """
        first, count = self._prefill_rows()
        left = (self._offsets.of_request.get(row) for row in range(first, first + count))
        return [() if each is None else each.offsets for each in left]

    def commit_intermediate_states(self) -> None:
        """Put the states of the step's prefill requests into the cache: collect, allocate, copy, register.

        Raises
        ------
        TypeError, UsageError, ValueError
            The context's live states or counts are not what they must be; nothing was committed.
        Exception
            The device or the host has no memory: the blocks that were to keep a state have no slot, and the
            states that made room for theirs are gone.

        Notes
        -----
        Call it after the forward pass, when the blocks' hashes are registered. If slots run out, states at
        the end of prompts are kept first, then the deepest, in the lower row among equals; the rest is
        dropped, since a cached state is never necessary. Cost: at most eight kernels however much is
        committed, and no synchronisation. Laws: C6, C7.
        """
        try:
            collected = self._collect_commit_data()
            if collected is not None:
                self._commit(*collected)
        finally:
            self._clear_intermediate_state()

    def _commit(
        self, blocks: list[int], sources: list[int], end_blocks: list[int], rows: list[int], hashes: list[int]
    ) -> None:
        self._live.buffers()
        fits = self._which_fit(end_blocks + blocks)
        ends = [place for place in range(len(rows)) if fits[place]]
        inside = [place for place in range(len(blocks)) if fits[len(rows) + place]]
        kept = [blocks[place] for place in inside] + [end_blocks[place] for place in ends]
        slots = self.allocate_slots_batch(kept)
        try:
            self._copy_intermediate_to_cache([sources[place] for place in inside], slots[: len(inside)])
            self.store_from_live_batch(slots[len(inside) :], [rows[place] for place in ends])
            places = inside + [len(blocks) + place for place in ends]
            self.register_block_hashes_batch(kept, [hashes[place] for place in places])
        except BaseException:
            # A slot that was not filled, or only in part, must not be found.
            self._invalidate_one_by_one(kept)
            raise

    def _collect_commit_data(self) -> CommitData | None:
        """Return the states that the current prefill batch leaves, the most valuable first.

        Returns
        -------
        tuple or None
            ``(intermediate_bids, src_offsets, eos_bids, eos_ctx_indices, all_hashes)``: blocks with the rows
            of the output buffers that have their states, deepest first; blocks that end with a prompt with
            the rows of their requests, deepest first; and the hashes of all, in that order. Each block is
            named once, and none without a registered hash. ``None`` if there is nothing to commit.

        Notes
        -----
        Cost: O(requests) on the host. Laws: C6, C7.
        """
        first, count = self._prefill_rows()
        found = commit_candidates(self._offsets.of_request, first, self._extracted_counts(count))
        hash_of = host_array(self.context.kv_block_allocator.block_hashes)
        found = [each for each in found if hash_of[each.block] > 0]
        if not found:
            return None
        inside = [each for each in found if each.is_inside]
        ends = [each for each in found if not each.is_inside]
        return (
            [each.block for each in inside],
            [each.source for each in inside],
            [each.block for each in ends],
            [each.row for each in ends],
            [int(hash_of[each.block]) for each in inside + ends],
        )

    def _clear_intermediate_state(self) -> None:
        """Forget the planned states of all requests, on the host and on the device.

        Notes
        -----
        Cost: at most one fill; no synchronisation. Law: C8.
        """
        self._offsets.clear()

    def reset(self) -> None:
        """Return slots, hashes, states, output buffers and offsets to their initial values.

        Notes
        -----
        Where the device refuses to fill a buffer, its error passes on when every slot is free and no state is
        known, and buffers are left with what they had.
        Cost: one fill of each buffer; no synchronisation. Laws: C9, X7.
        """
        self._tracker.clear()
        self._offsets.clear()
        for states in (
            self.conv_states,
            self.ssm_states,
            self.intermediate_conv_out,
            self.intermediate_ssm_out,
        ):
            states.zero_()

    def _prefill_rows(self) -> tuple[int, int]:
        """Return the first row of the current prefill batch, and its number of rows."""
        batch = self.context.batch_dimensions
        first = int(self.context.paused_request_count) + int(batch.decode_req_count)
        return first, int(batch.prefill_req_count)

    def _extracted_counts(self, requests: int) -> list[int]:
        """Return the number of states that the forward pass extracted for each prefill request."""
        metadata = self.context.mamba_metadata
        left = int(metadata.intermediate_count or 0)
        counts = [0] * requests
        if left:
            for place, count in enumerate(host_array(metadata.per_request_intermediate_counts)[:requests]):
                counts[place] = min(as_size("per_request_intermediate_counts", count, minimum=0), left)
                left -= counts[place]
        return counts

    def _blocks_ending_at(self, row: int, matched: NDArray[np.int64], depths: Sequence[int]) -> list[int]:
        """Return the request's blocks that end at some token counts, skipping known ones."""
        if not depths:
            return []
        table = host_array(self.context.request_to_kv_block_ids[row])
        blocks: list[int] = []
        for depth in depths:
            place = depth // self.context.block_size_tokens - 1
            names = matched if place < matched.size else table
            blocks.append(int(names[place]) if place < names.size else -1)
            if blocks[-1] < 0:
                raise UsageError(
                    f"row {row} names no block that ends at token {depth}: "
                    "fill it before the offsets are computed"
                )
        host_integers(f"row {row} of request_to_kv_block_ids", blocks, self._tracker.slot_of.size)
        return blocks
