"""Counts become a report; what cannot be measured is unknown and not zero, and an interrupt loses nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import msgspec
import pytest

from pymllm.workloads.cache_probe import CacheTimes
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_report import CutShort, EngineReport, EngineTally, MemoryUse, peak_rss_bytes
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request
from pymllm.workloads.serial import SerialConfig, replay_serially
from pymllm.workloads.source import TraceSource
from pymllm.workloads.synthetic import make_requests

Ask = Callable[..., Request]
EngineOf = Callable[..., Engine]
REQUESTS = make_requests("chat", 20, seed=0, capacity=40_000)


def test_report_survives_json(engine_of: EngineOf, ask: Ask) -> None:
    """Whatever a run reports can be written and read again, unchanged."""
    report = engine_of([ask(0, 5, 3), ask(1, 6, 2)], sliding_window_size=4).run()
    assert msgspec.json.decode(msgspec.json.encode(report), type=EngineReport) == report


def test_request_is_counted_at_its_first_admission_only(ask: Ask) -> None:
    """M2: one that comes back does not raise the hit rate; KV beyond the usable prefix was lost."""
    tally, live = EngineTally(), LiveRequest(ask(0, 10), place=1, ceiling_tokens=8)
    live.held_length, live.branching_length = 4, 9
    tally.count_admission(live)
    live.held_length = 9
    tally.count_admission(live)
    assert (tally.prompt_tokens, tally.hit_tokens, tally.ceiling_tokens, tally.stateless_tokens) == (
        (10, 4, 8, 5)
    )


def test_times_are_summed_up_over_requests(engine_of: EngineOf, ask: Ask) -> None:
    """Median and 99th percentile are microseconds per finished request."""
    engine, tally = engine_of([]), EngineTally()
    empty = tally.report(engine.config, engine.memory.counts(), 0)
    assert (empty.match.median_us, empty.token_hit_rate, empty.dead_window_tokens) == (0.0, 0.0, None)
    for number in range(101):
        live = LiveRequest(ask(number, 10, 3), place=number)
        live.times = CacheTimes(match_ns=1000 * number, insert_ns=0, evict_ns=0, lock_ns=5000)
        tally.count_finish(live)
    report = tally.report(engine.config, engine.memory.counts(), 0)
    assert (report.match.median_us, report.match.p99_us) == (50.0, 99.0)
    assert (report.lock.median_us, report.evict.p99_us) == (5.0, 0.0)
    assert (report.finished, report.output_tokens) == (101, 303)


def test_peaks_only_rise(engine_of: EngineOf, ask: Ask) -> None:
    """E3: held is what no eviction could free; stored is all that is not free."""
    engine, tally = engine_of([ask(0, 5, 3)]), EngineTally()
    engine.step()
    assert engine.memory.use() == MemoryUse(5, 5, None)
    tally.count_memory(engine.memory.use())
    while engine.step():
        pass
    tally.count_memory(engine.memory.use())
    assert (tally.peak_tokens_held, tally.peak_tokens_stored) == (5, 7)
    engine.evict_everything()
    assert engine.memory.use() == MemoryUse(0, 0, None)


def test_states_are_unknown_to_a_cache_without_any(engine_of: EngineOf, ask: Ask) -> None:
    """Null and not zero; with states the peak only rises."""
    plain = engine_of([]).run()
    assert plain.peak_states_held is plain.evicted_states is plain.stateless_tokens is None
    assert plain.skipped_snapshots is None
    report = engine_of([ask(0, 12, 2), ask(1, 12, 2)], cache="mamba").run()
    assert (report.peak_states_held, report.evicted_states, report.skipped_snapshots) == (2, 0, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module")
def test_peak_memory_has_the_unit_of_its_platform() -> None:
    """Linux counts kilobytes, macOS bytes; unknown is None and never zero."""
    in_bytes, scaled = peak_rss_bytes("darwin"), peak_rss_bytes("linux")
    assert in_bytes is not None
    assert scaled is not None
    assert scaled >= 1024 * in_bytes > 0
    assert peak_rss_bytes("win32") is None


def interrupt_at(done: int) -> None:
    if done >= 5:
        raise KeyboardInterrupt("enough")


def test_an_engine_that_is_interrupted_reports_what_it_did() -> None:
    """It is an interrupt all the same, and the first one is its cause."""
    engine = Engine(EngineConfig("radix", capacity=40_000), TraceSource(REQUESTS), progress=interrupt_at)
    with pytest.raises(KeyboardInterrupt) as caught:
        engine.run()
    assert isinstance(caught.value, CutShort)
    assert str(caught.value.interruption) == "enough"
    assert 5 <= caught.value.report.finished < 20
    assert caught.value.report.requests >= caught.value.report.finished


def test_a_serial_replay_that_is_interrupted_reports_what_it_did() -> None:
    """Five requests, each whole; any other error goes through."""
    with pytest.raises(CutShort) as caught:
        replay_serially(REQUESTS, SerialConfig("radix", 1, 100_000), progress=interrupt_at)
    assert caught.value.report.requests + caught.value.report.skipped == 5
    assert caught.value.report.wall_seconds > 0

    def broken() -> Iterator[Request]:
        raise ValueError("no trace")
        yield

    with pytest.raises(ValueError, match="no trace"):
        replay_serially(broken(), SerialConfig("radix", 1, 100_000))
