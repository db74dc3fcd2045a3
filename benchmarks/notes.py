"""Percentiles and counts that pytest-benchmark does not put into its results."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["note"]


def note(benchmark: BenchmarkFixture, **facts: Any) -> None:
    """Add percentiles in microseconds, and counts."""
    stats = benchmark.stats
    if stats is not None:  # None while benchmarks run untimed
        p50, p95, p99 = np.percentile(stats.stats.data, [50, 95, 99]) * 1e6
        benchmark.extra_info.update(p50_us=float(p50), p95_us=float(p95), p99_us=float(p99))
    benchmark.extra_info.update(facts)
