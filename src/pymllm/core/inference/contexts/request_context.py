"""The requests of a context between its steps: added, scheduled, paused, resumed and released."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.core.inference.contexts.forward_batch import RequestStep
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.live_request import (
    BatchDimensions,
    LiveRequest,
    Region,
    RequestRows,
    check_next_tokens,
    read_prompt,
)
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.core.inference.contexts.prefix_index import HashPage, PrefixIndex
from pymllm.core.inference.contexts.registered_blocks import NO_HASH, PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.slot_states import as_state_shape
from pymllm.errors import UsageError
from pymllm.mem_cache.arguments import LAST_INT32, as_device, as_row_dtype, as_size, make_zeros
from pymllm.mem_cache.cache_events import CacheEvent
from pymllm.mem_cache.ownership import OneOwner, refuse_other_thread
from pymllm.mem_cache.pools.rows import bit_view


class RequestContext(OneOwner):
    """The part of a `DynamicInferenceContext` between steps: requests with their blocks and states.

    ``max_requests``, ``num_blocks``, ``max_blocks_per_request``, ``block_size_tokens``, ``mamba_chunk_size``,
    ``mamba_slots``, ``num_mamba_layers``, ``conv_states_shape``, ``ssm_states_shape``, ``conv_states_dtype``,
    ``ssm_states_dtype``, ``prefix_caching_eviction_policy``, ``enable_prefix_caching``, ``paused_limit``,
    ``hash_page``, ``device``: as of `DynamicInferenceContext`. Laws: C1, C3, E2, E3, E4, X1.
    """

    _INSTEAD: ClassVar[str] = "build a new one with the same arguments, and add the requests there"

    def __init__(
        self,
        *,
        max_requests: int,
        num_blocks: int,
        max_blocks_per_request: int,
        block_size_tokens: int,
        mamba_chunk_size: int = 128,
        mamba_slots: int = 0,
        num_mamba_layers: int = 0,
        conv_states_shape: tuple[int, ...] = (),
        ssm_states_shape: tuple[int, ...] = (),
        conv_states_dtype: torch.dtype = torch.float32,
        ssm_states_dtype: torch.dtype = torch.float32,
        prefix_caching_eviction_policy: PrefixCachingEvictionPolicy = PrefixCachingEvictionPolicy.LRU,
        enable_prefix_caching: bool = True,
        paused_limit: int = 0,
        hash_page: HashPage | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.max_requests = as_size("max_requests", max_requests, maximum=LAST_INT32)
        self.max_blocks_per_request = as_size("max_blocks_per_request", max_blocks_per_request, 1, LAST_INT32)
        self.block_size_tokens = as_size("block_size_tokens", block_size_tokens)
        self.mamba_chunk_size = as_size("mamba_chunk_size", mamba_chunk_size)
        self.num_mamba_layers = as_size("num_mamba_layers", num_mamba_layers, minimum=0)
        slots = as_size("mamba_slots", mamba_slots, 0, LAST_INT32)
        if slots and not self.num_mamba_layers:
            raise ValueError(f"{slots} mamba_slots without num_mamba_layers have no states to keep")
        self.device = as_device(device)
        self.prefix_cache_lru_clock = 0
        self.kv_block_allocator = KVBlockAllocator(
            self,
            as_size("num_blocks", num_blocks, 2, LAST_INT32),
            paused_limit,
            enable_prefix_caching,
            prefix_caching_eviction_policy,
        )
        self.prefix_caching_eviction_policy = self.kv_block_allocator.prefix_caching_eviction_policy
        self._rows = RequestRows(self.max_requests, self.max_blocks_per_request)
        self.request_to_kv_block_ids = self._rows.block_table
        self.mamba_metadata = self._rows.metadata
        self.batch_dimensions = BatchDimensions(self._rows)
        self._index = PrefixIndex(self.kv_block_allocator, self.block_size_tokens, hash_page)
        self._live_by_id: dict[int, LiveRequest] = {}
        self._step: tuple[RequestStep, ...] | None = None
        self._step_thread = 0

        self.mamba_conv_states = self._new_live_states(
            "conv_states_shape", conv_states_shape, conv_states_dtype
        )
        self.mamba_ssm_states = self._new_live_states("ssm_states_shape", ssm_states_shape, ssm_states_dtype)
        self.mamba_slot_allocator: MambaSlotAllocator | None = None
        if slots:
            self.mamba_slot_allocator = MambaSlotAllocator(
                self,
                slots,
                self.num_mamba_layers,
                conv_states_shape,
                ssm_states_shape,
                conv_states_dtype,
                ssm_states_dtype,
            )
            self.kv_block_allocator.on_blocks_deregistered = (
                self.mamba_slot_allocator.on_kv_blocks_deregistered
            )

    @property
    def paused_request_count(self) -> int:
        """Return the number of paused requests, which are in the first rows."""
        return self._rows.count(Region.PAUSED)

    @property
    def requests(self) -> list[Any]:
        """Return the requests in the order of their rows."""
        return [live.req for live in self._rows]

    @property
    def waiting_requests(self) -> list[Any]:
        """Return the requests between two chunks, for which `schedule_chunk` is next."""
        return [live.req for live in self._rows.of(Region.WAITING)]

    def keep_events(self, are_kept: bool = True) -> None:
        """Record an event of each block registered or deregistered from now on (beyond the reference).

        Parameters
        ----------
        are_kept : bool
            False: keep none, and forget those that nobody took.

        Notes
        -----
        As `KVBlockAllocator.keep_events`, and each stored block comes with its tokens; cached states are not
        told. Law: X10.
        """
        self._index.keep_events(are_kept)

    def take_events(self) -> list[CacheEvent]:
        """Return the events since the last call, oldest first, and forget them (beyond the reference).

        Returns
        -------
        list of CacheEvent
            As `KVBlockAllocator.take_events`.
        """
        return self.kv_block_allocator.take_events()

    def add_request(self, req: Any, max_tokens: int | None = None, *, reserve: int | None = None) -> bool:
        """Add a request: match its prompt, and schedule its first chunk for the next step.

        Parameters
        ----------
        req : object
            Has ``prompt_tokens`` and ``finished_chunk_token_count``, which must be 0 and is kept up to date.
            Later calls name it by identity.
        max_tokens : int, optional
            The most tokens to compute in the first chunk; by default the whole prompt.
        reserve : int, optional
            Take the request up only if this many blocks would still be free or evictable once its whole
            prompt had blocks; by default its first chunk has to fit, and nothing else.

        Returns
        -------
        bool
            False if no row or too few blocks are left; nothing has changed then.

        Raises
        ------
        UsageError
            The request is there already, or has begun elsewhere.
        TypeError, ValueError
            The prompt is empty or no tokens, or longer than a request may be, ``max_tokens`` is below 1, or
            ``reserve`` below 0.
        RuntimeError
            A step is under way.

        Notes
        -----
        The cached blocks of the prompt are shared, all of them. What is not computed again ends at the
        deepest of them whose state is cached too (with attention alone: at the last), before the last
        token of the prompt. Cost: O(prompt). Laws: C3, E3, E4, X1.
        """
        self._refuse_in_step("add_request")
        limit = None if max_tokens is None else as_size("max_tokens", max_tokens)
        kept = None if reserve is None else as_size("reserve", reserve, minimum=0)
        prompt = self._read_new(req)
        if self._rows.is_full:
            return False
        with ExitStack() as undo:
            self._tick(undo)
            live = self._match(req, prompt, undo)
            if kept is not None and self._room() < self._blocks_for(prompt.size) - live.matched + kept:
                return False
            clock = self.kv_block_allocator._clock()
            matched = np.array(live.blocks, np.int64)
            lowered = self.kv_block_allocator._lowered(matched, clock)
            self._rows.open(live)
            undo.callback(self._rows.close, live)
            live.skip = self._resume(live)
            chunk = live.plan_chunk(limit)
            # The last that may fail: what follows wants no memory.
            new = self._allocate(self._blocks_for(chunk) - live.matched)
            if new is None:
                return False
            undo.pop_all()
        self.kv_block_allocator._stamp(matched, clock, lowered)
        self._rows.extend(live, new)
        self._live_by_id[id(req)] = live
        self._schedule(live, chunk)
        return True

    def schedule_chunk(self, req: Any, max_tokens: int | None = None) -> bool:
        """Schedule the next chunk of a request that waits for one.

        Parameters
        ----------
        req : object
            A request between two chunks.
        max_tokens : int, optional
            The most tokens to compute; by default all that is left of the prompt.

        Returns
        -------
        bool
            False if too few blocks are left; nothing has changed then.

        Raises
        ------
        UsageError
            The request is not here, or does not wait for a chunk.
        TypeError, ValueError
            ``max_tokens`` is no int, or below 1.
        RuntimeError
            A step is under way.

        Notes
        -----
        Cost: O(blocks of the chunk). Laws: E4, X1.
        """
        live = self._find(req, "schedule_chunk")
        if live.region is not Region.WAITING:
            raise UsageError(
                f"the request is in {live.region.name.lower()}; only one that waits takes a chunk"
            )
        chunk = live.plan_chunk(None if max_tokens is None else as_size("max_tokens", max_tokens))
        new = self._allocate(self._blocks_for(live.computed + chunk) - len(live.blocks))
        if new is None:
            return False
        self._rows.extend(live, new)
        self._schedule(live, chunk)
        return True

    def pause(self, req: Any) -> bool:
        """Pause a request, which keeps its blocks and its live state.

        Parameters
        ----------
        req : object
            A request that is not paused. A chunk that was scheduled has to be scheduled again.

        Returns
        -------
        bool
            False if paused requests would keep more blocks than ``paused_limit``, each counted once; nothing
            has changed then: release the request, and add it again later, with the tokens that it has
            generated at the end of its prompt.

        Raises
        ------
        UsageError
            The request is not here, or paused already.
        RuntimeError
            A step is under way.

        Notes
        -----
        Cost: O(blocks of the paused requests). Law: C1.
        """
        live = self._find(req, "pause")
        if live.region is Region.PAUSED:
            raise UsageError("the request is paused already")
        kept = set(live.blocks)
        for paused in self._rows.of(Region.PAUSED):
            kept.update(paused.blocks)
        if len(kept) > self.kv_block_allocator.paused_limit:
            return False
        live.chunk = 0
        self._rows.move(live, Region.PAUSED)
        return True

    def resume(self, req: Any) -> None:
        """Resume a paused request, which then decodes or waits for its next chunk.

        Parameters
        ----------
        req : object
            A paused request.

        Raises
        ------
        UsageError
            The request is not here, or not paused.
        RuntimeError
            A step is under way.

        Notes
        -----
        Cost: O(max_blocks_per_request).
        """
        live = self._find(req, "resume")
        if live.region is not Region.PAUSED:
            raise UsageError(f"the request is in {live.region.name.lower()}, not paused")
        self._rows.move(live, Region.DECODE if live.is_prefilled else Region.WAITING)

    def truncate(self, req: Any, tokens: int, next_token: int) -> None:
        """Cut the end off a request, such as rejected drafts, and append another token.

        Parameters
        ----------
        req : object
            A request whose prompt is computed: it decodes, or is paused.
        tokens : int
            Tokens that keep their KV: at least the prompt, at most what is computed.
        next_token : int
            The token behind these, in place of all that came there. The next step computes it.

        Raises
        ------
        UsageError
            The request is not here, its prompt is not computed, or another request has the block in which
            it is cut: release it, and add it again with all tokens that it keeps as its prompt.
        TypeError, ValueError
            ``tokens`` is no int or outside the bounds, or ``next_token`` is no token.
        RuntimeError
            A step is under way.

        Notes
        -----
        The blocks behind the cut are given back, as `release` does. A cut in the middle of a registered block
        deregisters it, and what is registered below it, since its other tokens are computed anew. Where
        others read that block the cut is refused: a copy would need a block just where memory is short, and
        the KV is the caller's. Nothing of a request is in such a block but what it has computed itself, so
        adding it again computes less than a block.

        A cut takes no memory, and cannot fail for want of any. With recurrent layers the live state is the
        caller's to set back to the one after ``tokens`` tokens before the next step: it was there when the
        first of the rejected tokens was computed. Cost: O(blocks behind the cut), and O(descendants) of a
        block that is deregistered. Laws: C1, C3, C6, E1, E2, E3, X1.
        """
        live = self._find(req, "truncate")
        if not live.is_prefilled:
            raise UsageError(
                f"{live.computed} of {live.prompt.size} prompt tokens are computed; "
                "a cut comes behind the prompt"
            )
        length = as_size("tokens", tokens, live.prompt.size, live.computed)
        (token,) = check_next_tokens([next_token], [True])
        allocator, (whole, offset) = self.kv_block_allocator, divmod(length, self.block_size_tokens)
        rewritten = live.blocks[whole : whole + 1] if offset else []
        for block in rewritten:
            if (references := allocator._ref_counts.item(block)) > 1:
                raise UsageError(
                    f"{references} requests have block {block}, in which token {length} would be replaced; "
                    "release this request, and add it again with the tokens that it keeps"
                )
        tail = live.blocks[self._blocks_for(length) :]
        with ExitStack() as undo:
            self._tick(undo)
            clock = allocator._clock()
            given_back = allocator._plan_release(tail)
            lowered = allocator._lowered(given_back.given, clock)
            undo.pop_all()
        allocator._stamp(given_back.given, clock, lowered)
        self._rows.shorten(live, len(tail))
        live.cut(length, whole, token)
        live.is_known = not whole or allocator._known.of_block.item(live.blocks[whole - 1]) != NO_HASH
        # Last, since an observer may raise: the tail is gone by then.
        allocator._give_back(given_back, rewritten)

    def release(self, req: Any) -> None:
        """Release a request, finished or not, and give back all its memory.

        Parameters
        ----------
        req : object
            A request in whatever region.

        Raises
        ------
        UsageError
            The request is not here.
        RuntimeError
            A step is under way.

        Notes
        -----
        Its registered blocks are stamped, so what was used last goes last. Its ``finished_chunk_token_count``
        is 0 again: it may be added once more. Cost: O(its blocks). Laws: C1, E3, X2.
        """
        live = self._find(req, "release")
        with ExitStack() as undo:
            self._tick(undo)
            clock = self.kv_block_allocator._clock()
            given_back = self.kv_block_allocator._plan_release(live.blocks)
            lowered = self.kv_block_allocator._lowered(given_back.given, clock)
            req.finished_chunk_token_count = 0
            undo.pop_all()
        self.kv_block_allocator._stamp(given_back.given, clock, lowered)
        del self._live_by_id[id(req)]
        self._rows.close(live)
        # Last, since an observer may raise: the request is gone by then.
        self.kv_block_allocator._give_back(given_back)

    def begin_transfer(self, req: Any) -> int:
        """Hold the blocks of a request for a use outside the context, until `end_transfer`.

        Parameters
        ----------
        req : object
            A request in whatever region. It may go on, be paused or released meanwhile; blocks that it gets
            later are not held.

        Returns
        -------
        int
            The number of the transfer, for `end_transfer`. No other transfer of this context ever has it.

        Raises
        ------
        UsageError
            The request is not here.
        RuntimeError
            A step is under way.

        Notes
        -----
        As `KVBlockAllocator.begin_transfer`. Laws: C1, E3, X1, X2.
        """
        return self.kv_block_allocator.begin_transfer(self._find(req, "begin_transfer").blocks)

    def end_transfer(self, transfer: int) -> None:
        """Release the blocks of a transfer, whose use has ended.

        Parameters
        ----------
        transfer : int
            What `begin_transfer` returned.

        Raises
        ------
        OwnershipError
            No such transfer is under way: it has ended, in a `reset` perhaps, or never began.
        TypeError
            ``transfer`` is not an integer.
        RuntimeError
            A step is under way.

        Notes
        -----
        As `KVBlockAllocator.end_transfer`. Laws: C1, E3, X1, X2.
        """
        self._refuse_in_step("end_transfer")
        self.kv_block_allocator.end_transfer(transfer)

    def _new_live_states(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        if not self.num_mamba_layers:
            return None
        whole = (self.num_mamba_layers, self.max_requests, *as_state_shape(name, shape))
        return make_zeros("a buffer", whole, as_row_dtype(dtype, self.device), self.device)

    def _read_new(self, req: Any) -> NDArray[np.uint32]:
        """Check a request to be added, and return its prompt."""
        if id(req) in self._live_by_id:
            raise UsageError("the request is here already; release it first")
        if req.finished_chunk_token_count != 0:
            raise UsageError(
                f"the request has finished {req.finished_chunk_token_count} tokens; a new one starts at 0"
            )
        prompt = read_prompt(req)
        most = min(self.max_blocks_per_request, self.kv_block_allocator.dummy_block_idx)
        if self._blocks_for(prompt.size) > most:
            raise ValueError(
                f"a prompt of {prompt.size} tokens needs {self._blocks_for(prompt.size)} blocks, "
                f"a request may have {most}; cut it"
            )
        return prompt

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size_tokens)

    def _room(self) -> int:
        """Return the number of blocks that are free or evictable."""
        return self.kv_block_allocator.pool_avail + self.kv_block_allocator.evictable_blocks

    def _tick(self, undo: ExitStack) -> None:
        """Advance the clock for a change that may be undone."""
        undo.callback(setattr, self, "prefix_cache_lru_clock", self.prefix_cache_lru_clock)
        self.prefix_cache_lru_clock += 1

    def _match(self, req: Any, prompt: NDArray[np.uint32], undo: ExitStack) -> LiveRequest:
        """Add references to the cached blocks of a prompt, and return them."""
        blocks, digests = self._index.match(prompt)
        # Held before anything is allocated: what makes room must not be what was found.
        self.kv_block_allocator.retain_memory_blocks(blocks)
        undo.callback(self.kv_block_allocator._let_go, blocks)
        return LiveRequest(req, prompt, blocks, digests, matched=len(blocks), registered=len(blocks))

    def _resume(self, live: LiveRequest) -> int:
        """Restore the deepest usable state for a new request, and return the number of tokens it covers."""
        most = min(live.matched, (live.prompt.size - 1) // self.block_size_tokens)
        if self.mamba_conv_states is None or self.mamba_ssm_states is None:
            return most * self.block_size_tokens
        slots = self.mamba_slot_allocator
        if slots is not None:
            usable = (count for count in range(most, 0, -1) if slots.has_state(live.blocks[count - 1]))
            found = next(usable, 0)
            if found and slots.restore_to_live(live.row, live.blocks[found - 1]):
                return found * self.block_size_tokens
        for states in (self.mamba_conv_states, self.mamba_ssm_states):
            bit_view(states)[:, self._rows.state_of(live)].zero_()
        return 0

    def _allocate(self, count: int) -> list[int] | None:
        if self.kv_block_allocator.allocate_memory_blocks(max(count, 0)) is None:
            return None
        return self.kv_block_allocator._last_taken(max(count, 0))

    def _schedule(self, live: LiveRequest, chunk: int) -> None:
        live.chunk = chunk
        self._rows.move(live, Region.PREFILL)

    def _find(self, req: Any, act: str) -> LiveRequest:
        self._refuse_in_step(act)
        live = self._live_by_id.get(id(req))
        if live is None:
            raise UsageError(f"cannot {act} a request that is not here: it was never added, or was released")
        return live

    def _refuse_in_step(self, act: str) -> None:
        self.kv_block_allocator._observer.refuse(act)  # rows do not move under whoever called it
        if self._step is not None:
            refuse_other_thread(act, "context", self._step_thread, "is in a step")
            raise RuntimeError(f"{act} was called during a step: commit_step or abort_step comes first")
