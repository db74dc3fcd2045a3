"""When requests arrive that wait for others, in every engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pymllm.errors import UsageError
from pymllm.workloads.arrivals import Arrivals
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage, TraceSource

Ask = Callable[..., Request]
EngineOf = Callable[..., Engine | BlockEngine]
Script = Callable[..., Any]


def asked(number: int, at: float = 0.0, after: tuple[int, ...] = (), delay: float | None = None) -> Request:
    return Request(number, at, 4, 2, (number,), 4, wait_for=after, delay_ms=delay)


def test_a_request_comes_its_delay_after_the_last_that_it_waits_for() -> None:
    """Whatever time was recorded for it."""
    arrivals = Arrivals(TraceSource([asked(0), asked(1, 5.0), asked(2, 1.0, (0, 1), 30.0)]))
    assert arrivals.next_ms() == 0.0
    assert [it.request_id for it in arrivals.take(9.0)] == [0, 1]
    arrivals.end(asked(1), 50.0)
    assert arrivals.next_ms() is None
    arrivals.end(asked(0), 70.0)
    assert arrivals.next_ms() == 100.0
    assert list(arrivals.take(99.0)) == []
    assert [it.request_id for it in arrivals.take(100.0)] == [2]
    arrivals.demand_nobody_waits()


@pytest.mark.parametrize(("ended", "due"), [(40.0, 60.0), (80.0, 80.0)])
def test_without_a_delay_it_comes_at_its_time_but_not_before(ended: float, due: float) -> None:
    """As the next turn of a chat, whose writer reads the answer first."""
    arrivals = Arrivals(TraceSource([asked(0), asked(1, 60.0, (0,))]))
    assert [it.request_id for it in arrivals.take(0.0)] == []  # nobody asked the source yet
    arrivals.next_ms()
    assert [it.request_id for it in arrivals.take(0.0)] == [0]
    arrivals.end(asked(0), ended)
    assert arrivals.next_ms() == due


def test_those_that_are_due_and_those_of_the_clock_come_in_order() -> None:
    """One that waited does not hold up the others, nor they it."""
    arrivals = Arrivals(TraceSource([asked(0), asked(1, 0.0, (0,), 20.0), asked(2, 10.0), asked(3, 30.0)]))
    assert arrivals.next_ms() == 0.0
    assert [it.request_id for it in arrivals.take(0.0)] == [0]
    arrivals.end(asked(0), 0.0)
    assert [it.request_id for it in arrivals.take(40.0)] == [2, 1, 3]


def test_what_was_ended_before_the_line_was_read_counts() -> None:
    """A source is asked late: parents may be done by then."""
    arrivals = Arrivals(TraceSource([asked(0), asked(1, 500.0), asked(2, 0.0, (0,), 5.0)]))
    arrivals.next_ms()
    assert [it.request_id for it in arrivals.take(0.0)] == [0]
    arrivals.end(asked(0), 100.0)
    assert arrivals.next_ms() == 500.0
    assert [it.request_id for it in arrivals.take(500.0)] == [1, 2]


@pytest.fixture(params=["radix", "blocks"])
def loop_of(request: pytest.FixtureRequest, engine_of: EngineOf) -> EngineOf:
    """Make a small engine of each class that checks everything."""
    return lambda source, **changes: engine_of(source, cache=request.param, **changes)


def test_an_engine_lets_children_wait(loop_of: EngineOf, ask: Ask) -> None:
    """Two iterations, the delay, and two more: none of it passes while the parent runs."""
    child = replace(ask(1, 4, 2), wait_for=(0,), delay_ms=1000.0)
    report = loop_of([ask(0, 4, 2), child], iteration_ms=25.0).run()
    assert (report.finished, report.iterations) == (2, 4)
    assert report.virtual_seconds == pytest.approx(1.1)


def test_a_parent_that_cannot_run_lets_its_children_go(loop_of: EngineOf, ask: Ask) -> None:
    """Rejected or aborted: it has ended, and nobody waits for ever."""
    children = [replace(ask(2, 4, 2), wait_for=(0,), delay_ms=0.0), replace(ask(3, 4), wait_for=(2,))]
    report = loop_of([ask(0, 99, 1), *children]).run()
    assert (report.rejected, report.finished) == (1, 2)


def test_an_aborted_parent_lets_its_children_go(engine_of: EngineOf, script: Script, ask: Ask) -> None:
    """The same, in the middle of its life."""
    child = replace(ask(1, 4, 2), wait_for=(0,))
    report = engine_of(script([ask(0, 9, 9), child], aborts={(0, Stage.DECODE): 2})).run()
    assert (report.aborted, report.finished) == (1, 1)


def test_a_request_that_waits_for_nobody_who_comes_is_refused(loop_of: EngineOf, ask: Ask) -> None:
    """X1: a run that leaves requests out says so."""
    engine = loop_of([ask(0, 4), replace(ask(1, 4), wait_for=(7,))])
    with pytest.raises(UsageError, match=r"^request 1 waits for request 7, which never came;"):
        engine.run()


def test_a_drained_engine_forgets_those_that_wait(loop_of: EngineOf, ask: Ask) -> None:
    """Nothing comes any more, and it is at rest."""
    engine = loop_of([ask(0, 9, 9), replace(ask(1, 4), wait_for=(0,)), ask(2, 4, arrival_ms=9e6)])
    engine.step()
    engine.drain()
    assert not engine.step()
    engine.check_quiescent()


@pytest.mark.parametrize("seed", range(20))
def test_nobody_runs_before_those_that_it_waits_for_have_ended(seed: int, ask: Ask) -> None:
    """In a random workload under memory pressure, with retractions; every request runs."""
    draw = random.Random(seed)
    requests = []
    for number in range(30):
        after = tuple({draw.randrange(number) for _ in range(draw.randrange(3))}) if number else ()
        delay = draw.choice([None, 0.0, 120.0])
        made = ask(number, draw.randint(1, 30), draw.randint(1, 9), arrival_ms=number * 10.0)
        requests.append(replace(made, wait_for=after, delay_ms=delay))
    begun: list[int] = []
    ended: set[int] = set()

    def look(event: Event, live: Any) -> None:
        if event is Event.FINISHED:
            ended.add(live.request_id)
        if event is Event.ADMITTED:
            begun.append(live.request_id)
            assert set(requests[live.request_id].wait_for) <= ended

    report = Engine(EngineConfig(capacity=64, max_running=4), TraceSource(requests), onlooker=look).run()
    assert report.finished == 30
    assert set(begun) == set(range(30))
