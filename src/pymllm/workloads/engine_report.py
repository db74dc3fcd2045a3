"""The counts of an engine's run, and its report as plain data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pymllm.workloads.cache_probe import CacheTimes
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.live_request import LiveSequence
from pymllm.workloads.peak_memory import peak_rss_bytes
from pymllm.workloads.recorded_hits import RecordedHits


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory in use: tokens that cannot be evicted, those with cached tokens, and cached states."""

    held_tokens: int
    stored_tokens: int
    states: int | None


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """The counts of memory operations so far; `EngineReport` explains each field."""

    evict_calls: int
    evicted_tokens: int
    evicted_swa_tokens: int
    dead_window_tokens: int | None
    evicted_states: int | None
    skipped_snapshots: int | None
    cache_operations: int
    invariant_checks: int


@dataclass(frozen=True, slots=True)
class CacheTime:
    """Microseconds of finished requests in one kind of cache operation, 0 for a request without one."""

    median_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The counts and times of one run, which `msgspec` and `dataclasses.asdict` can convert.

    - ``config``: As used: capacities rounded to whole pages.
    - ``requests``, ``finished``, ``rejected``, ``aborted``: Requests taken from the source, and how they
      ended. Rejected ones could never fit.
    - ``retractions``: Requests thrown back into the queue because memory ran out; one request may count
      several times.
    - ``pauses``: Requests set aside with their blocks, until memory suffices for them to go on; ``None`` for
      a cache without pauses.
    - ``prompt_tokens``: Prompt tokens of all admitted requests, each counted at its first admission.
    - ``hit_tokens``: Those of them that the cache served.
    - ``ceiling_tokens``: Those of them that an unlimited cache with the same page size would have served.
    - ``token_hit_rate``, ``ceiling_hit_rate``: The two above over ``prompt_tokens``; 0 where nothing was
      admitted.
    - ``computed_tokens``: Tokens whose KV was computed in prefill, again after each retraction.
    - ``recomputed_tokens``: Those of them that were computed after a retraction.
    - ``uncomputed_tokens``: Prompt tokens that requests left uncomputed which were aborted or retracted in
      the prefill of their first admission. So, once every request has ended, ``prompt_tokens`` are
      ``hit_tokens`` + ``computed_tokens`` - ``recomputed_tokens`` + ``uncomputed_tokens`` (law E6).
    - ``output_tokens``: Tokens produced.
    - ``evict_calls``, ``evicted_tokens``, ``evicted_swa_tokens``: Calls of ``evict``, and what they gave
      back, full slots and SWA halves.
    - ``dead_window_tokens``: Tokens whose KV was cached when a request was admitted but lay behind a dead
      window, so that they were computed again; ``None`` without a window.
    - ``stateless_tokens``: Tokens whose KV was cached when a request was first admitted but lay beyond the
      last state, so that they were computed again; ``None`` without states.
    - ``peak_states_held``: Most track slots at one time that were not free, or ``None``.
    - ``evicted_states``: States that evictions gave back, or ``None``.
    - ``skipped_snapshots``: States that were not cached because no track slot could be had, or ``None``.
    - ``match``, ``insert``, ``evict``, ``lock``: Per finished request; ``lock`` covers locking and unlocking.
      An eviction that several requests need together is shared among them evenly.
    - ``cache_operations``: Operations timed.
    - ``invariant_checks``: How often the cache's invariants were walked.
    - ``content_tokens``: KV rows read back and compared, both halves.
    - ``peak_tokens_held``: Most slots at one time that no eviction could have freed: owned by requests, or
      locked.
    - ``peak_tokens_stored``: Most slots at one time that were not free: the above and everything cached.
    - ``peak_rss_bytes``: Most resident memory of this process so far, the part before the run included;
      ``None`` where the platform does not tell.
    - ``iterations``: Iterations of the engine.
    - ``virtual_seconds``: Virtual time from the first iteration to the end of the last, idle gaps included.
    - ``wall_seconds``: Real time inside the engine.
    - ``recorded``: What the recorded server had found beside these hits; ``None`` where it did not say.
    """

    config: EngineConfig
    requests: int
    finished: int
    rejected: int
    aborted: int
    retractions: int
    pauses: int | None
    prompt_tokens: int
    hit_tokens: int
    ceiling_tokens: int
    token_hit_rate: float
    ceiling_hit_rate: float
    computed_tokens: int
    recomputed_tokens: int
    uncomputed_tokens: int
    output_tokens: int
    evict_calls: int
    evicted_tokens: int
    evicted_swa_tokens: int
    dead_window_tokens: int | None
    stateless_tokens: int | None
    peak_states_held: int | None
    evicted_states: int | None
    skipped_snapshots: int | None
    match: CacheTime
    insert: CacheTime
    evict: CacheTime
    lock: CacheTime
    cache_operations: int
    invariant_checks: int
    content_tokens: int
    peak_tokens_held: int
    peak_tokens_stored: int
    peak_rss_bytes: int | None
    iterations: int
    virtual_seconds: float
    wall_seconds: float
    recorded: RecordedHits | None = None


@dataclass(slots=True)
class EngineTally:
    """The counters of one run; `EngineReport` explains each."""

    requests: int = 0
    finished: int = 0
    rejected: int = 0
    aborted: int = 0
    retractions: int = 0
    pauses: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    ceiling_tokens: int = 0
    stateless_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    uncomputed_tokens: int = 0
    output_tokens: int = 0
    peak_tokens_held: int = 0
    peak_tokens_stored: int = 0
    peak_states_held: int = 0
    iterations: int = 0
    virtual_ms: float = 0.0
    wall_seconds: float = 0.0
    times: list[CacheTimes] = field(default_factory=list)
    recorded: RecordedHits = field(default_factory=RecordedHits)

    @property
    def settled(self) -> int:
        """The number of requests that have ended in any way."""
        return self.finished + self.rejected + self.aborted

    def count_admission(self, live: LiveSequence) -> None:
        """Count a request's prompt and hit at its first admission."""
        live.admissions += 1
        if live.admissions == 1:
            self.prompt_tokens += live.request.prompt_length
            self.hit_tokens += live.hit_tokens
            self.recorded.add(live.request, live.hit_tokens)
            self.ceiling_tokens += live.ceiling_tokens
            self.stateless_tokens += live.stateless_tokens

    def count_computed(self, live: LiveSequence, tokens: int) -> None:
        """Count prompt tokens that a request has computed."""
        self.computed_tokens += tokens
        if live.admissions > 1:
            self.recomputed_tokens += tokens

    def count_leaving(self, live: LiveSequence) -> None:
        """Count the uncomputed prompt tokens of a request that leaves after its first admission."""
        if live.admissions == 1:
            self.uncomputed_tokens += max(0, live.prompt_length - max(live.length, live.hit_tokens))

    def count_finish(self, live: LiveSequence) -> None:
        """Count a finished request and keep its times."""
        self.finished += 1
        self.output_tokens += live.request.output_length
        self.times.append(live.times)

    def count_memory(self, use: MemoryUse) -> None:
        """Raise the peaks to the memory in use now."""
        self.peak_tokens_stored = max(self.peak_tokens_stored, use.stored_tokens)
        self.peak_tokens_held = max(self.peak_tokens_held, use.held_tokens)
        self.peak_states_held = max(self.peak_states_held, use.states or 0)

    def report(self, config: EngineConfig, counts: MemoryCounts, content_tokens: int) -> EngineReport:
        """Return the report of all counts so far."""
        return EngineReport(
            config=config,
            **{name: getattr(self, name) for name in _AS_COUNTED},
            **asdict(counts),
            pauses=None if config.paused_capacity is None else self.pauses,
            token_hit_rate=self.hit_tokens / max(1, self.prompt_tokens),
            ceiling_hit_rate=self.ceiling_tokens / max(1, self.prompt_tokens),
            stateless_tokens=self.stateless_tokens if config.has_states else None,
            peak_states_held=self.peak_states_held if config.has_states else None,
            **cache_times(self.times, "match", "insert", "evict", "lock"),
            content_tokens=content_tokens,
            peak_rss_bytes=peak_rss_bytes(sys.platform),
            virtual_seconds=self.virtual_ms / 1000,
            recorded=self.recorded if self.recorded.requests else None,
        )


_AS_COUNTED = (
    *("requests", "finished", "rejected", "aborted", "retractions"),
    *("prompt_tokens", "hit_tokens", "ceiling_tokens"),
    *("computed_tokens", "recomputed_tokens", "uncomputed_tokens", "output_tokens"),
    *("peak_tokens_held", "peak_tokens_stored", "iterations", "wall_seconds"),
)
"""The fields of a report that are copied from the tally."""


def cache_times(times: Sequence[CacheTimes], *kinds: str) -> dict[str, Any]:
    """Return the times of finished requests, summed up by kind of operation."""
    return {kind: cache_time([getattr(each, f"{kind}_ns") for each in times]) for kind in kinds}


def cache_time(nanoseconds: list[int]) -> CacheTime:
    """Return a summary of one list of times."""
    if not nanoseconds:
        return CacheTime(0.0, 0.0)
    median, p99 = np.percentile(nanoseconds, [50, 99]) / 1000
    return CacheTime(float(median), float(p99))


class CutShort(KeyboardInterrupt):
    """Raised to end an interrupted run, with its ``report``; a current step may be half counted."""

    def __init__(self, report: Any, interruption: KeyboardInterrupt) -> None:
        super().__init__("the run was cut short")
        self.report = report
        self.interruption = interruption
