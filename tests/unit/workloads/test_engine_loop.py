"""The loop of every engine: admission, time, arrivals, choices, rest at the end, and what is reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pymllm.errors import UsageError
from pymllm.replay.serial import SerialConfig, replay_serially
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.cache_probe import CacheTimes
from pymllm.workloads.engine import AdmissionRule, Engine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_report import (
    CacheTime,
    CutShort,
    EngineReport,
    EngineTally,
    MemoryUse,
)
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.peak_memory import peak_rss_bytes
from pymllm.workloads.request import Request
from pymllm.workloads.source import RandomSource, Stage, TraceSource
from pymllm.workloads.synthetic import make_requests

Ask = Callable[..., Request]
EngineOf = Callable[..., Engine | BlockEngine]
Script = Callable[..., Any]


def rule_of(engine: Engine) -> AdmissionRule:
    """Take an engine's own sizes."""
    return AdmissionRule(engine.config, engine.memory)


@pytest.mark.parametrize(
    ("prompt", "output", "fits"),
    [(32, 1, True), (30, 3, True), (30, 4, False), (33, 1, False), (1, 32, True), (1, 33, False)],
)
def test_request_fits_if_its_kv_does(
    engine_of: EngineOf, ask: Ask, prompt: int, output: int, fits: bool
) -> None:
    """The last output token needs no slot."""
    engine = engine_of([], capacity=32, page_size=4)
    assert rule_of(engine).can_ever_fit(LiveRequest(ask(0, prompt, output), place=1)) is fits


def test_request_longer_than_a_row_never_fits(engine_of: EngineOf, ask: Ask) -> None:
    """P2: a row cannot name more tokens than it has positions."""
    rule = rule_of(engine_of([], max_context=10))
    assert rule.can_ever_fit(LiveRequest(ask(0, 10, 1), place=1))
    assert not rule.can_ever_fit(LiveRequest(ask(0, 10, 2), place=1))


@pytest.mark.parametrize(("swa_capacity", "fits"), [(20, True), (16, False)])
def test_window_must_fit_twice_with_a_page(
    engine_of: EngineOf, ask: Ask, swa_capacity: int, fits: bool
) -> None:
    """S5: the window held in the tree and the one grown in decode live side by side."""
    engine = engine_of([], page_size=4, sliding_window_size=6, swa_capacity=swa_capacity)
    rule = rule_of(engine)
    assert rule.can_ever_fit(LiveRequest(ask(0, 20, 20), place=1)) is fits
    assert rule.can_ever_fit(LiveRequest(ask(0, 10, 3), place=1))


def test_admission_succeeds_at_the_last_free_page(engine_of: EngineOf, ask: Ask) -> None:
    """E4: exactly enough suffices, one page less does not, promises and headroom included."""
    engine = engine_of([], capacity=32, page_size=4)
    rule, live = rule_of(engine), LiveRequest(ask(0, 17), place=1)
    other = LiveRequest(ask(1, 10), place=2)
    other.length = 5
    assert rule.suffices(live, [other], headroom=8)
    assert not rule.suffices(live, [other], headroom=12)
    assert engine.memory.pools.allocator.alloc(12) is not None
    assert rule.suffices(live, [], headroom=0)
    assert engine.memory.pools.allocator.alloc(1) is not None
    assert not rule.suffices(live, [], headroom=0)


def test_window_half_needs_room_for_one_window_and_a_page(engine_of: EngineOf, ask: Ask) -> None:
    """E4: a long prompt passes through a small SWA half, a window at a time."""
    engine = engine_of([], page_size=4, sliding_window_size=6, swa_capacity=24)
    rule, live = rule_of(engine), LiveRequest(ask(0, 50), place=1)
    assert rule.suffices(live, [], headroom=12)
    assert not rule.suffices(live, [], headroom=14)
    assert engine.memory.pools.allocator.alloc(16) is not None
    assert not rule.suffices(live, [], headroom=0)
    assert rule.suffices(LiveRequest(ask(1, 8), place=2), [], headroom=0)


CLASSES: dict[str, type[Engine | BlockEngine]] = {"radix": Engine, "blocks": BlockEngine}


@pytest.fixture(params=CLASSES)
def loop_of(request: pytest.FixtureRequest, engine_of: EngineOf) -> EngineOf:
    """Make a small engine of each class that checks everything."""
    return lambda source, **changes: engine_of(source, cache=request.param, **changes)


def test_idle_time_is_jumped_over(loop_of: EngineOf, ask: Ask) -> None:
    """Virtual time passes in gaps, iterations do not."""
    report = loop_of([ask(0, 4, 2), ask(1, 4, 2, arrival_ms=60_000.0)], iteration_ms=25.0).run()
    assert report.iterations == 4
    assert report.virtual_seconds == pytest.approx(60.05)


@pytest.mark.parametrize("cache", CLASSES)
def test_progress_counts_ended_requests(cache: str, script: Script, ask: Ask) -> None:
    """The callback sees every settled request, rejected and aborted ones included."""
    seen: list[int] = []
    source = script([ask(0, 9, 5), ask(1, 99, 1), ask(2, 9, 9)], aborts={(2, Stage.DECODE): 2})
    CLASSES[cache](EngineConfig(cache=cache, capacity=32), source, progress=seen.append).run()
    assert seen == sorted(set(seen))
    assert seen[-1] == 3


