"""The counters of a run are compared with a count of their own of what happened to each request (law E6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymllm.errors import InvariantViolation
from pymllm.workloads.engine_counts import CountedRun
from pymllm.workloads.engine_report import EngineReport, EngineTally
from pymllm.workloads.live_request import LiveRequest, LiveSequence
from pymllm.workloads.request import Request
from pymllm.workloads.source import RandomSource, Stage

Ask = Callable[..., Request]
EngineOf = Callable[..., Any]
Script = type[Any]

ENGINES: list[dict[str, object]] = [
    {"page_size": 4, "capacity": 40},
    {"page_size": 1, "capacity": 96, "sliding_window_size": 8, "swa_capacity": 40},
    {"page_size": 4, "capacity": 64, "cache": "mamba", "track_slots": 4},
    {"page_size": 4, "capacity": 48, "cache": "blocks", "mamba_chunk_size": 2, "paused_capacity": 16},
]
each_engine = pytest.mark.parametrize("changes", ENGINES, ids=["radix", "window", "mamba", "blocks"])


@pytest.mark.notices(
    "B300", "B301", "B302", "B303", "B304", "B305", "B306", "B307", "B308", "B309", when="radix"
)
@pytest.mark.notices("B300-engine", "B301-engine", "B306-engine", "B308-engine", when="blocks")
@each_engine
def test_requests_that_come_and_go_are_counted_once(changes: dict[str, object], engine_of: EngineOf) -> None:
    """E6: prompts, hits and computed tokens of aborted, retracted and refused requests add up."""
    report = engine_of(RandomSource(seed=3, requests=150, max_prompt=24, mean_gap_ms=5.0), **changes).run()
    assert min(report.retractions, report.aborted, report.rejected + report.finished) > 0
    assert min(report.hit_tokens, report.recomputed_tokens, report.uncomputed_tokens) > 0
    assert prompts_of(report) == report.prompt_tokens
    assert report.hit_tokens <= report.ceiling_tokens < report.prompt_tokens


def prompts_of(report: EngineReport) -> int:
    """Return the prompt tokens that hits and computed tokens make."""
    first = report.computed_tokens - report.recomputed_tokens
    return report.hit_tokens + first + report.uncomputed_tokens


def test_a_retracted_request_counts_once(engine_of: EngineOf, ask: Ask, script: Script) -> None:
    """E6: what it finds cached of itself is no hit, and what it computes anew is told apart."""
    requests = [ask(0, 12, 30), ask(1, 14, 30)]
    report = engine_of(script(requests, chunk=8), capacity=48, page_size=4).run()
    assert report.retractions > 0
    assert (report.prompt_tokens, report.hit_tokens, report.uncomputed_tokens) == (26, 0, 0)
    assert report.computed_tokens == 26 + report.recomputed_tokens > 26


@pytest.mark.parametrize("cache", ["radix", "blocks"])
def test_what_an_abort_leaves_uncomputed_is_told(
    cache: str, engine_of: EngineOf, ask: Ask, script: Script
) -> None:
    """E6: a request that goes between two chunks has computed one of them."""
    source = script([ask(0, 20)], aborts={(0, Stage.PREFILL): 1}, chunk=8)
    report = engine_of(source, page_size=4, cache=cache).run()
    assert (report.prompt_tokens, report.computed_tokens, report.uncomputed_tokens) == (20, 8, 12)


# -- each counter --------------------------------------------------------------------------------------------


def make_live(hit: int = 4, ceiling: int = 8) -> LiveRequest:
    """Make a request of ten prompt tokens and three to produce, of which an unlimited cache serves eight."""
    live = LiveRequest(Request(7, 0.0, 10, 3, (5,), 10), place=1, ceiling_tokens=ceiling)
    live.held_length = live.length = hit
    return live


def play(counted: CountedRun, tally: EngineTally) -> None:
    """Let a request be admitted, retracted between two chunks, admitted again and finished."""
    live = make_live()
    tally.requests += 1
    for hit, length in ((4, 6), (6, 10)):
        live.held_length = live.length = hit
        counted.admit(live)
        tally.count_admission(live)
        tally.count_computed(live, length - hit)
        live.length = length
        if length < 10:
            counted.retract(live)
            tally.count_leaving(live)
            tally.retractions += 1
    counted.finish(live)
    tally.count_finish(live)


def test_two_counts_of_a_run_agree() -> None:
    """E6: and only a comparison that follows an admission is a test."""
    counted, tally = CountedRun(), EngineTally()
    assert not counted.check(tally)
    play(counted, tally)
    assert (tally.prompt_tokens, tally.hit_tokens, tally.ceiling_tokens) == (10, 4, 8)
    assert (tally.computed_tokens, tally.recomputed_tokens, tally.uncomputed_tokens) == (6, 4, 4)
    assert counted.check(tally)
    assert not counted.check(tally)


@pytest.mark.parametrize("name", CountedRun._SUMS)
def test_each_counter_that_differs_is_named(name: str) -> None:
    """E6: with both counts, and of how many requests."""
    counted, tally = CountedRun(), EngineTally()
    play(counted, tally)
    right = getattr(tally, name)
    setattr(tally, name, right + 1)
    expected = rf"E6: the run counts {right + 1} {name}, and its 1 requests have {right} in sum"
    with pytest.raises(InvariantViolation, match=expected):
        counted.check(tally)


@pytest.mark.parametrize("hit", [9, -1])
def test_a_hit_that_no_cache_can_serve_is_noticed(hit: int) -> None:
    """E6: at the end, since what is read there breaks another law before; the first request is named."""
    counted = CountedRun()
    counted.admit(make_live(hit))
    counted.admit(LiveRequest(Request(8, 0.0, 10, 3, (5,), 10), place=2, ceiling_tokens=-1))
    with pytest.raises(InvariantViolation, match=rf"request 7: {hit} tokens of its prompt .* served 8$"):
        counted.check(EngineTally())


def test_a_request_that_waits_leaves_nothing() -> None:
    """E6: neither one that was never admitted, nor one that was thrown out before it is aborted."""
    counted, tally = CountedRun(), EngineTally(requests=3, rejected=1, aborted=2, retractions=1)
    first: LiveSequence = make_live()
    counted.reject(first)
    counted.abort(first)
    live = make_live()
    counted.admit(live)
    tally.count_admission(live)
    counted.retract(live)
    tally.count_leaving(live)
    live.forget_memory()
    counted.abort(live)
    assert counted.check(tally)
    assert tally.uncomputed_tokens == 6
