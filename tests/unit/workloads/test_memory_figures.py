"""Figures of an engine's memory are told by whoever keeps it, and stay as they were told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest

from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_report import MemoryCounts, MemoryUse
from pymllm.workloads.request import Request


def test_use_is_now_and_counts_are_since_the_start(
    engine_of: Callable[..., Engine], ask: Callable[..., Request]
) -> None:
    """E3: what is in use goes back to nothing held; what was done only rises."""
    engine = engine_of([ask(0, 5, 2)])
    assert engine.memory.use() == MemoryUse(0, 0, None)
    engine.step()
    assert engine.memory.use() == MemoryUse(5, 5, None)
    engine.run()
    assert engine.memory.use() == MemoryUse(0, 0, None)
    counts = engine.memory.counts()
    assert counts.cache_operations >= counts.invariant_checks > 0
    assert counts.dead_window_tokens is counts.evicted_states is counts.skipped_snapshots is None
    with pytest.raises(FrozenInstanceError):
        counts.evict_calls = 0  # type: ignore[misc]
    assert isinstance(counts, MemoryCounts)
