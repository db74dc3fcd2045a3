"""The head of a recorded trace through the engine, with every look that the engine has.

The trace stays with its owners: ``PYMLLM_TRACES`` names the folder that has Mooncake's
``conversation_trace.jsonl``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_report import EngineReport
from pymllm.workloads.request import Request
from pymllm.workloads.source import TraceSource

TRACE = Path(os.environ.get("PYMLLM_TRACES", "")) / "conversation_trace.jsonl"
pytestmark = pytest.mark.skipif(
    not TRACE.is_file(), reason="PYMLLM_TRACES names no folder with conversation_trace.jsonl"
)


def read_head() -> list[Request]:
    trace_file = pytest.importorskip("pymllm.traces.trace_file", reason="needs msgspec, to read the trace")
    requests: list[Request] = trace_file.read_trace(TRACE, requests=40)
    return requests


def replay(device: torch.device, **sizes: Any) -> EngineReport:
    """Run the trace with contents compared and all invariants walked after every cache operation."""
    config = EngineConfig(content_check=True, check_every=1, device=str(device), **sizes)
    report = Engine(config, TraceSource(read_head())).run()
    assert report.requests == 40
    assert report.content_tokens > report.prompt_tokens
    assert report.invariant_checks >= report.cache_operations > 0
    return report


def test_a_large_cache_hits_whatever_was_seen(kv_device: torch.device) -> None:
    """E1, E3: with room for everything, nothing is evicted and each prefix seen before is a hit."""
    report = replay(kv_device, page_size=1, capacity=1_000_000)
    assert (report.finished, report.evict_calls) == (40, 0)
    assert report.hit_tokens == report.ceiling_tokens > 0


def test_a_tight_pool_retracts_and_still_reads_its_own(kv_device: torch.device) -> None:
    """E1, E3, E4: requests are thrown out and come back, and read their own writes."""
    report = replay(kv_device, page_size=16, capacity=60_000)
    assert (report.finished, report.rejected) == (39, 1)
    assert report.retractions > 0
    assert report.evicted_tokens > 0


def test_a_window_gives_its_halves_back(kv_device: torch.device) -> None:
    """E1, E3, S1: halves die behind the window, and no request reads through one."""
    report = replay(kv_device, page_size=64, capacity=200_000, swa_capacity=100_000, sliding_window_size=4096)
    assert report.finished == 40
    assert report.evicted_swa_tokens > report.evicted_tokens


@pytest.mark.parametrize("page_size", [1, 16])
def test_states_are_few_and_every_one_is_right(page_size: int, kv_device: torch.device) -> None:
    """E1, E3, M2: track slots run out all the time, and a restored state is a cold run's state."""
    report = replay(kv_device, cache="mamba", page_size=page_size, capacity=200_000, track_slots=3)
    assert report.finished == 40
    assert (report.peak_states_held, report.evicted_tokens > 0) == (3, True)
    assert report.evicted_states is not None
    assert report.skipped_snapshots is not None
    assert min(report.evicted_states, report.skipped_snapshots) > 0
    assert 0 < report.hit_tokens < report.ceiling_tokens


@pytest.mark.parametrize(
    ("block_size", "slots", "policy"),
    [(16, 64, "lru"), (64, 3, "ref_zero"), (256, 1, "lru"), (256, None, "lru")],
)
def test_blocks_and_their_states_are_what_a_cold_run_has(
    block_size: int, slots: int | None, policy: str, kv_device: torch.device
) -> None:
    """E1-E5, C1-C8: through pauses, evictions and restores, for every request of a batch."""
    config = EngineConfig(
        cache="blocks",
        page_size=block_size,
        capacity=61_440,
        track_slots=slots,
        mamba_chunk_size=min(block_size, 128),
        eviction_policy=policy,
        content_check=True,
        check_every=150,
        device=str(kv_device),
    )
    engine = BlockEngine(config, TraceSource(read_head()))
    report = engine.run()
    assert (report.requests, report.finished, report.rejected) == (40, 39, 1)
    assert report.content_tokens > report.prompt_tokens
    assert report.invariant_checks > 0
    assert report.peak_states_held is not None
    assert report.skipped_snapshots is not None
    if slots == 1:
        assert (report.peak_states_held, report.skipped_snapshots > 0) == (1, True)
    if policy == "lru":
        assert report.evicted_tokens > 0
    else:
        assert report.evict_calls == report.evicted_tokens == 0
    assert engine.watch.tested["C7"] > 0
