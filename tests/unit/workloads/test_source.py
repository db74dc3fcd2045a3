"""Sources answer the engine's questions, and the same seed gives the same answers."""

from __future__ import annotations

from pymllm.workloads.request import Request
from pymllm.workloads.source import RandomSource, Stage, TraceSource


def drain(source: RandomSource) -> list[Request]:
    """Take every request of a source."""
    taken = []
    while (request := source.next_request()) is not None:
        taken.append(request)
    return taken


def test_trace_source_replays_as_recorded() -> None:
    """A trace comes in order, whole, without aborts, and the youngest is retracted."""
    requests = [Request(number, float(number), 4, 2, (number,), 4) for number in range(3)]
    source = TraceSource(requests)
    assert [source.next_request() for _ in range(4)] == [*requests, None]
    assert not source.may_abort
    assert not source.abort(0, Stage.QUEUED)
    assert source.chunk_limit(0, 7) == 7
    assert source.retract_victim([4, 9]) == 9


def test_random_source_repeats_itself_from_its_seed() -> None:
    """X3: two sources of one seed agree in every answer."""
    first, second = (RandomSource(7, namespaces=(None, "a", 1)) for _ in range(2))
    assert drain(first) == drain(second)
    answers = [[(s.abort(1, Stage.DECODE), s.chunk_limit(1, 9)) for _ in range(50)] for s in (first, second)]
    assert answers[0] == answers[1]
    assert {limit for _, limit in answers[0]} <= set(range(1, 10))
    assert first.retract_victim([1, 2, 3]) == second.retract_victim([1, 2, 3])


def test_random_source_orders_arrivals_and_shares_prefixes() -> None:
    """Arrivals never go back, and some prompts begin alike."""
    requests = drain(RandomSource(3, requests=200))
    assert len(requests) == 200
    arrivals = [request.arrival_ms for request in requests]
    assert arrivals == sorted(arrivals)
    assert len({request.block_ids[:3] for request in requests if len(request.block_ids) >= 3}) < 60


def test_random_source_aborts_with_its_chance() -> None:
    """A chance of 0 never aborts and says so, a chance of 1 always does."""
    never, always = RandomSource(0, abort_chance=0.0), RandomSource(0, abort_chance=1.0)
    assert (never.may_abort, always.may_abort) == (False, True)
    assert not any(never.abort(1, stage) for stage in Stage)
    assert all(always.abort(1, stage) for stage in Stage)
