"""The source answers as it was told, once where that is meant, and sensibly otherwise."""

from __future__ import annotations

from pymllm.conformance.lifecycle_machine import DrawnSource
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage


def request(number: int) -> Request:
    return Request(number, 0.0, 2, 1, (1,), 2)


def test_untold_source_lets_everything_run() -> None:
    """E4: nothing is aborted, chunks are as long as may be, and the youngest yields."""
    source = DrawnSource()
    assert source.may_abort
    assert source.next_request() is None
    assert not source.abort(0, Stage.DECODE)
    assert source.chunk_limit(0, 9) == 9
    assert source.retract_victim([3, 4, 5]) == 5


def test_requests_arrive_in_the_order_in_which_they_were_pushed() -> None:
    """X3: and one that was taken is not pending any more."""
    source = DrawnSource()
    for number in range(2):
        source.push(request(number))
    assert source.pending == 2
    assert [source.next_request(), source.next_request()] == [request(0), request(1)]
    assert (source.pending, source.next_request()) == (0, None)


def test_doomed_request_is_aborted_once_and_at_its_stage_only() -> None:
    """E3: the stage is remembered for whoever counts exits."""
    source = DrawnSource()
    source.doom(3, Stage.HELD)
    assert not source.abort(3, Stage.QUEUED)
    assert not source.abort(4, Stage.HELD)
    assert source.aborting is None
    assert source.abort(3, Stage.HELD)
    assert source.aborting is Stage.HELD
    assert not source.abort(3, Stage.HELD)


def test_chunks_and_victims_stay_within_what_is_allowed() -> None:
    """X1: the engine refuses anything else."""
    source = DrawnSource()
    source.chunk, source.victim = 4, 4
    assert [source.chunk_limit(0, limit) for limit in (3, 4, 5)] == [3, 4, 4]
    assert [source.retract_victim(range(count)) for count in (1, 2, 3)] == [0, 1, 1]


def test_calm_source_forgets_what_it_was_told() -> None:
    """E3: what waits then finishes."""
    source = DrawnSource()
    source.chunk, source.victim = 1, 1
    source.doom(0, Stage.DECODE)
    source.calm()
    assert not source.abort(0, Stage.DECODE)
    assert source.chunk_limit(0, 9) == 9
    assert source.retract_victim([0, 1]) == 1


def test_who_is_to_come_is_known_by_id() -> None:
    """E3: a request can be doomed before it arrives."""
    source = DrawnSource()
    for number in (3, 1):
        source.push(Request(number, 0.0, 4, 1, (0,), 4))
    assert source.pending_ids == [3, 1]
    source.next_request()
    assert source.pending_ids == [1]
