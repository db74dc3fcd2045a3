"""Counts become a report; what cannot be measured is unknown and not zero."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from pymllm.workloads.cache_probe import CacheTimes
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_report import EngineTally, peak_rss_bytes
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request


def test_request_is_counted_at_its_first_admission_only(ask: Callable[..., Request]) -> None:
    """A retracted request that comes back does not raise the hit rate with its own tokens."""
    tally, live = EngineTally(), LiveRequest(ask(0, 10), place=1, ceiling_tokens=8)
    live.held_length = 4
    tally.count_admission(live)
    live.held_length = 9
    tally.count_admission(live)
    assert (tally.prompt_tokens, tally.hit_tokens, tally.ceiling_tokens) == (10, 4, 8)


def test_times_are_summed_up_over_requests(
    engine_of: Callable[..., Engine], ask: Callable[..., Request]
) -> None:
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


def test_peaks_only_rise(engine_of: Callable[..., Engine], ask: Callable[..., Request]) -> None:
    """Held is what no eviction could free; stored is all that is not free."""
    engine, tally = engine_of([ask(0, 5, 3)]), EngineTally()
    engine.step()
    tally.count_memory(engine.memory.use())
    assert (tally.peak_tokens_held, tally.peak_tokens_stored) == (5, 5)
    while engine.step():
        pass
    tally.count_memory(engine.memory.use())
    assert (tally.peak_tokens_held, tally.peak_tokens_stored) == (5, 7)


def test_hits_lost_for_want_of_a_state_are_counted(ask: Callable[..., Request]) -> None:
    """M2: the KV beyond the usable prefix, at a request's first admission."""
    tally = EngineTally()
    for branching in (0, 9):
        live = LiveRequest(ask(0, 10), place=1)
        live.held_length, live.branching_length = 4, branching
        tally.count_admission(live)
    assert tally.stateless_tokens == 5


def test_states_are_unknown_to_a_cache_without_any(
    engine_of: Callable[..., Engine], ask: Callable[..., Request]
) -> None:
    """Null and not zero; with states the peak only rises."""
    plain = engine_of([]).run()
    assert plain.peak_states_held is plain.evicted_states is plain.stateless_tokens is None
    assert plain.skipped_snapshots is None
    report = engine_of([ask(0, 12, 2), ask(1, 12, 2)], cache="mamba").run()
    assert (report.peak_states_held, report.evicted_states, report.skipped_snapshots) == (2, 0, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module")
def test_peak_memory_has_the_unit_of_its_platform() -> None:
    """Linux counts kilobytes, macOS bytes."""
    in_bytes, scaled = peak_rss_bytes("darwin"), peak_rss_bytes("linux")
    assert in_bytes is not None
    assert scaled is not None
    assert scaled >= 1024 * in_bytes > 0


def test_unreadable_peak_memory_is_unknown() -> None:
    """Unknown is None and never zero."""
    assert peak_rss_bytes("win32") is None
