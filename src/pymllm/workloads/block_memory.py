"""The requests' side of a context: its calls, timed for each request, counted, and checked in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns

from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.workloads.block_context import MeasuredContext
from pymllm.workloads.block_request import BlockRequest
from pymllm.workloads.block_snapshots import Snapshot
from pymllm.workloads.block_watch import BlockWatch
from pymllm.workloads.memory_figures import MemoryCounts, MemoryUse

__all__ = ["BlockMemory"]


class BlockMemory:
    """The requests' side of one engine's context.

    Parameters
    ----------
    context : MeasuredContext
        Nobody else adds requests to it.
    watch : BlockWatch
        Told of what is cached and given back, and asked to check.
    check_every : int
        Let ``watch`` check after every n-th operation; 0 never does.

    Attributes
    ----------
    changes : int
        Counts up whenever a waiting request's chance may have become better.

    Notes
    -----
    Times are those of whole calls: adding a request is its match, a commit the insert of all in the batch,
    leaving, pausing and resuming are locking, and of each the part that evicts blocks is eviction.
    """

    def __init__(self, context: MeasuredContext, watch: BlockWatch, check_every: int) -> None:
        self.context = context
        self.changes = 0
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
        """Let a request match and have blocks for its first chunk, of at most ``limit`` tokens.

        Returns
        -------
        bool
            False if no row is left, or its prompt would leave fewer than ``reserve`` blocks.
        """
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
        """Begin a step; ``growing`` are the decoding requests that begin a block, and may have to evict.

        Raises
        ------
        CapacityError
            There are too few blocks for them.
        """
        with self._evicting(growing):
            batch = self.context.begin_step()
        self._count()
        return batch

    def commit(self, batch: ForwardBatch, next_tokens: list[int], left: Sequence[Snapshot]) -> None:
        """Register what a step has computed, and cache the states that it has ``left``.

        Notes
        -----
        A state that finds no slot is left out, and counted.
        """
        blocks = dict.fromkeys(snapshot.block for snapshot in left)
        before, fresh = (
            self.context.cached_states(),
            [block for block in blocks if not self._has_state(block)],
        )
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
