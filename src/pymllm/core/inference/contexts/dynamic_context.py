"""The context of whole requests over KV blocks and cached states, which runs them step by step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from threading import get_ident

from pymllm.core.inference.contexts.forward_batch import ForwardBatch, ForwardPass, RequestStep, plan_step
from pymllm.core.inference.contexts.live_request import LiveRequest, Region, check_next_tokens
from pymllm.core.inference.contexts.request_context import RequestContext
from pymllm.errors import CapacityError, UsageError

__all__ = ["DynamicInferenceContext"]


class DynamicInferenceContext(RequestContext):
    """A context that runs requests over a pool of KV blocks, with cached states for recurrent layers.

    A request is added and computes its prompt in chunks, one to a step; then each step computes one token of
    it until it is released. Between steps it may be paused, resumed or released at any point, and cut back
    once its prompt is computed. The forward pass itself is the caller's: a step says what is to be computed
    and where it goes.

    Parameters
    ----------
    max_requests : int
        Requests at a time, paused ones included.
    num_blocks : int
        KV blocks, the dummy included.
    max_blocks_per_request : int
        The longest request, in blocks.
    block_size_tokens : int
        Tokens per block.
    mamba_chunk_size : int
        The kernel has a state after each multiple of this many tokens of a chunk.
    mamba_slots : int
        States that the cache may keep; 0 for none.
    num_mamba_layers : int
        Recurrent layers; 0 for a model of attention alone.
    conv_states_shape, ssm_states_shape, conv_states_dtype, ssm_states_dtype
        The states of one layer of one request.
    prefix_caching_eviction_policy : PrefixCachingEvictionPolicy
        What becomes of blocks that nobody references.
    enable_prefix_caching : bool
        Whether blocks and states are kept for later requests at all.
    paused_limit : int
        The most blocks that paused requests may keep.
    hash_page : callable, optional
        ``hash_page(tokens, prior_digest) -> digest``, as `hash_token_ids`, which is the default.
    device : str or torch.device
        Where the states are; all trackers are on the host.

    Attributes
    ----------
    kv_block_allocator : KVBlockAllocator
        The blocks.
    mamba_slot_allocator : MambaSlotAllocator or None
        The cached states.
    prefix_cache_lru_clock : int
        Counts what moves recency; never wall time.
    request_to_kv_block_ids : torch.Tensor
        ``[max_requests, max_blocks_per_request]`` int32 on the host, -1 for none.
    mamba_metadata : MambaMetadata
        Rows of the live states, and how many states a step extracts.
    mamba_conv_states, mamba_ssm_states : torch.Tensor or None
        ``[num_mamba_layers, max_requests, ...]`` on the device: the live states.
    batch_dimensions : BatchDimensions
        ``decode_req_count`` and ``prefill_req_count`` of the next step. The first rows are those of paused
        requests, then come decoding ones, those with a chunk, and those that wait for one.

    Raises
    ------
    TypeError
        A size is not an int, a dtype not a `torch.dtype`, or ``hash_page`` not a callable.
    ValueError
        A size is too small, or there are slots without recurrent layers.

    Notes
    -----
    Not thread-safe: one scheduler thread owns a context. A second one is refused where it meets a step or an
    observer; that is best effort, and no protection. A call that fails, or returns False, has changed
    nothing that it names. Laws: C1-C9, E2, E3, E4, X1, X2, X3.
    """

    def __repr__(self) -> str:
        """Return the number of requests, the maximum, and both allocators."""
        return (
            f"DynamicInferenceContext(requests={len(self._rows)} of {self.max_requests}, "
            f"{self.kv_block_allocator!r}, {self.mamba_slot_allocator!r})"
        )

    def step(self, forward: ForwardPass) -> ForwardBatch:
        """Run one step: `begin_step`, the forward pass, `commit_step`.

        Parameters
        ----------
        forward : callable
            As of `ForwardPass`.

        Returns
        -------
        ForwardBatch
            What was computed.

        Raises
        ------
        CapacityError
            As of `begin_step`.
        Exception
            Whatever ``forward`` raises, after `abort_step`.
        RuntimeError
            ``forward`` returned, but had ended the step with `reset`.
        """
        batch = self.begin_step()
        steps = self._step
        try:
            next_tokens = forward(batch)
            if self._step is not steps:
                raise RuntimeError(
                    "the forward pass ended its own step, with reset; there is nothing to commit"
                )
            self.commit_step(next_tokens)
        except BaseException:
            if self._step is steps:
                self.abort_step()
            raise
        return batch

    def begin_step(self) -> ForwardBatch:
        """Plan the next step: a token of each decoding request, and the scheduled chunks.

        Returns
        -------
        ForwardBatch
            Empty if there is nothing to compute.

        Raises
        ------
        CapacityError
            Too few blocks are left for the decoding requests; pause or release some. Nothing has changed.
        UsageError
            A decoding request is as long as it may be; release it. Nothing has changed.
        RuntimeError
            A step is under way.

        Notes
        -----
        Until `commit_step` or `abort_step` no other call is taken but `reset`. Where memory is wanting, no
        step is under way and no request has a block more; cached blocks that made room stay evicted.
        Cost: O(what is computed); one allocation for all requests, and no synchronisation. Laws: C8, X2, X4.
        """
        self._refuse_in_step("begin_step")
        prefilling = self._rows.of(Region.PREFILL)
        with ExitStack() as undo:
            self._extend_decoding(undo)
            offsets = self._offsets_of(prefilling, undo)
            steps = self._plan(prefilling, offsets)
            undo.pop_all()
        self.mamba_metadata.per_request_intermediate_counts = [len(each) for each in offsets]
        self.mamba_metadata.intermediate_count = sum(self.mamba_metadata.per_request_intermediate_counts)
        self._step_thread = get_ident()
        self._step = steps
        return ForwardBatch(steps)

    def commit_step(self, next_tokens: Sequence[int | None]) -> None:
        """Apply the results of the forward pass: register blocks, cache states, and advance requests.

        Parameters
        ----------
        next_tokens : sequence of int or None
            One for each request of the batch; looked at only where one is sampled.

        Raises
        ------
        TypeError, ValueError
            Another number of tokens, or one that is none; the step is still under way.
        RuntimeError
            No step is under way.

        Notes
        -----
        Blocks are registered only now that their KV is there. Where anything else fails, the step is still
        under way and no token is counted: call this again, or `abort_step`. Blocks that were registered by
        then stay so, which is true of them; states of this step are dropped, which are never necessary.
        Cost: one digest per block that became whole, and `MambaSlotAllocator.commit_intermediate_states`.
        Laws: C3, C6, C7, X2.
        """
        if self._step is None:
            raise RuntimeError("commit_step was called without begin_step")
        steps = self._step
        chosen = check_next_tokens(next_tokens, [step.is_sampled for step in steps])
        moved = [self._live_by_id[id(step.req)] for step in steps]
        for live, step in zip(moved, steps, strict=True):
            self._index.register(live, step.start + step.tokens.size)
        if self.mamba_slot_allocator is not None:
            self.mamba_slot_allocator.commit_intermediate_states()
        self._end_step()
        self.prefix_cache_lru_clock += 1
        for live, step, token in zip(moved, steps, chosen, strict=True):
            live.computed, live.skip, live.chunk = step.start + step.tokens.size, 0, 0
            live.req.finished_chunk_token_count = min(live.computed, live.prompt.size)
            if step.is_sampled:
                live.generated.append(token)
            self._rows.move(live, Region.DECODE if live.is_prefilled else Region.WAITING)

    def abort_step(self) -> None:
        """End a step whose forward pass failed; nothing is registered, cached or counted as computed.

        Raises
        ------
        RuntimeError
            No step is under way.

        Notes
        -----
        The live states of the batch are what the forward pass left of them: release its requests, unless it
        wrote nothing. The step is over even where the device refuses to forget its offsets, whose error
        passes on. Law: C8.
        """
        if self._step is None:
            raise RuntimeError("abort_step was called without begin_step")
        self._end_step()
        if self.mamba_slot_allocator is not None:
            self.mamba_slot_allocator._clear_intermediate_state()

    def reset(self) -> None:
        """Make this a new context: no requests, no blocks, no states, the clock at 0.

        Notes
        -----
        Where the device refuses to fill a buffer, its error passes on when everything is free, and buffers
        are left with what they had. Cost: one fill of each buffer. Laws: C9, X7.
        """
        self.kv_block_allocator.reset()
        self._step = None
        self._live_by_id.clear()
        self._rows.clear()
        self.prefix_cache_lru_clock = 0
        if self.mamba_slot_allocator is not None:
            self.mamba_slot_allocator.reset()
        for states in (self.mamba_conv_states, self.mamba_ssm_states):
            if states is not None:
                states.zero_()

    def _extend_decoding(self, undo: ExitStack) -> None:
        """Give each decoding request a block for its next token; or give none of them a block."""
        full = [
            live
            for live in self._rows.of(Region.DECODE)
            if live.computed == len(live.blocks) * self.block_size_tokens
        ]
        for live in full:
            if len(live.blocks) == self.max_blocks_per_request:
                raise UsageError(
                    f"the request in row {live.row} has all {len(live.blocks)} blocks that one may have; "
                    "release it"
                )
        new = self._allocate(len(full))
        if new is None:
            raise CapacityError(
                f"{len(full)} blocks are needed to decode, {self.kv_block_allocator.pool_avail} are free and "
                f"{self.kv_block_allocator.evictable_blocks} may be evicted; pause or release requests"
            )
        for live, block in zip(full, new, strict=True):
            self._rows.extend(live, [block])
        undo.callback(self._shorten, full)

    def _shorten(self, full: list[LiveRequest]) -> None:
        """Take back the blocks that `_extend_decoding` gave, before any other allocation."""
        for live in full:
            self._rows.shorten(live, 1)
        self.kv_block_allocator._untake(len(full))

    def _offsets_of(self, prefilling: list[LiveRequest], undo: ExitStack) -> list[tuple[int, ...]]:
        """Compute the offsets at which each chunk leaves a state."""
        slots = self.mamba_slot_allocator
        if slots is None:
            return [()] * len(prefilling)
        undo.callback(slots._offsets.of_request.clear)
        for live in prefilling:
            slots.compute_and_store_offsets(
                live.req,
                live.row,
                live.skip,
                live.chunk,
                live.matched,
                live.blocks[: live.matched],
                self._blocks_for(live.computed + live.chunk),
            )
        return slots.intermediate_offsets()

    def _plan(self, prefilling: list[LiveRequest], offsets: list[tuple[int, ...]]) -> tuple[RequestStep, ...]:
        size, dummy = self.block_size_tokens, self.kv_block_allocator.dummy_block_idx
        steps = [
            plan_step(live, self._rows.state_of(live), size, dummy) for live in self._rows.of(Region.DECODE)
        ]
        first_output = 0
        for live, left in zip(prefilling, offsets, strict=True):
            steps.append(plan_step(live, self._rows.state_of(live), size, dummy, left, first_output))
            first_output += len(left)
        return tuple(steps)

    def _end_step(self) -> None:
        self._step = None
        self.mamba_metadata.per_request_intermediate_counts = []
        self.mamba_metadata.intermediate_count = 0
