"""The bytes of memory for each cached token.

T8: 1,000 distinct prompts of 4,096 tokens, in a process of its own; the pool, whose memory is there before,
and the caller's prompts are not counted. `extra_info` has the resident bytes per token.
"""

from __future__ import annotations

import time

from pytest_benchmark.fixture import BenchmarkFixture

from peers.benchmarks.footprint import LENGTH, PROMPTS, Footprint
from peers.benchmarks.own import OwnRadix


def test_bytes_per_token(benchmark: BenchmarkFixture) -> None:
    """T8: 12.5 bytes; what is cached has 4 of a token and 8 of its slot."""
    footprint = Footprint(OwnRadix, time.perf_counter_ns, 1.0 if benchmark.enabled else 0.1, 1)
    found = benchmark.pedantic(footprint.sample, rounds=1)
    # Little is cached where nothing is timed, and a part of it goes where the imports left room.
    assert found > (11.5 if benchmark.enabled else 6), "there is something that was not counted"
    assert footprint.facts["cached_tokens"] == PROMPTS * LENGTH * (1.0 if benchmark.enabled else 0.1)
    benchmark.extra_info.update(bytes_per_token=found, **footprint.facts)
