"""The loop of every engine: time, arrivals, the source's choices, and rest at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymllm.errors import UsageError
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage, TraceSource

Ask = Callable[..., Request]
EngineOf = Callable[..., Engine | BlockEngine]
Script = Callable[..., Any]
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
