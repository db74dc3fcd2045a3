"""The results of ``pymllm replay``, as records."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pymllm.instrument.documents import Document, Row
from pymllm.oracle.laws.law import Broken
from pymllm.oracle.runs import find_contradiction

_BLOCKS = "blocks"


def column_of(cache: str, policy: str | None) -> str:
    """Return the heading for a cache, with its eviction policy if one was chosen."""
    if policy is None:
        return cache
    return f"{cache} {policy.replace('_', '-') if cache == _BLOCKS else policy}"


class WorkloadRow(Row, frozen=True, kw_only=True):
    """The replayed workload: a named one of this package, or a trace."""

    name: str
    kind: Literal["named", "trace"]
    requests: int
    seed: int
    block_tokens: int | None = None


class AskedRow(Row, frozen=True, kw_only=True, omit_defaults=True):
    """Sizes as requested, before rounding; lists if there are several."""

    capacity: int | None
    swa_capacity: int | None
    capacities: tuple[int | None, ...] = ()
    page_sizes: tuple[int, ...] = ()


class CacheTime(Row, frozen=True):
    """Microseconds that a request spent in one kind of cache operation."""

    median_us: float
    p99_us: float


class ReplayConfig(Row, frozen=True, kw_only=True):
    """The settings of a replayed cache as used, with capacities in whole pages.

    As of `pymllm.workloads.engine_config.EngineConfig`, and of `pymllm.replay.serial.SerialConfig` where
    there was no engine: what only one of them has is not there with the other.
    """

    cache: str
    page_size: int
    sliding_window_size: int | None = None
    capacity: int
    swa_capacity: int | None = None
    track_slots: int | None = None
    mamba_chunk_size: int | None = None
    eviction_policy: str | None = None
    paused_capacity: int | None = None
    max_running: int | None = None
    max_context: int | None = None
    chunk_tokens: int | None = None
    iteration_ms: float | None = None
    decode_headroom: int | None = None
    release_window_early: bool | None = None
    content_check: bool | None = None
    check_ownership: bool | None = None
    check_every: int = 0
    seed: int | None = None
    device: str = "cpu"

    @property
    def column(self) -> str:
        """The heading for the cache, with its eviction policy if one was chosen."""
        is_own = (self.cache, self.eviction_policy) == (
            "blocks",
            "lru",
        )  # told of blocks that were given none
        return column_of(self.cache, None if is_own else self.eviction_policy)


class RecordedRow(Row, frozen=True, kw_only=True):
    """Counts of requests by comparison of the recorded server's cached tokens with the replay's hits.

    As of `pymllm.workloads.recorded_hits.RecordedHits`.
    """

    requests: int
    recorded_tokens: int
    replayed_tokens: int
    equal: int
    last_block: int
    fewer: int
    more: int


class ReplayRun(Row, frozen=True, kw_only=True):
    """A run of one cache over a workload; fields of the other mode (engine or serial) are absent.

    As of `pymllm.workloads.engine_report.EngineReport` and `pymllm.replay.serial.SerialReport`. Null is
    what the cache has not.
    """

    config: ReplayConfig
    requests: int
    finished: int | None = None
    rejected: int | None = None
    aborted: int | None = None
    retractions: int | None = None
    pauses: int | None = None
    skipped: int | None = None
    prompt_tokens: int
    hit_tokens: int = 0
    ceiling_tokens: int = 0
    token_hit_rate: float
    ceiling_hit_rate: float
    computed_tokens: int | None = None
    recomputed_tokens: int | None = None
    uncomputed_tokens: int | None = None
    output_tokens: int | None = None
    evict_calls: int = 0
    evicted_tokens: int
    evicted_swa_tokens: int | None = None
    dead_window_tokens: int | None = None
    stateless_tokens: int | None = None
    peak_states_held: int | None = None
    evicted_states: int | None = None
    skipped_snapshots: int | None = None
    match: CacheTime
    insert: CacheTime
    evict: CacheTime
    lock: CacheTime
    allocator: CacheTime | None = None
    total: CacheTime | None = None
    total_mean_us: float | None = None
    cache_operations: int = 0
    invariant_checks: int = 0
    content_tokens: int | None = None
    peak_tokens_held: int | None = None
    peak_tokens_stored: int
    peak_rss_bytes: int | None
    iterations: int | None = None
    virtual_seconds: float | None = None
    wall_seconds: float
    recorded: RecordedRow | None = None

    def is_whole(self, requests: int) -> bool:
        """Tell whether so many requests arrived and ended."""
        ended = self.requests
        if self.finished is not None:
            ended = self.finished + (self.rejected or 0) + (self.aborted or 0)
        return ended + (self.skipped or 0) == requests


_OF_SERIAL = {"skipped", "allocator", "total", "total_mean_us", "check_ownership"}
_OF_ENGINE = {
    *("finished", "rejected", "aborted", "retractions", "pauses"),
    *("computed_tokens", "recomputed_tokens", "uncomputed_tokens", "output_tokens"),
    *("evicted_swa_tokens", "dead_window_tokens", "stateless_tokens", "peak_states_held", "evicted_states"),
    *("skipped_snapshots", "content_tokens", "peak_tokens_held", "iterations", "virtual_seconds"),
    *("sliding_window_size", "swa_capacity", "track_slots", "mamba_chunk_size"),
    *("paused_capacity", "max_running", "max_context", "chunk_tokens", "iteration_ms", "decode_headroom"),
    *("release_window_early", "content_check", "seed"),
}


class ReplayViolation(Row, frozen=True):
    """A law that a run found broken."""

    cache: str
    law: str
    message: str


class CeilingRow(Row, frozen=True, kw_only=True):
    """The highest possible hit rates at one size; Belady's is null for an engine.

    ``prompt_tokens`` are those of the requests that are replayed with this size.
    """

    page_size: int
    capacity: int
    prompt_tokens: int = 0
    unlimited_hit_rate: float
    belady_hit_rate: float | None


class ReplayDocument(Document, frozen=True, kw_only=True, tag="pymllm.replay"):
    """The document that ``pymllm replay --json`` prints; there are ceilings where there are several sizes."""

    versions: dict[str, str]
    workload: WorkloadRow
    mode: Literal["engine", "serial"]
    asked: AskedRow = AskedRow(capacity=None, swa_capacity=None)
    runs: tuple[ReplayRun, ...]
    violation: ReplayViolation | None = None
    interrupted: bool = False
    ceilings: tuple[CeilingRow, ...] = ()

    def judged(self) -> ReplayDocument:
        """Return the document without contradictory runs, the first of which is a violation (law E6)."""
        found = [(run, self._find_contradiction(run)) for run in self.runs]
        broken = next(((run, wrong) for run, wrong in found if wrong is not None), None)
        if broken is None:
            return self
        run, wrong = broken
        told = f"{wrong.what}: expected {wrong.expected}, observed {wrong.observed}"
        before = self.violation
        also = "" if before is None else f"; and {before.cache} breaks {before.law}: {before.message}"
        return msgspec.structs.replace(
            self,
            runs=tuple(run for run, wrong in found if wrong is None),
            violation=ReplayViolation(run.config.column, "E6", f"the run contradicts itself, {told}{also}"),
        )

    def _find_contradiction(self, run: ReplayRun) -> Broken | None:
        requests = self.workload.requests
        if self.interrupted and not run.is_whole(requests):
            return None
        # Of several sizes, those of a named workload may differ in their requests.
        return find_contradiction(msgspec.structs.asdict(run), None if self.asked.page_sizes else requests)

    def plain(self) -> dict[str, Any]:
        """Return the document without those fields of its runs that the mode (engine or serial) lacks."""
        plain = super().plain()
        absent = _OF_ENGINE if self.mode == "serial" else _OF_SERIAL
        for run in (run for kept in plain["runs"] for run in (kept, kept["config"])):
            for name in absent & run.keys():
                del run[name]
        for run in plain["runs"]:
            if run["recorded"] is None:
                del run["recorded"]
        if not self.asked.page_sizes:
            del plain["ceilings"]
        return plain