def test_source_may_have_more_requests_later(loop_of: EngineOf, ask: Ask) -> None:
    """A searcher feeds requests in while it steps the engine."""
    later: list[Request] = []

    class Fed(TraceSource):
        def next_request(self) -> Request | None:
            return later.pop(0) if later else None

    engine = loop_of(Fed([]))
    assert not engine.step()
    for number in range(2):
        later.append(ask(number, 5, 2))
        assert engine.step()
        assert engine.step()
        assert not engine.step()
    assert engine.report().finished == 2


def test_checks_for_rest_refuse_a_running_engine(loop_of: EngineOf, ask: Ask) -> None:
    """X1: what is left is a question for an engine at rest."""
    engine = loop_of([ask(0, 5, 9)])
    engine.step()
    for check in (engine.check_quiescent, engine.evict_everything):
        with pytest.raises(UsageError, match="run or drain"):
            check()


@pytest.mark.parametrize("chunk", [0, 99])
def test_impossible_chunk_is_the_sources_mistake(chunk: int, loop_of: EngineOf, ask: Ask) -> None:
    """X1: the message names the bound."""

    class Greedy(TraceSource):
        def chunk_limit(self, request_id: int, limit: int) -> int:
            return chunk

    with pytest.raises(UsageError, match=rf"chunk_limit gave {chunk} tokens; it must be in 1\.\.9"):
        loop_of(Greedy([ask(0, 9)])).run()


def test_unknown_victim_is_the_sources_mistake(loop_of: EngineOf, ask: Ask, script: Script) -> None:
    """X1: only a live request can be retracted."""
    with pytest.raises(UsageError, match=r"retract_victim gave 7; it must be one of \[0, 1, 2\]"):
        loop_of(script([ask(n, 12, 30) for n in range(3)], victims=[7])).run()


@pytest.mark.parametrize("cache", CLASSES)
def test_a_refused_head_is_not_asked_again_before_something_changes(
    cache: str, script: Script, ask: Ask
) -> None:
    """E4: while others only decode it has no better chance; who follows is asked once it leaves."""
    seen: list[tuple[int, Event, int]] = []
    requests = [ask(0, 9, 25), ask(1, 40, 1), ask(2, 4, 1)]
    source = script(requests, aborts={(1, Stage.QUEUED): 12})
    engine = CLASSES[cache](
        EngineConfig(cache=cache, capacity=48, max_running=3),
        source,
        onlooker=lambda event, live: seen.append((engine.report().iterations, event, live.request_id)),
    )
    engine.run()
    refused = {at for at, event, number in seen if event is Event.REFUSED}
    assert 0 in refused
    assert refused <= {0, 1}  # the prompt of the first is computed, and may be cached, in iteration 0
    assert (11, Event.ABORTED, 1) in seen
    assert (11, Event.ADMITTED, 2) in seen


def test_requests_are_served_in_order_of_arrival(loop_of: EngineOf, ask: Ask) -> None:
    """A short request does not overtake a long one that waits for memory."""
    engine = loop_of([ask(0, 40, 4), ask(1, 40, 2), ask(2, 4, 2)], page_size=4, chunk_tokens=64)
    engine.step()
    assert [live.request_id for live in engine.queue] == [1, 2]
    assert engine.run().finished == 3


@pytest.mark.parametrize("kind", [{}, {"cache": "blocks", "mamba_chunk_size": 2}], ids=CLASSES)
def test_namespaces_share_nothing(kind: dict[str, Any], engine_of: EngineOf, ask: Ask) -> None:
    """K1: equal prompts of other namespaces are computed again, those of the same one are not."""
    requests = [
        ask(n, 18, tokens=range(100, 118), namespace=name, arrival_ms=100.0 * n)
        for n, name in enumerate([None, "a", 1, "1", "a"])
    ]
    report = engine_of(requests, page_size=4, capacity=256, chunk_tokens=32, **kind).run()
    assert report.hit_tokens == report.ceiling_tokens == 16


def test_same_seed_makes_the_same_run(loop_of: EngineOf) -> None:
    """X3: two runs agree in everything but what a clock or the process has measured."""
    none = CacheTime(0.0, 0.0)
    measured = {"match": none, "insert": none, "evict": none, "lock": none, "wall_seconds": 0.0}
    one, two = (loop_of(RandomSource(5, requests=40), page_size=4).run() for _ in "ab")
    assert replace(one, peak_rss_bytes=0, **measured) == replace(two, peak_rss_bytes=0, **measured)


@pytest.mark.parametrize("cache", CLASSES)
def test_unwatched_engine_reports_no_checks(cache: str, ask: Ask) -> None:
    """E1, E2: checks that are off are not counted as made."""
    engine = CLASSES[cache](EngineConfig(cache=cache, page_size=4, capacity=32), TraceSource([ask(0, 9, 5)]))
    while engine.step():
        pass
    report = engine.report()
    assert (report.invariant_checks, report.content_tokens, report.finished) == (0, 0, 1)
    assert engine.watch.forward is None
    assert +engine.watch.tested == {"E4": 1}


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
