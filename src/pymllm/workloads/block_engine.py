"""The simulated engine over a context of blocks, which decides what each step computes.

An iteration is one step of the context: a token of every decoding request, and chunks of prompts. Where
blocks run out, a request is set aside with its blocks, so that the others grow; where too many blocks are
set aside, one is thrown back into the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns

import numpy as np
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch, RequestStep
from pymllm.core.inference.contexts.kv_block_allocator import PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.prefix_index import HashPage
from pymllm.errors import CapacityError, InvariantViolation
from pymllm.invariants.blocks import check_dynamic_context
from pymllm.workloads.block_context import EngineContext
from pymllm.workloads.block_watch import BlockOnlooker, BlockWatch, Snapshot, snapshots_of
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_loop import EngineLoop
from pymllm.workloads.engine_report import MemoryCounts, MemoryUse
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request
from pymllm.workloads.source import Source, Stage

_LAYERS = 2
_CONV_SHAPE, _CONV_DTYPE = (3,), torch.bfloat16
_SSM_SHAPE, _SSM_DTYPE = (2, 2), torch.float32


class MeasuredContext(DynamicInferenceContext):
    """A `DynamicInferenceContext` that counts and times the allocations that had to evict blocks."""

    evict_calls = 0
    evicted_blocks = 0
    evict_ns = 0

    @property
    def total_blocks(self) -> int:
        """The number of blocks without the dummy, whose id is this number."""
        return self.kv_block_allocator.dummy_block_idx

    @property
    def free_blocks(self) -> int:
        """The number of free blocks."""
        return self.kv_block_allocator.pool_avail

    @property
    def cached_blocks(self) -> int:
        """The number of evictable blocks."""
        return self.kv_block_allocator.evictable_blocks

    def room(self) -> int:
        """Return the number of blocks that are free or evictable (law E4)."""
        return self._room()

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for a number of tokens."""
        return self._blocks_for(tokens)

    def cached_states(self) -> int:
        """Return the number of cached states."""
        slots = self.mamba_slot_allocator
        return 0 if slots is None else slots.max_slots - slots.free_count

    def has_state(self, block: int) -> bool:
        """Tell whether a state is cached for a block."""
        slots = self.mamba_slot_allocator
        return slots is not None and slots.has_state(block)

    def is_registered(self, block: int) -> bool:
        """Tell whether a block can be found by its hash."""
        return int(self.kv_block_allocator.block_hashes[block]) > 0

    def blocks_of(self, req: BlockRequest) -> int:
        """Return the number of blocks of a request."""
        return len(self._live_by_id[id(req)].blocks)

    def missing_blocks(self, req: BlockRequest) -> int:
        """Return the number of blocks that the remaining prompt of a request needs."""
        live = self._live_by_id[id(req)]
        return max(0, self._blocks_for(live.prompt.size) - len(live.blocks))

    def scheduled_tokens(self, req: BlockRequest) -> int:
        """Return the number of tokens that a request's scheduled chunk computes; 0 without a chunk."""
        live = self._live_by_id[id(req)]
        return live.chunk - live.skip if live.chunk else 0

    def note_hit(self, req: BlockRequest) -> None:
        """Report to a new request how many of its tokens are cached, and how many of these are recomputed."""
        live = self._live_by_id[id(req)]
        usable = (live.prompt.size - 1) // self.block_size_tokens
        req.cached_tokens = min(live.matched, usable) * self.block_size_tokens
        req.resumed_tokens = live.skip

    def references_of(self, blocks: np.ndarray) -> np.ndarray:
        """Return the number of references to each of some blocks."""
        counts: np.ndarray = self.kv_block_allocator.block_ref_counts.numpy()[blocks]
        return counts

    def referenced_blocks(self) -> list[int]:
        """Return the blocks that have references."""
        blocks: list[int] = self.kv_block_allocator.block_ref_counts.nonzero().flatten().tolist()
        return blocks

    def walk(self) -> None:
        """Check all trackers of the context (laws C1 to C8)."""
        check_dynamic_context(self)

    def empty(self) -> None:
        """Evict every cached block, by allocating all blocks (law E3)."""
        kv = self.kv_block_allocator
        blocks = kv.allocate_memory_blocks(kv.dummy_block_idx)
        if blocks is None:
            raise InvariantViolation(
                "E3", f"{kv.dummy_block_idx} blocks are free or evictable, and not given"
            )
        kv.release_memory_blocks(blocks)

    def _allocate(self, count: int) -> list[int] | None:
        missing = count - self.kv_block_allocator.pool_avail
        if missing <= 0:
            return super()._allocate(count)
        began = perf_counter_ns()
        blocks = super()._allocate(count)
        self.evict_ns += perf_counter_ns() - began
        if blocks is not None:
            self.evict_calls += 1
            self.evicted_blocks += missing
        return blocks


