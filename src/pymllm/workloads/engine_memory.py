"""The memory operations of an engine's requests: match, hold, allocate, share computed pages, free.

Every range of a row belongs either to the cache, under the request's hold, or to the request (`LiveRequest`
draws it). All transfers between the two are in this file; who may run is the scheduler's business.

A state is good after exactly the token at which it was taken. So a prompt is computed in pieces that end
where a snapshot is due: at the end of its whole pages, and where the cache has seen prompts part. A snapshot
for which no track slot can be had is left out, which costs later hits and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.base_prefix_cache import InsertResult
from pymllm.workloads.cache_probe import CacheProbe, CacheTimes
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_pools import CacheKind, EnginePools, StatePool
from pymllm.workloads.engine_report import MemoryCounts, MemoryUse
from pymllm.workloads.engine_watch import EngineWatch, Event
from pymllm.workloads.live_request import DecodeBatch, LiveRequest


class EngineStates:
    """The recurrent states of an engine's requests, in the engine's own pool (laws M1, M2, P5, E1, E3)."""

    def __init__(
        self, pool: StatePool, kind: CacheKind, probe: CacheProbe, watch: EngineWatch, page_size: int
    ) -> None:
        self.skipped = 0  # snapshots for which no track slot could be had
        self._pool = pool
        self._kind = kind
        self._probe = probe
        self._watch = watch
        self._page_size = page_size

    def held(self) -> int:
        """Return the number of track slots that are not free."""
        return self._pool.max_track_slots - self._pool.available_track_slots()

    def begin(self, live: LiveRequest) -> None:
        """Fill a new row's working state from the state at the end of the held prefix (law M2)."""
        if not live.held_length:
            self._pool.reset_states(live.row)
            self._watch.note_reset(live.row)
            return
        track_slot = self._kind.state_of(live.held_node)
        if track_slot is None:
            raise InvariantViolation(
                "M2",
                f"request {live.request_id} was given a prefix of {live.held_length} tokens, which does not "
                "end at a state",
            )
        self._copy(track_slot, live.row)

    def next_stop(self, live: LiveRequest) -> int:
        """Return the token at which the next chunk of a prompt must stop."""
        return next((stop for stop in self._stops(live) if stop > live.length), live.prompt_length)

    def _stops(self, live: LiveRequest) -> tuple[int, int]:
        return live.branching_length, live.prompt_length // self._page_size * self._page_size

    def reserve(self, live: LiveRequest, end: int) -> None:
        """Give a request a track slot, after an eviction if needed, if a snapshot is due by token ``end``."""
        if live.track_slot or end not in self._stops(live):
            return
        slot = self._pool.alloc_track_slot()
        if slot is None:
            self._probe.evict(0, 1, [live.times])
            slot = self._pool.alloc_track_slot()
        live.track_slot = slot or 0

    def is_due(self, live: LiveRequest) -> bool:
        """Tell whether a snapshot is due now, and count a due one that has no track slot."""
        if not live.track_slot and live.length in self._stops(live):
            self.skipped += 1
            self._watch.notice(Event.SNAPSHOT_SKIPPED, live)
        return live.track_slot > 0

    def save(self, live: LiveRequest) -> torch.Tensor:
        """Copy the working state into the request's track slot; return the slot, ``(1,)``, on the host."""
        self._copy(live.row, live.track_slot)
        return torch.tensor([live.track_slot])

    def hand_over(self, live: LiveRequest, exists: bool) -> None:
        """Give the track slot to the cache, or free it if the cache already had a state (M1)."""
        if exists:
            self._watch.notice(Event.STATE_DUPLICATED, live)
            self.give_back(live)
        live.track_slot = 0

    def give_back(self, live: LiveRequest) -> None:
        """Free the track slot of a request, if it has one."""
        if live.track_slot:
            self._pool.free_track_slot(live.track_slot)
            live.track_slot = 0

    def _copy(self, source: int, destination: int) -> None:
        self._pool.copy_states(source, destination)
        self._watch.note_copy(source, destination)


