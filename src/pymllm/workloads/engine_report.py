"""What an engine's run came to, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.workloads.engine_config import EngineConfig

__all__ = ["CacheTime", "EngineReport"]


@dataclass(frozen=True, slots=True)
class CacheTime:
    """Microseconds that one request spends in one kind of cache operation, over its whole life.

    Parameters
    ----------
    median_us, p99_us : float
        Over all requests that finished; 0 where none did.
    """

    median_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Counts and times of one run; `msgspec` and `dataclasses.asdict` take it as it is.

    Parameters
    ----------
    config : EngineConfig
        As used: capacities rounded to whole pages.
    requests, finished, rejected, aborted : int
        Requests taken from the source, and how they ended. Rejected ones could never fit.
    retractions : int
        Requests thrown back into the queue because memory ran out; one request may count several times.
    pauses : int or None
        Requests set aside with their blocks, until memory suffices for them to go on; ``None`` for a cache
        without pauses.
    prompt_tokens : int
        Prompt tokens of all admitted requests, each counted at its first admission.
    hit_tokens : int
        Those of them that the cache served.
    ceiling_tokens : int
        Those of them that an unlimited cache with the same page size would have served.
    token_hit_rate, ceiling_hit_rate : float
        The two above over ``prompt_tokens``; 0 where nothing was admitted.
    computed_tokens : int
        Tokens whose KV was computed in prefill, again after each retraction.
    output_tokens : int
        Tokens produced.
    evict_calls, evicted_tokens, evicted_swa_tokens : int
        Calls of ``evict``, and what they gave back, full slots and SWA halves.
    dead_window_tokens : int or None
        Tokens whose KV was cached when a request was admitted but lay behind a dead window, so that they
        were computed again; ``None`` without a window.
    stateless_tokens : int or None
        Tokens whose KV was cached when a request was first admitted but lay beyond the last state, so that
        they were computed again; ``None`` without states.
    peak_states_held : int or None
        Most track slots at one time that were not free, or ``None``.
    evicted_states : int or None
        States that evictions gave back, or ``None``.
    skipped_snapshots : int or None
        States that were not cached because no track slot could be had, or ``None``.
    match, insert, evict, lock : CacheTime
        Per finished request; ``lock`` covers locking and unlocking. An eviction that several
        requests need together is shared among them evenly.
    cache_operations : int
        Operations timed.
    invariant_checks : int
        How often the cache's invariants were walked.
    content_tokens : int
        KV rows read back and compared, both halves.
    peak_tokens_held : int
        Most slots at one time that no eviction could have freed: owned by requests, or locked.
    peak_tokens_stored : int
        Most slots at one time that were not free: the above and everything cached.
    peak_rss_bytes : int or None
        Most resident memory of this process so far, the part before the run included; ``None``
        where the platform does not tell.
    iterations : int
        Iterations of the engine.
    virtual_seconds : float
        Virtual time from the first iteration to the end of the last, idle gaps included.
    wall_seconds : float
        Real time inside the engine.
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