def make_block_context(config: EngineConfig, hash_page: HashPage | None = None) -> MeasuredContext:
    """Build the empty context of a rounded configuration, with the smallest possible recurrent states."""
    assert config.track_slots is not None
    assert config.mamba_chunk_size is not None
    assert config.eviction_policy is not None
    assert config.paused_capacity is not None
    return MeasuredContext(
        max_requests=config.max_running,
        num_blocks=config.capacity // config.page_size + 1,
        max_blocks_per_request=-(-config.max_context // config.page_size),
        block_size_tokens=config.page_size,
        mamba_chunk_size=config.mamba_chunk_size,
        mamba_slots=config.track_slots,
        num_mamba_layers=_LAYERS,
        conv_states_shape=_CONV_SHAPE,
        ssm_states_shape=_SSM_SHAPE,
        conv_states_dtype=_CONV_DTYPE,
        ssm_states_dtype=_SSM_DTYPE,
        prefix_caching_eviction_policy=PrefixCachingEvictionPolicy(config.eviction_policy),
        paused_limit=config.paused_capacity // config.page_size,
        hash_page=hash_page,
        device=config.device,
    )


class BlockMemory:
    """The memory of an engine's requests, in a context to which only this engine adds requests.

    Times are those of whole calls: adding a request is its match, a commit the insert of all in the batch,
    leaving, pausing and resuming are locking, and of each the part that evicts blocks is eviction.
    """

    def __init__(self, context: EngineContext, watch: BlockWatch, check_every: int) -> None:
        self.context = context
        self.changes = 0  # counts up whenever the chance of who waits may have become better
        self._watch = watch
        self._check_every = check_every
        self._operations = 0
        self._checks = 0
        self._state_evictions = 0
        self._evicted_states = 0
        self._skipped_snapshots = 0

    # -- how much there is -----------------------------------------------------------------------------

    def use(self) -> MemoryUse:
        """Return the memory in use now."""
        context, size = self.context, self.context.block_size_tokens
        stored = (context.total_blocks - context.free_blocks) * size
        return MemoryUse(stored - context.cached_blocks * size, stored, context.cached_states())

    def counts(self) -> MemoryCounts:
        """Return the counts of memory operations so far."""
        return MemoryCounts(
            evict_calls=self.context.evict_calls + self._state_evictions,
            evicted_tokens=self.context.evicted_blocks * self.context.block_size_tokens,
            evicted_swa_tokens=0,
            dead_window_tokens=None,
            evicted_states=self._evicted_states,
            skipped_snapshots=self._skipped_snapshots,
            cache_operations=self._operations,
            invariant_checks=self._checks,
        )

    # -- taking ----------------------------------------------------------------------------------------

    def add(self, live: BlockRequest, limit: int, reserve: int) -> bool:
        """Match a request and give it blocks for a first chunk, if ``reserve`` blocks and a row remain."""
        began = perf_counter_ns()
        with self._evicting([live]) as evicted:
            added = self.context.add_request(live, limit, reserve=reserve)
        live.times.match_ns += perf_counter_ns() - began - evicted()
        if added:
            self.context.note_hit(live)
        self._count()
        return added

    def schedule(self, live: BlockRequest, limit: int) -> bool:
        """Give a request blocks for its next chunk; False if there are too few."""
        with self._evicting([live]):
            scheduled = self.context.schedule_chunk(live, limit)
        self._count()
        return scheduled

    def begin(self, growing: Sequence[BlockRequest]) -> ForwardBatch:
        """Begin a step in which ``growing`` requests need a block each, or raise `CapacityError`."""
        with self._evicting(growing):
            batch = self.context.begin_step()
        self._count()
        return batch

    def commit(self, batch: ForwardBatch, next_tokens: list[int], left: Sequence[Snapshot]) -> None:
        """Register a step's computed blocks, and cache the states that it ``left`` if slots are free."""
        blocks = dict.fromkeys(snapshot.block for snapshot in left)
        before = self.context.cached_states()
        fresh = [block for block in blocks if not self.context.has_state(block)]
        began = perf_counter_ns()
        self.context.commit_step(next_tokens)
        share = (perf_counter_ns() - began) // max(1, len(batch))
        for step in batch.requests:
            step.req.times.insert_ns += share
        kept = sum(map(self.context.has_state, fresh))
        self._skipped_snapshots += sum(map(self.context.is_registered, fresh)) - kept
        evicted = before + kept - self.context.cached_states()
        self._evicted_states += evicted
        self._state_evictions += evicted > 0
        self.changes += any(step.start < step.req.prompt_length for step in batch.requests)
        self._watch.note_commit(left)
        self._count()

    # -- giving back -----------------------------------------------------------------------------------

    def pause(self, live: BlockRequest) -> bool:
        """Pause a request with its blocks; return False if paused requests would keep too many."""
        with self._releasing(live):
            return self.context.pause(live)

    def resume(self, live: BlockRequest) -> None:
        """Resume a paused request."""
        with self._releasing(live):
            self.context.resume(live)

    def release(self, live: BlockRequest) -> None:
        """Give back all memory of a request."""
        self._watch.note_release(live)
        with self._releasing(live):
            self.context.release(live)
        live.forget_memory()

    @contextmanager
    def _evicting(self, payers: Sequence[BlockRequest]) -> Iterator[Callable[[], int]]:
        """Charge the evictions in a ``with`` block evenly to some requests, and count the states evicted."""
        before, states = self.context.evict_ns, self.context.cached_states()
        yield lambda: self.context.evict_ns - before
        for live in payers:
            live.times.evict_ns += (self.context.evict_ns - before) // len(payers)
        self._evicted_states += states - self.context.cached_states()

    @contextmanager
    def _releasing(self, live: BlockRequest) -> Iterator[None]:
        began = perf_counter_ns()
        yield
        live.times.lock_ns += perf_counter_ns() - began
        self.changes += 1
        self._count()

    def _count(self) -> None:
        self._operations += 1
        if self._check_every and self._operations % self._check_every == 0:
            self._checks += 1
            self._watch.check_invariants()


class BlockEngine(EngineLoop[BlockRequest]):
    """One engine over a `DynamicInferenceContext`, and one run of it. Not thread-safe. Laws: C1-C8, E1-E6.

    ``source`` is not asked of a request that is held and not admitted. A ``context``, new and of the
    configuration's sizes, is driven instead of the one that the configuration describes; ``running`` and
    ``paused`` are in the context, in order of admission and of pausing.

    Examples
    --------
    >>> from pymllm.workloads.source import RandomSource
    >>> config = EngineConfig(cache="blocks", page_size=4, capacity=256, content_check=True)
    >>> report = BlockEngine(config, RandomSource(seed=1)).run()
    >>> report.finished + report.aborted + report.rejected == report.requests == 100
    True
    """

    def __init__(
        self,
        config: EngineConfig,
        source: Source,
        *,
        progress: Callable[[int], None] | None = None,
        context: EngineContext | None = None,
        onlooker: BlockOnlooker | None = None,
    ) -> None:
        config = config.rounded()
        self._context: EngineContext = make_block_context(config) if context is None else context
        self.watch = BlockWatch(config, self._context, onlooker)
        self.memory = BlockMemory(self._context, self.watch, config.check_every)
        super().__init__(config, source, progress, self.memory, self.watch)
        self.running: list[BlockRequest] = []
        self.paused: list[BlockRequest] = []
        self._has_made_room = False

    # -- running ---------------------------------------------------------------------------------------

    def lives(self) -> list[BlockRequest]:
        """Return the requests in the context, running ones first."""
        return [*self.running, *self.paused]

    def evict_everything(self) -> None:
        """Empty the cache and check that the pools own everything (law E3)."""
        self.check_quiescent()
        self._context.empty()
        self.watch.check_emptied()

    def _check_invariants(self) -> None:
        """Compare the requests in the context with the engine's; operations check the trackers."""
        self.watch.check_lives(self.lives())

    def _iterate(self) -> None:
        self._has_made_room = False
        self._resume()
        self._schedule()
        if self.running:
            self._compute()

    # -- arrivals and aborts -----------------------------------------------------------------------------

    def _receive(self, request: Request, place: int) -> BlockRequest:
        return BlockRequest(request, place)

    def _can_ever_fit(self, live: BlockRequest) -> bool:
        return live.final_length <= self.config.max_context

    def by_stage(self) -> Sequence[tuple[Stage, list[BlockRequest]]]:
        """Return the requests that may be aborted, with the stage of each."""
        lives = self.lives()
        return (
            (Stage.QUEUED, list(self.queue)),
            (Stage.PREFILL, [live for live in lives if not live.is_prefilled]),
            (Stage.DECODE, [live for live in lives if live.is_prefilled]),
        )

    def _abort(self, live: BlockRequest) -> None:
        self.watch.notice(Event.ABORTED, live)
        if live in self.queue:
            self._leave_queue(live)
        else:
            self._tally.count_leaving(live)
            self._leave(live)
        self._tally.aborted += 1
        self._note_end(live)

    def _leave(self, live: BlockRequest) -> None:
        """Take a request out of the context."""
        (self.paused if live in self.paused else self.running).remove(live)
        self.memory.release(live)

    # -- what the next step computes -------------------------------------------------------------------

    def _schedule(self) -> None:
        """Spend the step's budget of prompt tokens, first on admitted requests and then on new ones."""
        budget = self.config.chunk_tokens
        for live in list(self.running):
            if budget and live in self.running and not live.is_prefilled:
                budget -= self._schedule_chunk(live, budget)
        # Who was set aside comes first, and who has just made room must not take it back.
        while budget and not self.paused and not self._has_made_room:
            admitted = self._admit_next(budget)
            if admitted is None:
                break
            budget -= self._context.scheduled_tokens(admitted)

    def _schedule_chunk(self, live: BlockRequest, budget: int) -> int:
        """Schedule a request's next chunk; return its tokens, or 0 if the request itself had to make room."""
        limit = self._ask_for_chunk(live, min(budget, live.prompt_length - live.length))
        while not self.memory.schedule(live, limit):
            self._make_room()
            if live not in self.running:
                return 0
        return limit

    def _admit_next(self, budget: int) -> BlockRequest | None:
        """Admit the oldest waiting request, if memory suffices for it (law E4)."""
        is_full = len(self.running) == self.config.max_running
        if is_full or not self._may_ask_again():
            return None
        live = self.queue[0]
        limit = self._ask_for_chunk(live, min(budget, live.prompt_length))
        reserve = self._reserve()
        self.watch.check_reserve(live, reserve, self.running)
        if not self.memory.add(live, limit, reserve):
            self._refuse(live)
            return None
        self.running.append(self.queue.popleft())
        self._tally.count_admission(live)
        self.watch.notice(Event.ADMITTED, live)
        return live

    def _reserve(self) -> int:
        """Return the number of blocks promised to running requests, for prompts and next decoded tokens."""
        promised = sum(map(self._context.missing_blocks, self.running))
        return promised + sum(map(self._headroom, self.running))

    def _headroom(self, live: BlockRequest) -> int:
        """Return the number of blocks that a decoding request needs for its next few tokens."""
        if not live.is_prefilled:
            return 0
        grown = min(live.final_length, live.length + self.config.decode_headroom)
        return self._context.blocks_for(grown) - self._context.blocks_for(live.length)

    def _refuse(self, live: BlockRequest) -> None:
        self.watch.notice(Event.REFUSED, live)
        self._remember_refusal()
        if not self.running:
            self._check_invariants()  # what somebody leaked is why there is no room
            raise InvariantViolation(
                "E4",
                f"request {live.request_id} fits and is alone, but is refused its {live.prompt_length} "
                f"tokens with {self._context.room()} blocks free or evictable",
            )

    # -- computing -------------------------------------------------------------------------------------

    def _compute(self) -> None:
        batch = self._begin()
        left = snapshots_of(batch, self.config.page_size) if self.config.track_slots else []
        self.watch.compute(batch, left)
        stops = [step.start + len(step.tokens) for step in batch.requests]
        tokens = [step.req.token_after(stop) for step, stop in zip(batch.requests, stops, strict=True)]
        self.memory.commit(batch, tokens, left)
        for step, stop in zip(batch.requests, stops, strict=True):
            self._go_on(step, stop)

    def _begin(self) -> ForwardBatch:
        size = self.config.page_size
        while True:
            growing = [live for live in self.running if live.is_prefilled and live.length % size == 0]
            try:
                return self.memory.begin(growing)
            except CapacityError:
                self._make_room()

    def _go_on(self, step: RequestStep, stop: int) -> None:
        """Advance a request by the tokens that a step computed, and finish it after its last token."""
        live: BlockRequest = step.req
        was_prefilled, live.length = live.is_prefilled, stop
        if not was_prefilled:
            self._tally.count_computed(live, len(step.tokens))
        live.is_unread = not live.is_prefilled
        if stop == live.final_length:
            self.watch.check_step(step, stop)
            self.watch.notice(Event.FINISHED, live)
            self._leave(live)
            self._tally.count_finish(live)
            self._note_end(live)

    # -- making room -----------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Stop one request to free memory: pause a running one, or retract one if pausing is refused."""
        self._has_made_room = True
        if len(self.running) > 1:
            live = self._ask_for_victim(self.running)
            if not self._pause(live):
                self._retract(live)
        elif self.paused:
            self._retract(self._ask_for_victim(self.paused))
        else:
            self._check_invariants()
            raise InvariantViolation(
                "E4",
                f"request {self.running[0].request_id} is alone and fits, but cannot grow: only "
                f"{self._context.room()} blocks are free or evictable",
            )

    def _pause(self, live: BlockRequest) -> bool:
        if not self.memory.pause(live):
            return False
        self.watch.notice(Event.PAUSED, live)
        self.running.remove(live)
        self.paused.append(live)
        self._tally.pauses += 1
        return True

    def _resume(self) -> None:
        """Resume paused requests in the order of pausing, while there is room to grow."""
        while self.paused:
            live = self.paused[0]
            needed = self._headroom(live) + self._context.missing_blocks(live)
            if self.running and self._context.room() < self._reserve() + max(1, needed):
                return
            self.memory.resume(live)
            self.watch.notice(Event.RESUMED, live)
            self.running.append(self.paused.pop(0))
            live.is_unread = True

    def _retract(self, live: BlockRequest) -> None:
        """Put a request back into the queue, with its output so far as part of its prompt."""
        self.watch.notice(Event.RETRACTED, live)
        self._tally.count_leaving(live)
        live.keep_produced()
        self._leave(live)
        self.queue.appendleft(live)
        self._tally.retractions += 1
