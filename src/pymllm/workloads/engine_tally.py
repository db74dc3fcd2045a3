"""Counting during a run, and the report at its end."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

from pymllm.workloads.cache_probe import CacheTimes
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_report import CacheTime, EngineReport
from pymllm.workloads.live_sequence import LiveSequence
from pymllm.workloads.memory_figures import MemoryCounts, MemoryUse

__all__ = ["EngineTally"]


@dataclass(slots=True)
class EngineTally:
    """Counters of one run; `EngineReport` says what each means."""

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
    output_tokens: int = 0
    peak_tokens_held: int = 0
    peak_tokens_stored: int = 0
    peak_states_held: int = 0
    iterations: int = 0
    virtual_ms: float = 0.0
    wall_seconds: float = 0.0
    times: list[CacheTimes] = field(default_factory=list)

    @property
    def settled(self) -> int:
        """Requests that have ended, one way or another."""
        return self.finished + self.rejected + self.aborted

    def count_admission(self, live: LiveSequence) -> None:
        """Count a request's prompt and hit, the first time that it is admitted."""
        if not live.was_admitted:
            live.was_admitted = True
            self.prompt_tokens += live.request.prompt_length
            self.hit_tokens += live.hit_tokens
            self.ceiling_tokens += live.ceiling_tokens
            self.stateless_tokens += live.stateless_tokens

    def count_finish(self, live: LiveSequence) -> None:
        """Count a finished request and keep its times."""
        self.finished += 1
        self.output_tokens += live.request.output_length
        self.times.append(live.times)

    def count_memory(self, use: MemoryUse) -> None:
        """Raise the peaks to what is in use now."""
        self.peak_tokens_stored = max(self.peak_tokens_stored, use.stored_tokens)
        self.peak_tokens_held = max(self.peak_tokens_held, use.held_tokens)
        self.peak_states_held = max(self.peak_states_held, use.states or 0)

    def report(self, config: EngineConfig, counts: MemoryCounts, content_tokens: int) -> EngineReport:
        """Make the report of everything counted so far."""
        return EngineReport(
            config=config,
            requests=self.requests,
            finished=self.finished,
            rejected=self.rejected,
            aborted=self.aborted,
            retractions=self.retractions,
            pauses=None if config.paused_capacity is None else self.pauses,
            prompt_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens,
            ceiling_tokens=self.ceiling_tokens,
            token_hit_rate=self.hit_tokens / max(1, self.prompt_tokens),
            ceiling_hit_rate=self.ceiling_tokens / max(1, self.prompt_tokens),
            computed_tokens=self.computed_tokens,
            output_tokens=self.output_tokens,
            evict_calls=counts.evict_calls,
            evicted_tokens=counts.evicted_tokens,
            evicted_swa_tokens=counts.evicted_swa_tokens,
            dead_window_tokens=counts.dead_window_tokens,
            stateless_tokens=self.stateless_tokens if config.has_states else None,
            peak_states_held=self.peak_states_held if config.has_states else None,
            evicted_states=counts.evicted_states,
            skipped_snapshots=counts.skipped_snapshots,
            match=_cache_time([times.match_ns for times in self.times]),
            insert=_cache_time([times.insert_ns for times in self.times]),
            evict=_cache_time([times.evict_ns for times in self.times]),
            lock=_cache_time([times.lock_ns for times in self.times]),
            cache_operations=counts.cache_operations,
            invariant_checks=counts.invariant_checks,
            content_tokens=content_tokens,
            peak_tokens_held=self.peak_tokens_held,
            peak_tokens_stored=self.peak_tokens_stored,
            peak_rss_bytes=peak_rss_bytes(sys.platform),
            iterations=self.iterations,
            virtual_seconds=self.virtual_ms / 1000,
            wall_seconds=self.wall_seconds,
        )


def _cache_time(nanoseconds: list[int]) -> CacheTime:
    if not nanoseconds:
        return CacheTime(0.0, 0.0)
    median, p99 = np.percentile(nanoseconds, [50, 99]) / 1000
    return CacheTime(float(median), float(p99))


def peak_rss_bytes(platform: str) -> int | None:
    """Read the most resident memory that this process ever had.

    Parameters
    ----------
    platform : str
        As `sys.platform`: the unit differs, kilobytes on Linux and bytes on macOS.

    Returns
    -------
    int or None
        Bytes; ``None`` where the platform has no `resource` module.
    """
    if platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform == "darwin" else peak * 1024
