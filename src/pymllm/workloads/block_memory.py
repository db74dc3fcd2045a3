"""The requests' side of a context: its calls, timed for each request, counted, and checked in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns

import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.core.inference.contexts.kv_block_allocator import PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.prefix_index import HashPage
from pymllm.workloads.block_watch import BlockWatch, Snapshot
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_report import MemoryCounts, MemoryUse
from pymllm.workloads.live_request import BlockRequest

_LAYERS = 2
_CONV_SHAPE, _CONV_DTYPE = (3,), torch.bfloat16
_SSM_SHAPE, _SSM_DTYPE = (2, 2), torch.float32


class MeasuredContext(DynamicInferenceContext):
    """A `DynamicInferenceContext` that counts and times the allocations that had to evict blocks."""

    evict_calls = 0
    evicted_blocks = 0
    evict_ns = 0

    def room(self) -> int:
        """Count the blocks that are free or evictable (law E4)."""
        return self._room()

    def blocks_for(self, tokens: int) -> int:
        """Count the blocks that some tokens take."""
        return self._blocks_for(tokens)

    def cached_states(self) -> int:
        """Count the cached states."""
        slots = self.mamba_slot_allocator
        return 0 if slots is None else slots.max_slots - slots.free_count

    def missing_blocks(self, req: BlockRequest) -> int:
        """Count the blocks that the rest of a request's prompt will take."""
        live = self._live_by_id[id(req)]
        return max(0, self._blocks_for(live.prompt.size) - len(live.blocks))

    def scheduled_tokens(self, req: BlockRequest) -> int:
        """Count the tokens of a request's scheduled chunk that are computed; 0 without one."""
        live = self._live_by_id[id(req)]
        return live.chunk - live.skip if live.chunk else 0

    def note_hit(self, req: BlockRequest) -> None:
        """Tell a request that was just added how much of it was cached, and how much is computed again."""
        live = self._live_by_id[id(req)]
        usable = (live.prompt.size - 1) // self.block_size_tokens
        req.cached_tokens = min(live.matched, usable) * self.block_size_tokens
        req.resumed_tokens = live.skip

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
    """Build the empty context of a rounded configuration, with the smallest states of all dimensions."""
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
    """The requests' side of one engine's context, to which nobody else adds requests.

    Times are those of whole calls: adding a request is its match, a commit the insert of all in the batch,
    leaving, pausing and resuming are locking, and of each the part that evicts blocks is eviction.
    """

    def __init__(self, context: MeasuredContext, watch: BlockWatch, check_every: int) -> None:
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
        """Tell how much is in use now."""
        kv, size = self.context.kv_block_allocator, self.context.block_size_tokens
        stored = (kv.dummy_block_idx - kv.pool_avail) * size
        return MemoryUse(stored - kv.evictable_blocks * size, stored, self.context.cached_states())

    def counts(self) -> MemoryCounts:
        """Tell what was done so far."""
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
        """Let a request match and have blocks for a first chunk, if ``reserve`` blocks and a row are left."""
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
        """Begin a step; ``growing`` requests begin a block and may evict: too few is a `CapacityError`."""
        with self._evicting(growing):
            batch = self.context.begin_step()
        self._count()
        return batch

    def commit(self, batch: ForwardBatch, next_tokens: list[int], left: Sequence[Snapshot]) -> None:
        """Register what a step has computed, and cache what it has ``left`` where there is a slot."""
        blocks = dict.fromkeys(snapshot.block for snapshot in left)
        before = self.context.cached_states()
        fresh = [block for block in blocks if not self._has_state(block)]
        began = perf_counter_ns()
        self.context.commit_step(next_tokens)
        share = (perf_counter_ns() - began) // max(1, len(batch))
        for step in batch.requests:
            step.req.times.insert_ns += share
        kept = sum(map(self._has_state, fresh))
        hash_of = self.context.kv_block_allocator.block_hashes
        self._skipped_snapshots += sum(int(hash_of[block]) > 0 for block in fresh) - kept
        evicted = before + kept - self.context.cached_states()
        self._evicted_states += evicted
        self._state_evictions += evicted > 0
        self.changes += any(step.start < step.req.prompt_length for step in batch.requests)
        self._watch.note_commit(left)
        self._count()

    # -- giving back -----------------------------------------------------------------------------------

    def pause(self, live: BlockRequest) -> bool:
        """Set a request aside with its blocks; False if paused ones would keep too many."""
        with self._releasing(live):
            return self.context.pause(live)

    def resume(self, live: BlockRequest) -> None:
        """Let a paused request go on."""
        with self._releasing(live):
            self.context.resume(live)

    def release(self, live: BlockRequest) -> None:
        """Give back everything that a request has."""
        self._watch.note_release(live)
        with self._releasing(live):
            self.context.release(live)
        live.forget_memory()

    def _has_state(self, block: int) -> bool:
        slots = self.context.mamba_slot_allocator
        return slots is not None and slots.has_state(block)

    @contextmanager
    def _evicting(self, payers: Sequence[BlockRequest]) -> Iterator[Callable[[], int]]:
        """Charge what is evicted within to some requests, evenly; states go with their blocks."""
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
            self._watch.check_books()
