"""The time of a request in cache and allocator, and in a simulated engine.

T3: the conversation trace, serially, where PYMLLM_TRACES names its folder; named workloads everywhere,
serially and through the engine. `extra_info` has the mean and the median per request in cache and allocator,
in microseconds, the hit rate beside what an unlimited cache would hit, and what was evicted. Every run checks
that nothing is lost.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.notes import note
from pymllm.replay.serial import SerialConfig, SerialReport, replay_serially
from pymllm.traces.trace_file import read_trace
from pymllm.workloads.engine import Engine, EngineConfig
from pymllm.workloads.request import Request
from pymllm.workloads.source import TraceSource
from pymllm.workloads.synthetic import WORKLOADS, make_requests

REQUESTS = 4_000
TRACES = Path(os.environ.get("PYMLLM_TRACES", ""))
CONVERSATION = TRACES / "conversation_trace.jsonl"
NEEDS_TRACE = pytest.mark.skipif(
    not (os.environ.get("PYMLLM_TRACES") and CONVERSATION.is_file()),
    reason="PYMLLM_TRACES names no folder with conversation_trace.jsonl",
)
PAGES = pytest.mark.parametrize("page_size", [1, 16, 64], ids=lambda size: f"p{size}")


def note_serial(benchmark: BenchmarkFixture, report: SerialReport) -> None:
    note(
        benchmark,
        mean_us=report.total_mean_us,
        request_p50_us=report.total.median_us,
        request_p99_us=report.total.p99_us,
        hit_rate=report.token_hit_rate,
        unlimited_hit_rate=report.ceiling_hit_rate,
        evict_calls=report.evict_calls,
        evicted_tokens=report.evicted_tokens,
        operations=report.cache_operations,
        peak_rss_bytes=report.peak_rss_bytes,
    )


@NEEDS_TRACE
@PAGES
@pytest.mark.parametrize("capacity", [1 << 20, 8 << 20], ids=["1M", "8M"])
def test_conversation(benchmark: BenchmarkFixture, page_size: int, capacity: int) -> None:
    """T3: 80 us a request with 1,048,576 slots, 100 us with eight times as many."""
    requests = read_trace(str(CONVERSATION), requests=REQUESTS if benchmark.enabled else 200)
    config = SerialConfig(page_size=page_size, capacity=capacity)
    report = benchmark.pedantic(replay_serially, args=(requests, config), rounds=1)
    assert report.requests + report.skipped == len(requests)
    assert 0 < report.hit_tokens <= report.ceiling_tokens
    if (page_size, capacity, len(requests)) == (1, 1 << 20, REQUESTS):
        assert (report.evict_calls, report.evicted_tokens) == (1594, 49_488_445)  # docs/replay.md
    note_serial(benchmark, report)


def of_workload(name: str, benchmark: BenchmarkFixture) -> list[Request]:
    return make_requests(name, 500 if benchmark.enabled else 40)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_serially(benchmark: BenchmarkFixture, name: str) -> None:
    """Prompts of other shapes, in pools where memory is short."""
    requests = of_workload(name, benchmark)
    config = SerialConfig(page_size=16, capacity=4 * WORKLOADS[name].capacity)
    report = benchmark.pedantic(replay_serially, args=(requests, config), rounds=1)
    assert 0 < report.hit_tokens <= report.ceiling_tokens
    note_serial(benchmark, report)


@pytest.mark.parametrize(("name", "cache"), [*itertools.product(WORKLOADS, ["radix", "mamba"])])
def test_workload_in_an_engine(benchmark: BenchmarkFixture, name: str, cache: str) -> None:
    """The engine's own time is in the benchmark, that of the cache in `extra_info`."""
    requests = of_workload(name, benchmark)
    config = EngineConfig(cache=cache, page_size=16, capacity=WORKLOADS[name].capacity)
    report = benchmark.pedantic(lambda: Engine(config, TraceSource(requests)).run(), rounds=1)
    assert report.finished + report.rejected == report.requests == len(requests)
    assert report.hit_tokens > 0
    note(
        benchmark,
        match_p50_us=report.match.median_us,
        insert_p50_us=report.insert.median_us,
        evict_p99_us=report.evict.p99_us,
        hit_rate=report.token_hit_rate,
        unlimited_hit_rate=report.ceiling_hit_rate,
        evicted_tokens=report.evicted_tokens,
        operations=report.cache_operations,
        iterations=report.iterations,
    )
