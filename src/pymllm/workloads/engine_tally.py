"""Counting during a run, and the report at its end."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

from pymllm.workloads.cache_probe import CacheTimes
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_memory import EngineMemory
from pymllm.workloads.engine_report import CacheTime, EngineReport
from pymllm.workloads.live_request import LiveRequest

__all__ = ["EngineTally"]


@dataclass(slots=True)
class EngineTally:
    """Counters of one run; `EngineReport` says what each means."""

    requests: int = 0
    finished: int = 0
    rejected: int = 0
    aborted: int = 0
    retractions: int = 0
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

    def count_admission(self, live: LiveRequest) -> None:
        """Count a request's prompt and hit, the first time that it is admitted."""
        if not live.was_admitted:
            live.was_admitted = True
            self.prompt_tokens += live.request.prompt_length
            self.hit_tokens += live.held_length
            self.ceiling_tokens += live.ceiling_tokens
            self.stateless_tokens += max(0, live.branching_length - live.held_length)

    def count_finish(self, live: LiveRequest) -> None:
        """Count a finished request and keep its times."""
        self.finished += 1
        self.output_tokens += live.request.output_length
        self.times.append(live.times)

    def count_memory(self, config: EngineConfig, memory: EngineMemory) -> None:
        """Raise the peaks to what is in use now."""
        stored = config.capacity - memory.available()[0]
        self.peak_tokens_stored = max(self.peak_tokens_stored, stored)
        held = stored - memory.probe.cache.evictable_size()
        self.peak_tokens_held = max(self.peak_tokens_held, held)
        if memory.states is not None:
            self.peak_states_held = max(self.peak_states_held, memory.states.held())

    def report(self, config: EngineConfig, memory: EngineMemory, content_tokens: int) -> EngineReport:
        """Make the report of everything counted so far."""
        probe, states = memory.probe, memory.states
        return EngineReport(
            config=config,
            requests=self.requests,
            finished=self.finished,
            rejected=self.rejected,
            aborted=self.aborted,
            retractions=self.retractions,
            prompt_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens,
            ceiling_tokens=self.ceiling_tokens,
            token_hit_rate=self.hit_tokens / max(1, self.prompt_tokens),
            ceiling_hit_rate=self.ceiling_tokens / max(1, self.prompt_tokens),
            computed_tokens=self.computed_tokens,
            output_tokens=self.output_tokens,
            evict_calls=probe.evict_calls,
            evicted_tokens=probe.evicted_tokens,
            evicted_swa_tokens=probe.evicted_swa_tokens,
            dead_window_tokens=None if config.sliding_window_size is None else memory.dead_window_tokens,
            stateless_tokens=None if states is None else self.stateless_tokens,
            peak_states_held=None if states is None else self.peak_states_held,
            evicted_states=None if states is None else probe.evicted_states,
            skipped_snapshots=None if states is None else states.skipped,
            match=_cache_time([times.match_ns for times in self.times]),
            insert=_cache_time([times.insert_ns for times in self.times]),
            evict=_cache_time([times.evict_ns for times in self.times]),
            lock=_cache_time([times.lock_ns for times in self.times]),
            cache_operations=probe.operations,
            invariant_checks=probe.checks,
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
