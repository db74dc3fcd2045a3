"""A serial replay: one request after another through a cache and an allocator, without an engine.

There is no decoding, no batch and no virtual time, so the times are those of the cache and the allocator
alone, and two correct caches of one kind agree on every count. Counts of other trees may differ by what they
count as recent: law R8 leaves the rest of a split node its age, trees that stamp a node before they compare
it make that rest young (``docs/replay.md`` has the numbers).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, perf_counter_ns

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.base_prefix_cache import MatchResult, RadixKey
from pymllm.mem_cache.memory_pool import TokenToKVPoolAllocator
from pymllm.mem_cache.slots.store_choice import checks_alone
from pymllm.replay.keeping import KEEPINGS, Keeping
from pymllm.workloads.cache_probe import CacheProbe, CacheTimes
from pymllm.workloads.ceiling import HitCeiling
from pymllm.workloads.engine_config import CACHES_OF_STATES, EngineConfig
from pymllm.workloads.engine_pools import CACHE_MAKERS, check_allocator
from pymllm.workloads.engine_report import CacheTime, CutShort, cache_times
from pymllm.workloads.peak_memory import peak_rss_bytes
from pymllm.workloads.recorded_hits import RecordedHits
from pymllm.workloads.request import Request


@dataclass(frozen=True, slots=True)
class SerialConfig:
    """Sizes and switches of a serial replay.

    - ``cache``: Name of the prefix cache in `pymllm.workloads.engine_pools.CACHE_MAKERS`.
    - ``page_size``: Tokens per page.
    - ``capacity``: KV slots in tokens, cut down to whole pages.
    - ``check_ownership``: Let the allocator check who owns what it is given; its time is then part of what is
      measured.
    - ``check_every``: Check the cache's invariants after every n-th cache operation, and the allocator's
      after every request; 0 checks nothing. The checks are not in the times.
    - ``device``: Device of the allocator.
    - ``eviction_policy``: Of the cache, by name or as ``module:Name``; ``None`` for its own.
    - ``keeping``: With ``mamba``, where a prompt leaves states: at the end of each page, of its last page, or
      there and where its cached KV ends (`pymllm.replay.keeping`). States are numbers without
      memory, and as many as are asked for.
    """

    cache: str = "radix"
    page_size: int = 1
    capacity: int = 1_000_000
    check_ownership: bool = False
    check_every: int = 0
    device: str = "cpu"
    eviction_policy: str | None = None
    keeping: Keeping | None = None


@dataclass(frozen=True, slots=True)
class SerialReport:
    """Counts and times of one serial replay, which `msgspec` and `dataclasses.asdict` can convert.

    - ``config``: As used: the capacity rounded down to whole pages.
    - ``requests``, ``skipped``: Requests replayed, and those left out because their prompt is larger than
      half the capacity.
    - ``prompt_tokens``, ``hit_tokens``, ``ceiling_tokens``: Tokens of the replayed prompts, those of them
      that the cache served, and those that an unlimited cache would have served.
    - ``token_hit_rate``, ``ceiling_hit_rate``: The two above over ``prompt_tokens``; 0 where nothing was
      replayed.
    - ``evict_calls``, ``evicted_tokens``: Calls of ``evict``, and what they gave back.
    - ``match``, ``insert``, ``evict``, ``lock``, ``allocator``: Per request; ``lock`` covers locking and
      unlocking, ``allocator`` the sizes, ``alloc`` and ``free``.
    - ``total``: The five together, per request.
    - ``total_mean_us``: Mean of the same.
    - ``cache_operations``: Operations timed.
    - ``invariant_checks``: How often the cache's invariants were walked.
    - ``peak_tokens_stored``: Most slots at one time that were not free.
    - ``peak_states``: Most states at one time; ``None`` of a cache without states.
    - ``peak_rss_bytes``: Most resident memory of this process so far, the part before the run included;
      ``None`` where the platform does not tell.
    - ``wall_seconds``: Real time, expansion of prompts and checks included.
    - ``recorded``: What the recorded server had found beside these hits; ``None`` where it did not say.
    """

    config: SerialConfig
    requests: int
    skipped: int
    prompt_tokens: int
    hit_tokens: int
    ceiling_tokens: int
    token_hit_rate: float
    ceiling_hit_rate: float
    evict_calls: int
    evicted_tokens: int
    match: CacheTime
    insert: CacheTime
    evict: CacheTime
    lock: CacheTime
    allocator: CacheTime
    total: CacheTime
    total_mean_us: float
    cache_operations: int
    invariant_checks: int
    peak_tokens_stored: int
    peak_rss_bytes: int | None
    wall_seconds: float
    peak_states: int | None = None
    recorded: RecordedHits | None = None


def replay_serially(
    requests: Iterable[Request], config: SerialConfig, *, progress: Callable[[int], None] | None = None
) -> SerialReport:
    """Replay requests one by one, check that no slot was lost, and report (laws E3, E4).

    For each request whose prompt is at most half the capacity: match its prompt, hold what was found; evict
    the difference if fewer slots are free than the rest of the prompt needs in whole pages; allocate; insert
    the prompt's whole pages; give back whatever the cache did not adopt; release. Only cache and allocator
    are timed. An interrupt is raised as `CutShort`.
    """
    replay = SerialReplay(config)
    began = perf_counter()
    try:
        for done, request in enumerate(requests, 1):
            replay.take(request)
            if progress is not None:
                progress(done)
    except KeyboardInterrupt as interruption:
        raise CutShort(replay.report(perf_counter() - began), interruption) from interruption
    replay.check_nothing_lost()
    return replay.report(perf_counter() - began)


@dataclass(slots=True)
class _Times(CacheTimes):
    """The nanoseconds of one request, including those of the allocator."""

    allocator_ns: int = 0

    @property
    def total_ns(self) -> int:
        return self.match_ns + self.insert_ns + self.evict_ns + self.lock_ns + self.allocator_ns


@dataclass(slots=True)
class _Counts:
    """The counts collected during a replay."""

    skipped: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    peak_tokens_stored: int = 0
    peak_states: int = 0
    times: list[_Times] = field(default_factory=list)
    recorded: RecordedHits = field(default_factory=RecordedHits)


class SerialReplay:
    """One cache and one allocator, with counters, that serve one request after another."""

    def __init__(self, config: SerialConfig) -> None:
        known = CACHE_MAKERS.keys()
        if config.cache not in known:
            raise ValueError(f"cache is {config.cache!r}; choose one of {', '.join(sorted(known))}")
        if (config.cache in CACHES_OF_STATES) != (config.keeping is not None):
            raise ValueError(
                f"cache {config.cache!r} with keeping {config.keeping!r}: a cache of states needs to know "
                f"where they are kept ({', '.join(KEEPINGS)}), and no other one does"
            )
        has_states = config.keeping is not None
        sizes = EngineConfig(
            config.cache,
            config.page_size,
            capacity=config.capacity,
            max_running=1,
            # A state behind each page, and one that arrives where one is already.
            track_slots=config.capacity // config.page_size + 1 if has_states else None,
            eviction_policy=config.eviction_policy,
            check_every=config.check_every,
        ).rounded()
        self._config = replace(config, capacity=sizes.capacity)
        self._allocator = TokenToKVPoolAllocator(
            sizes.capacity,
            config.device,
            config.page_size,
            need_sort=False,  # nobody here asks for the lowest slots first
            check_ownership=checks_alone(config.check_ownership, config.device),
        )
        kind = CACHE_MAKERS[config.cache](sizes, self._allocator)
        self._states = kind.state_pool
        self._probe = CacheProbe(kind.cache, kind.check, config.check_every)
        self._ceiling = HitCeiling(config.page_size)
        self._counts = _Counts()

    @property
    def evicted_tokens(self) -> int:
        """The number of tokens evicted so far."""
        return self._probe.evicted_tokens

    def take(self, request: Request) -> None:
        """Replay one request, and count it."""
        if request.prompt_length > self._config.capacity // 2:
            self._counts.skipped += 1
            return
        times = _Times()
        self._count(request, self.serve(request.prompt(), request.namespace, times), times)

    def look(self, tokens: np.ndarray) -> int:
        """Return the number of leading tokens that are cached, and mark these as used."""
        return self._probe.match(RadixKey(tokens, None), _Times()).prefix_len

    def serve(self, tokens: np.ndarray, namespace: str | int | None, times: _Times | None = None) -> int:
        """Cache the whole pages of tokens, up to half the capacity; return how many were cached before."""
        key, times = RadixKey(tokens, namespace), times or _Times()
        match = self._probe.match(key, times)
        token = self._probe.lock(match.last_node, times)
        slots = self._allocate(len(key) - match.prefix_len, times)
        stored = self._config.capacity - self._allocator.available_size()
        self._counts.peak_tokens_stored = max(self._counts.peak_tokens_stored, stored)
        self._share(key, match, slots, times)
        self._probe.unlock(match.last_node, token, times)
        return match.prefix_len

    def _allocate(self, tokens: int, times: _Times) -> torch.Tensor:
        began = perf_counter_ns()
        page_size = self._config.page_size
        need = -(-tokens // page_size) * page_size
        short = need - self._allocator.available_size()
        times.allocator_ns += perf_counter_ns() - began
        if short > 0:
            self._probe.evict(short, 0, [times])
        began = perf_counter_ns()
        slots = self._allocator.alloc(need)
        times.allocator_ns += perf_counter_ns() - began
        if slots is None:
            raise InvariantViolation(
                "E4",
                f"{need} slots are needed and all but one prompt may be evicted, but after evict({short}) "
                f"only {self._allocator.available_size()} of {self._config.capacity} are free",
            )
        return slots

    def _share(self, key: RadixKey, match: MatchResult, slots: torch.Tensor, times: _Times) -> None:
        """Insert the whole pages, and free the slots that were not adopted: duplicates and the tail."""
        page_size = self._config.page_size
        aligned = len(key) // page_size * page_size
        value = torch.cat([match.indices, slots])[:aligned]
        adopted: list[tuple[int, int]] = []
        for end in self._ends(match, aligned):
            adopted += self._insert(key[:end], value[:end], times)
        own = _left_out(match.prefix_len + len(slots), match.prefix_len, adopted)
        began = perf_counter_ns()
        for first, last in own:
            self._allocator.free(slots[first - match.prefix_len : last - match.prefix_len])
        times.allocator_ns += perf_counter_ns() - began

    def _ends(self, match: MatchResult, aligned: int) -> Iterable[int]:
        """Return the lengths to insert in ascending order; where states are kept, each leaves a state."""
        page_size = self._config.page_size
        match self._config.keeping:
            case "every":
                return range(match.prefix_len + page_size, aligned + 1, page_size) or (aligned,)
            case "branch" if match.mamba_branching_seqlen not in (None, aligned):
                return (match.mamba_branching_seqlen, aligned)
        return (aligned,)

    def _insert(self, key: RadixKey, value: torch.Tensor, times: _Times) -> Sequence[tuple[int, int]]:
        if self._states is None or not len(key):
            return self._probe.insert(key, value, times).adopted
        slot = self._states.alloc_track_slot()
        assert slot is not None  # there are as many as pages, and one more
        result = self._probe.insert(key, value, times, mamba_value=torch.tensor([slot]))
        if result.mamba_exist:
            self._states.free_track_slot(slot)
        kept = self._states.max_track_slots - self._states.available_track_slots()
        self._counts.peak_states = max(self._counts.peak_states, kept)
        return result.adopted

    def _count(self, request: Request, hit_tokens: int, times: _Times) -> None:
        counts = self._counts
        self._ceiling.add(request)
        counts.prompt_tokens += request.prompt_length
        counts.hit_tokens += hit_tokens
        counts.recorded.add(request, hit_tokens)
        counts.times.append(times)
        if self._config.check_every:
            check_allocator(self._allocator)

    def check_nothing_lost(self) -> None:
        """Check law E3: with no holds, the pools and the cache own every slot."""
        cache, available = self._probe.cache, self._allocator.available_size()
        if available + cache.total_size() != self._config.capacity or cache.protected_size():
            raise InvariantViolation(
                "E3",
                f"{available} slots are free and {cache.total_size()} cached, "
                f"{cache.protected_size()} of them locked; "
                f"expected {self._config.capacity} in all and none locked",
            )

    def report(self, wall_seconds: float) -> SerialReport:
        """Return the report of the counts."""
        counts, probe, times = self._counts, self._probe, self._counts.times
        totals = [each.total_ns for each in times]
        return SerialReport(
            config=self._config,
            requests=len(times),
            skipped=counts.skipped,
            prompt_tokens=counts.prompt_tokens,
            hit_tokens=counts.hit_tokens,
            ceiling_tokens=self._ceiling.hit_tokens,
            token_hit_rate=counts.hit_tokens / max(1, counts.prompt_tokens),
            ceiling_hit_rate=self._ceiling.hit_rate,
            evict_calls=probe.evict_calls,
            evicted_tokens=probe.evicted_tokens,
            **cache_times(times, "match", "insert", "evict", "lock", "allocator", "total"),
            total_mean_us=sum(totals) / max(1, len(totals)) / 1000,
            cache_operations=probe.operations,
            invariant_checks=probe.checks,
            peak_tokens_stored=counts.peak_tokens_stored,
            peak_rss_bytes=peak_rss_bytes(sys.platform),
            wall_seconds=wall_seconds,
            peak_states=None if self._states is None else counts.peak_states,
            recorded=counts.recorded if counts.recorded.requests else None,
        )


def _left_out(end: int, start: int, adopted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of ``start .. end`` that are not adopted, in order."""
    ranges = []
    for first, last in (*adopted, (end, end)):
        if start < first:
            ranges.append((start, first))
        start = max(start, last)
    return ranges