Range = tuple[int, int]
Lengths = TypeVar("Lengths", int, np.ndarray)


class EngineMemory:
    """The cache entries, slots and rows of one engine's requests; nothing else uses their pools."""

    def __init__(self, config: EngineConfig, pools: EnginePools, watch: EngineWatch) -> None:
        self.pools = pools
        self._watch = watch
        self.probe = CacheProbe(pools.kind.cache, pools.kind.check, config.check_every)
        self.states: EngineStates | None = None
        if pools.kind.state_pool is not None:
            self.states = EngineStates(pools.kind.state_pool, pools.kind, self.probe, watch, config.page_size)
        self.dead_window_tokens = 0  # cached ones computed again because their window was dead
        self.changes = 0  # counts up whenever the chance of who waits may have become better
        self.page_size = config.page_size
        self._capacity = config.capacity
        self._window = config.sliding_window_size or 0
        self._swa_allocator = pools.swa_allocator
        self._releases_early = config.release_window_early
        self._table = pools.rows.req_to_token

    # -- how much there is -----------------------------------------------------------------------------

    def whole_pages(self, length: int) -> int:
        """Round a length down to whole pages."""
        return length // self.page_size * self.page_size

    def pages_up(self, length: int) -> int:
        """Round a length up to whole pages."""
        return -(-length // self.page_size) * self.page_size

    def available(self) -> tuple[int, int]:
        """Return the free tokens of the full and of the SWA pool; without a window both are equal."""
        full = self.pools.full_available_size()
        return full, full if self._swa_allocator is None else self._swa_allocator.swa_available_size()

    def room(self) -> tuple[int, int]:
        """Return the free and evictable tokens of either pool, without held tokens (law E4)."""
        cache = self.pools.kind.cache
        full, swa = self.available()
        evictable = cache.evictable_size()
        return full + evictable, swa + (
            evictable if self._swa_allocator is None else cache.swa_evictable_size()
        )

    def use(self) -> MemoryUse:
        """Return the memory in use now."""
        stored = self._capacity - self.available()[0]
        held = stored - self.pools.kind.cache.evictable_size()
        return MemoryUse(held, stored, None if self.states is None else self.states.held())

    def counts(self) -> MemoryCounts:
        """Return the counts of memory operations so far."""
        probe, states = self.probe, self.states
        return MemoryCounts(
            evict_calls=probe.evict_calls,
            evicted_tokens=probe.evicted_tokens,
            evicted_swa_tokens=probe.evicted_swa_tokens,
            dead_window_tokens=None if self._swa_allocator is None else self.dead_window_tokens,
            evicted_states=None if states is None else probe.evicted_states,
            skipped_snapshots=None if states is None else states.skipped,
            cache_operations=probe.operations,
            invariant_checks=probe.checks,
        )

    def _window_floor(self, length: Lengths) -> Lengths:
        """Return the number of tokens, in whole pages, before every window that may still be read.

        Counted from the last whole page and not from ``length``: the window of the aligned prefix must stay
        whole, or the cache could never take it (laws S1, S7). Below 0 for short requests.
        """
        aligned = length // self.page_size * self.page_size
        return (aligned - self._window) // self.page_size * self.page_size

    # -- taking ----------------------------------------------------------------------------------------

    def match_and_hold(self, live: LiveRequest) -> torch.Tensor:
        """Match and hold a request's cached prefix, without its last token (E4); return the slots."""
        live.queried_length = self.whole_pages(live.prompt_length - 1)
        match = self.probe.match(live.key(live.queried_length), live.times)
        live.lock_token = self.probe.lock(match.last_node, live.times)
        live.held_node = match.last_node
        live.length = live.held_length = live.released_length = match.prefix_len
        live.branching_length = match.mamba_branching_seqlen or 0
        return match.indices

    def take_row(self, live: LiveRequest, prefix: torch.Tensor) -> bool:
        """Give a request a row with its held prefix and state; False when no row is free."""
        rows = self.pools.rows.alloc(1)
        if rows is None:
            return False
        live.row = rows[0]
        self.pools.rows.write((live.row, slice(0, live.held_length)), prefix)
        live.is_recomputing = self._swa_allocator is not None and not live.admissions
        if self.states is not None:
            self.states.begin(live)
        return True

    def allocate(self, tokens: int, payers: Sequence[CacheTimes]) -> torch.Tensor | None:
        """Allocate whole pages, after evictions charged to ``payers`` if needed; ``None`` if too few."""
        slots = self.pools.allocator.alloc(tokens)
        if slots is None:
            room, (full, swa) = self.room(), self.available()
            swa_short = 0 if self._swa_allocator is None else max(0, tokens - swa)
            self.probe.evict(max(0, tokens - full), swa_short, payers)
            self._watch.check_progress(tokens, room, self.available())
            slots = self.pools.allocator.alloc(tokens)
        return slots

    def next_stop(self, live: LiveRequest) -> int:
        """Return the token at which the next chunk of a prompt stops: its end, or that of a due state."""
        return live.prompt_length if self.states is None else self.states.next_stop(live)

    def extend(self, live: LiveRequest, limit: int) -> torch.Tensor | None:
        """Give a request slots for its next tokens, and write them to its row; ``None`` if memory is short.

        The rest of its last page comes first, then whole new pages (law A3). With a window they may be fewer
        than ``limit``, at least one, where the SWA half has less room, which a chunk's end will return.
        """
        if self.states is not None:
            self.states.reserve(live, live.length + limit)
        in_page = -live.length % self.page_size
        tokens = limit if self._swa_allocator is None else min(limit, in_page + self.room()[1])
        new = self.allocate(self.pages_up(max(0, tokens - in_page)), [live.times]) if tokens else None
        if new is None:
            return None
        slots, in_last_page = new[:tokens], min(in_page, tokens)
        if in_last_page:
            first = live.last_slot + 1
            rest = torch.arange(first, first + in_last_page, dtype=new.dtype, device=new.device)
            slots = torch.cat([rest, new[: tokens - in_last_page]]) if in_last_page < tokens else rest
        self.pools.rows.write((live.row, slice(live.length, live.length + tokens)), slots)
        live.last_slot = int(slots.cpu().numpy()[-1])
        return slots

    # -- sharing ---------------------------------------------------------------------------------------

    def share(self, live: LiveRequest) -> None:
        """Cache a request's computed tokens, and replace its duplicates by the cache's slots.

        The new hold is taken before the old one is released, and the row rewritten before duplicates are
        given back, so that it never names a slot that is neither owned nor held. A cache of states is given
        nothing but with a state: without one its match could not say whose slots it has. Laws: R4, S7, M2,
        E2.
        """
        if self.states is not None and not self.states.is_due(live):
            return
        if self._releases_early:
            self.release_window(live)
        aligned = self.whole_pages(live.length)
        if aligned > live.held_length:
            result = self._insert(live, aligned)
            self._follow(live, aligned, result)
            self.changes += 1
        self.release_window(live)

    def _insert(self, live: LiveRequest, aligned: int) -> InsertResult:
        options: dict[str, Any] = {}
        if self._swa_allocator is not None:
            options = {"prev_prefix_len": live.held_length, "swa_evicted_seqlen": live.released_length}
        if self.states is not None and live.track_slot:
            options["mamba_value"] = self.states.save(live)
        result = self.probe.insert(live.key(aligned), self._table[live.row, :aligned], live.times, **options)
        if self.states is not None and live.track_slot:
            self.states.hand_over(live, result.mamba_exist)
        if live.is_recomputing:
            known = min(result.prefix_len, live.queried_length)
            self.dead_window_tokens += max(0, known - live.held_length)
            live.is_recomputing = result.prefix_len >= aligned
        return result

    def _follow(self, live: LiveRequest, aligned: int, result: InsertResult) -> None:
        """Write the cache's slots to the row, and free the request's own duplicates of them."""
        held = live.held_length
        if result.adopted == ((held, aligned),):
            self._move_hold(live, result.last_node, aligned)
            return
        match = self.probe.match(live.key(aligned), live.times)
        if self.states is not None and match.prefix_len < aligned:
            raise InvariantViolation(
                "M2",
                f"request {live.request_id}: a state was cached after {aligned} tokens, but only "
                f"{match.prefix_len} of them match",
            )
        if match.prefix_len <= held:
            self._refuse_adopted(live, result)
            self._watch.notice(Event.UNCACHED, live)
            return
        self._move_hold(live, match.last_node, match.prefix_len)
        duplicates = self._cut(live, held, match.prefix_len, result.adopted)
        if duplicates is not None:
            self._watch.notice(Event.DUPLICATED, live)
            self.pools.rows.write((live.row, slice(held, match.prefix_len)), match.indices[held:])
            self.pools.allocator.free(duplicates)

    def _move_hold(self, live: LiveRequest, node: Any, length: int) -> None:
        token = self.probe.lock(node, live.times)
        self.probe.unlock(live.held_node, live.lock_token, live.times)
        live.held_node, live.lock_token, live.held_length = node, token, length
        live.released_length = max(live.released_length, length)

    def _refuse_adopted(self, live: LiveRequest, result: InsertResult) -> None:
        if result.adopted:
            raise InvariantViolation(
                "R3",
                f"request {live.request_id}: insert adopted {result.adopted}, but the key matches only what "
                f"was held before, {live.held_length} tokens",
            )

    def _cut(self, live: LiveRequest, start: int, end: int, adopted: Sequence[Range]) -> torch.Tensor | None:
        """Return a copy of the row's slots in ``start .. end`` that were not adopted; ``None`` if none."""
        pieces, at = [], start
        for first, last in (*adopted, (end, end)):
            if at < first:
                pieces.append(self._table[live.row, at:first])
            at = max(at, last)
        return torch.cat(pieces) if pieces else None

    def release_window(self, live: LiveRequest) -> None:
        """Free the SWA halves of a request's own slots that no window will read again."""
        if self._swa_allocator is None:
            return
        floor = self._window_floor(live.length)
        if floor > live.released_length:
            self._swa_allocator.free_swa(self._table[live.row, live.released_length : floor])
            live.released_length = floor

    def release_windows(self, batch: DecodeBatch) -> None:
        """Free unused SWA halves of all decoding requests, each grown by one token, in one call."""
        if self._swa_allocator is None:
            return
        leaving = np.flatnonzero(self._window_floor(batch.lengths) > batch.released)
        if len(leaving):
            # One more token moves a floor by one page at most, and every floor was reached before.
            positions = batch.released[leaving, None] + np.arange(self.page_size)
            rows = np.broadcast_to(batch.rows[leaving, None], positions.shape)
            named = torch.from_numpy(np.stack([rows, positions])).to(self._table.device)
            self._swa_allocator.free_swa(self._table[named[0], named[1]])
            batch.released[leaving] += self.page_size

    # -- giving back -----------------------------------------------------------------------------------

    def finish(self, live: LiveRequest) -> None:
        """Cache a whole sequence, and free its duplicates, tail, hold and row."""
        aligned = self.whole_pages(live.length)
        adopted: Sequence[Range] = ()
        if aligned > live.held_length:
            adopted = self._insert(live, aligned).adopted
        self.give_back(live, adopted)

    def give_back(self, live: LiveRequest, adopted: Sequence[Range] = ()) -> None:
        """Free a request's slots that the cache did not adopt, with its hold and row."""
        if live.row:
            own = self._cut(live, live.held_length, live.length, adopted)
            if own is not None:
                self.pools.allocator.free(own)
            self.pools.rows.free(live.row)
        if self.states is not None:
            self.states.give_back(live)
        self.probe.unlock(live.held_node, live.lock_token, live.times)
        live.forget_memory()
        self.changes += 1
