"""The checks of an engine: contents, audits, events to an observer, and counts of each law's tests."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_counts import CountedRun
from pymllm.workloads.engine_forward import SimulatedForward, SimulatedRecurrent
from pymllm.workloads.engine_pools import EnginePools
from pymllm.workloads.engine_report import EngineTally
from pymllm.workloads.live_request import DecodeBatch, LiveRequest, LiveSequence

Watched = TypeVar("Watched", bound=LiveSequence)


def check_ownership(
    config: EngineConfig, pools: EnginePools, lives: Sequence[LiveRequest], *, with_cache: bool
) -> None:
    """Check that every slot has one owner, and that rows contain only permitted slots (laws E2, E3).

    Without ``with_cache`` the cache's counters are believed and not its nodes: enough as long as it is as it
    was.
    """
    rows, page_size, cache = _rows_of(pools, lives), config.page_size, pools.kind.cache
    pairs = [*zip(lives, rows, strict=True)]
    owned = [row[live.held_length : live.length : page_size] for live, row in pairs]
    sizes = [len(slots) for slots in owned]
    counted, swa_counted = cache.total_size(), cache.swa_evictable_size() + cache.swa_protected_size()
    if with_cache:
        for live, row in pairs:
            _check_held_prefix(live, row[: live.held_length], pools)
        # Nodes are whole pages, so every page_size-th slot is the first of a page.
        owned.append(_joined(pools.kind.cached_slots())[::page_size])
        counted, swa_counted = 0, 0
    pages = np.concatenate([np.empty(0, dtype=np.int64), *owned]) // page_size
    first_slots = torch.from_numpy(pages * page_size)
    if len(pages):
        _check_one_owner(pages, sizes, lives)
        _check_handed_out(pages, first_slots, pools)
    _check_total("full", config.capacity, pools.full_available_size(), counted + len(pages) * page_size)
    _check_halves(config, pools, first_slots, swa_counted)


def _check_handed_out(pages: np.ndarray, first_slots: torch.Tensor, pools: EnginePools) -> None:
    handed_out = pools.allocator.is_handed_out(first_slots).cpu().numpy()
    if not handed_out.all():
        raise InvariantViolation(
            "E2", f"page {int(pages[~handed_out][0])} is free, but a request or the cache names it"
        )


def _check_halves(config: EngineConfig, pools: EnginePools, slots: torch.Tensor, counted: int) -> None:
    if pools.swa_allocator is None or config.swa_capacity is None:
        return
    halves = pools.swa_allocator.translate_to_swa(slots).cpu().numpy()
    alive = halves[halves > 0]
    if len(alive) and np.bincount(alive).max() > 1:
        raise InvariantViolation("E2", "two full pages have the same SWA page behind them")
    available = pools.swa_allocator.swa_available_size()
    _check_total("SWA", config.swa_capacity, available, counted + len(alive) * config.page_size)


def check_windows(config: EngineConfig, pools: EnginePools, lives: Sequence[LiveRequest]) -> None:
    """Check that the window before each request's last whole page is alive (S1), so that it can be cached."""
    window = config.sliding_window_size
    if pools.swa_allocator is None or window is None:
        return
    for live in lives:
        start = max(0, live.length // config.page_size * config.page_size - window)
        row = pools.rows.req_to_token[live.row, start : live.length]
        halves = pools.swa_allocator.translate_to_swa(row).cpu().numpy()
        if not halves.all():
            gone = start + int(halves.argmin())
            raise InvariantViolation(
                "S1",
                f"request {live.request_id}: position {gone} has no SWA half, but the window of "
                f"{window} tokens before the last whole page of {live.length} tokens covers it",
            )


def check_track_slots(pools: EnginePools, lives: Sequence[LiveRequest]) -> None:
    """Check that every track slot is free, or owned by a node or a live request (laws E2, E3)."""
    pool = pools.kind.state_pool
    if pool is None:
        return
    owned = [*pools.kind.cached_states(), *(live.track_slot for live in lives if live.track_slot)]
    if len({*owned}) != len(owned):
        [(slot, owners)] = Counter(owned).most_common(1)
        raise InvariantViolation("E2", f"track slot {slot} has {owners} owners")
    free = pool.available_track_slots()
    if free + len(owned) != pool.max_track_slots:
        raise InvariantViolation(
            "E3",
            f"track slots: {free} are free and {len(owned)} are cached or owned by live requests, "
            f"{free + len(owned)} of {pool.max_track_slots}",
        )


def _rows_of(pools: EnginePools, lives: Sequence[LiveRequest]) -> list[np.ndarray]:
    """Return the rows of requests, read at once since slices of arrays cost a tenth of those of tensors."""
    if not lives:
        return []
    table = pools.rows.req_to_token
    if table.device.type != "cpu":
        table = table[:, : max(live.length for live in lives)].cpu()
    rows = table.numpy()
    return [rows[live.row] for live in lives]


def _joined(pieces: Sequence[torch.Tensor]) -> np.ndarray:
    """Return several tensors of slots as one host array."""
    if len(pieces) == 1:
        return pieces[0].cpu().numpy()
    return torch.cat([*pieces]).cpu().numpy() if pieces else np.empty(0, dtype=np.int64)


def _check_held_prefix(live: LiveRequest, row: np.ndarray, pools: EnginePools) -> None:
    path = _joined(pools.kind.path_slots(live.held_node))
    if not np.array_equal(path, row):
        raise InvariantViolation(
            "E2",
            f"request {live.request_id}: the first {live.held_length} entries of row {live.row} are not the "
            f"{len(path)} slots of the prefix that it holds",
        )


def _check_one_owner(pages: np.ndarray, owned: Sequence[int], lives: Sequence[LiveRequest]) -> None:
    counts = np.bincount(pages)
    if counts.max() > 1:
        page = int(counts.argmax())
        owners = np.searchsorted(np.cumsum(owned), np.flatnonzero(pages == page), side="right").tolist()
        names = [f"request {lives[at].request_id}" if at < len(lives) else "the cache" for at in owners]
        raise InvariantViolation("E2", f"page {page} has {len(names)} owners: {', '.join(names)}")


def check_fresh_row(pools: EnginePools, live: LiveRequest) -> None:
    """Check that the row of a request just admitted is empty after the held prefix (law E2)."""
    stale = pools.rows.req_to_token[live.row, live.held_length :].count_nonzero()
    if stale:
        raise InvariantViolation(
            "E2",
            f"request {live.request_id}: row {live.row} carries {int(stale)} slots of an earlier request",
        )


def _check_total(half: str, capacity: int, available: int, owned: int) -> None:
    if available + owned != capacity:
        raise InvariantViolation(
            "E3",
            f"{half} slots: {available} are free and {owned} are cached or owned by live requests, "
            f"{available + owned} of {capacity}",
        )


def check_quiescent(config: EngineConfig, pools: EnginePools) -> None:
    """Check that pools and cache own everything, to the slot, when no request lives (laws E2, E3)."""
    cache = pools.kind.cache
    _check_total("full", config.capacity, pools.full_available_size(), cache.total_size())
    if pools.swa_allocator is not None and config.swa_capacity is not None:
        alive = cache.swa_evictable_size() + cache.swa_protected_size()
        _check_total("SWA", config.swa_capacity, pools.swa_allocator.swa_available_size(), alive)
    check_track_slots(pools, ())
    if cache.protected_size() or cache.swa_protected_size():
        raise InvariantViolation(
            "E3",
            f"no request lives, but {cache.protected_size()} cached tokens are locked, and the windows of "
            f"{cache.swa_protected_size()}",
        )
    if pools.rows.available_size() != pools.rows.size:
        raise InvariantViolation(
            "E3", f"{pools.rows.size - pools.rows.available_size()} rows were not given back"
        )
    used = pools.rows.req_to_token.any(dim=1).nonzero().flatten().tolist()
    if used:
        raise InvariantViolation("E2", f"rows {used} are free but not empty")


def check_emptied(config: EngineConfig, pools: EnginePools) -> None:
    """Check that the pools own everything after an eviction of the whole cache (law E3)."""
    cache = pools.kind.cache
    if cache.total_size():
        raise InvariantViolation("E3", f"{cache.total_size()} tokens stay cached after evicting everything")
    check_quiescent(config, pools)


class Event(enum.Enum):
    """An event of a request, sent before any of its memory is given back or forgotten."""

    REJECTED = "rejected"
    """The request can never fit."""
    ADMITTED = "admitted"
    """The request has a row, which holds the slots of its held prefix."""
    REFUSED = "refused"
    """The request was refused for lack of rows or memory, and waits on without its hold."""
    DUPLICATED = "duplicated"
    """The request's tokens were cached by others meanwhile; its duplicates are about to be freed."""
    UNCACHED = "uncached"
    """The cache took none of the request's tokens and has none, since their window would be dead."""
    SNAPSHOT_SKIPPED = "snapshot skipped"
    """A state was due to be cached, but no track slot was available."""
    STATE_DUPLICATED = "state duplicated"
    """The request's saved state was cached by others meanwhile; its track slot is about to be freed."""
    PAUSED = "paused"
    """The request is about to be paused with its blocks, because memory ran out."""
    RESUMED = "resumed"
    """The paused request resumes."""
    RETRACTED = "retracted"
    """The request goes back into the queue, because memory ran out."""
    ABORTED = "aborted"
    """The request ends before it is finished; its row, if any, is about to be freed."""
    FINISHED = "finished"
    """The request has produced its last token; its sequence is about to be cached."""


Onlooker = Callable[[Event, LiveRequest], None]
"""A function that is called with each event and its request, and must not change either."""


_COUNTED = {
    Event.REJECTED: CountedRun.reject,
    Event.ADMITTED: CountedRun.admit,
    Event.RETRACTED: CountedRun.retract,
    Event.ABORTED: CountedRun.abort,
    Event.FINISHED: CountedRun.finish,
}


class Watch(ABC, Generic[Watched]):
    """The checks common to all engines: events to an observer, and counts of requests and of law tests.

    ``tested`` counts how often each law was tested and held, by its id; a test that could not have failed is
    not counted.
    """

    EXITS: ClassVar[frozenset[Event]] = frozenset({Event.RETRACTED, Event.ABORTED, Event.FINISHED})

    def __init__(
        self, forward: SimulatedForward | None, onlooker: Callable[[Event, Watched], None] | None
    ) -> None:
        self.forward = forward
        self.tested: Counter[str] = Counter()
        self._onlooker = onlooker
        self._counted = CountedRun()
        self._exits = 0

    def notice(self, event: Event, live: Watched) -> None:
        """Record an event, and report it to the observer."""
        self._exits += event in self.EXITS
        if event in _COUNTED:
            _COUNTED[event](self._counted, live)
        if self._onlooker is not None:
            self._onlooker(event, live)

    @property
    def content_tokens(self) -> int:
        """The number of KV rows compared so far; 0 if content is not checked."""
        return 0 if self.forward is None else self.forward.checked_tokens

    @abstractmethod
    def check_quiescent(self) -> None:
        """Check that pools and cache own everything now that no request lives (laws E2, E3, E5)."""

    def check_counts(self, tally: EngineTally) -> None:
        """Compare the counters of a run with the events of its requests, once all have ended (law E6)."""
        self.tested["E6"] += self._counted.check(tally)

    def _check_forward(self) -> None:
        """Check that no write of KV went astray (law E5)."""
        if self.forward is not None:
            self.tested["E5"] += self.forward.unchecked_writes > 0
            self.forward.check_untouched()

    def _count_exits(self) -> None:
        self.tested["E3"] += self._exits
        self._exits = 0


class EngineWatch(Watch[LiveRequest]):
    """The checks of an engine over a prefix cache, and their counts."""

    EXITS = Watch.EXITS | {Event.REFUSED}  # who is refused gives its hold back

    def __init__(self, config: EngineConfig, pools: EnginePools, onlooker: Onlooker | None = None) -> None:
        forward = None
        if config.content_check:
            slots, has_pools = pools.allocator.size, not pools.is_driven
            forward = SimulatedForward(config, pools.swa_allocator, slots, has_pools=has_pools)
        super().__init__(forward, onlooker)
        self.recurrent: SimulatedRecurrent | None = None
        if config.content_check and pools.kind.state_pool is not None:
            self.recurrent = SimulatedRecurrent(pools.kind.state_pool, config.seed)
        self._config = config
        self._pools = pools
        self._audited_operations = -1

    def note_copy(self, source: int, destination: int) -> None:
        """Record that a state was copied from one row to another."""
        if self.recurrent is not None:
            self.recurrent.note_copy(source, destination)

    def note_reset(self, row: int) -> None:
        """Record that a working state was reset."""
        if self.recurrent is not None:
            self.recurrent.note_reset(row)

    def check_row(self, live: LiveRequest) -> None:
        """Check a request's row, window and state, if content is checked (laws E1, S1)."""
        if self.forward is not None and live.length:
            row = self._pools.rows.req_to_token[live.row, : live.length]
            self.forward.check_row(live.request_id, row, live.fingerprints[: live.length])
            self.tested["E1"] += 1
        if self.recurrent is not None:
            self.recurrent.check(live)

    def check_work(self, live: LiveRequest) -> None:
        """Check that an admitted request has at least one token left to compute (law E4)."""
        if live.length >= live.prompt_length:
            raise InvariantViolation(
                "E4",
                f"request {live.request_id}: {live.length} tokens are a hit, which leaves none of "
                f"{live.prompt_length} to compute",
            )

    def check_admission(
        self, live: LiveRequest, suffices: bool, prefilling: Sequence[LiveRequest], decoding: DecodeBatch
    ) -> None:
        """Check that a request whose prefix is held is admitted by the engine's own rule (law E4).

        The rule is that of ``AdmissionRule.suffices``: free and evictable, without what is held, cover what
        the prompts under way still need and ``decode_headroom`` of those in decode, and nothing else is kept
        back. It is counted here once more, page by page.
        """
        config, size, cache = self._config, self._config.page_size, self._pools.kind.cache
        needs = [-(-it.prompt_length // size) + -it.length // size for it in (live, *prefilling)]
        kept_back = 0
        for length, remaining in zip(decoding.lengths.tolist(), decoding.remaining.tolist(), strict=True):
            grown = length + min(remaining, config.decode_headroom)
            kept_back += -(-grown // size) + -length // size
        room = (self._pools.full_available_size() + cache.evictable_size()) // size
        is_enough = sum(needs) + kept_back <= room
        if self._pools.swa_allocator is not None and config.sliding_window_size is not None:
            most = -(-config.sliding_window_size // size) + 1
            swa = self._pools.swa_allocator.swa_available_size() + cache.swa_evictable_size()
            is_enough = is_enough and sum(min(need, most) for need in needs) + kept_back <= swa // size
        if suffices != is_enough:
            raise InvariantViolation(
                "E4",
                f"request {live.request_id} is {'admitted' if suffices else 'refused'}: prompts need "
                f"{sum(needs)} more pages and {kept_back} are kept back for decoding, of {room} that are "
                "free or evictable",
            )
        self.tested["E4"] += 1

    def check_fresh_row(self, live: LiveRequest) -> None:
        """Check that a request's new row is empty behind its prefix (law E2), if trackers are checked."""
        if self._config.check_every:
            check_fresh_row(self._pools, live)
            self.tested["E2"] += 1

    def check_invariants(self, lives: Sequence[LiveRequest], operations: int) -> None:
        """Check the ownership of all memory between two iterations (laws E2, E3, S1).

        Nodes are looked at only if there were cache ``operations`` since the last check.
        """
        self._pools.check_allocator()
        if self.recurrent is not None:
            self.recurrent.check_untouched()
        check_track_slots(self._pools, lives)
        with_cache = operations != self._audited_operations
        check_ownership(self._config, self._pools, lives, with_cache=with_cache)
        check_windows(self._config, self._pools, lives)
        self._audited_operations = operations
        self.tested["E2"] += bool(lives)
        self._count_exits()

    def check_progress(self, tokens: int, room: tuple[int, int], available: tuple[int, int]) -> None:
        """Check that an eviction freed ``tokens``, or all that was evictable (law E4).

        ``room`` was free or evictable before, ``available`` is free after; full and SWA half.
        """
        if tokens > min(room):
            return
        if tokens > min(available):
            raise InvariantViolation(
                "E4",
                f"{tokens} tokens are needed and {room} were free or evictable (full, SWA), but after "
                f"evicting only {available} are free",
            )
        self.tested["E4"] += 1

    def check_quiescent(self) -> None:
        """Check that pools and cache own everything now that no request lives (laws E2, E3, E5)."""
        check_quiescent(self._config, self._pools)
        self._count_exits()
        self._check_forward()
        if self.recurrent is not None:
            self.recurrent.check_untouched()

    def check_emptied(self) -> None:
        """Check that the pools own everything after evicting everything (law E3)."""
        check_emptied(self._config, self._pools)
        self.tested["E3"] += 1
