"""Requests expand to the tokens that their blocks name, and sources give them and answer questions."""

from __future__ import annotations

import numpy as np
import pytest

from pymllm.workloads.request import ARRIVAL_MS_MAX, LENGTH_MAX, OUTPUT_TOKEN_BASE, Request
from pymllm.workloads.source import RandomSource, Stage, TraceSource


def make_request(**changes: object) -> Request:
    """Build a request of ten tokens in blocks of four, changed as wanted."""
    fields: dict[str, object] = {
        "request_id": 1,
        "arrival_ms": 0.0,
        "prompt_length": 10,
        "output_length": 3,
        "block_ids": (5, 0, 7),
        "block_tokens": 4,
    }
    return Request(**(fields | changes))  # type: ignore[arg-type]


def test_prompt_is_its_blocks_cut_to_length() -> None:
    """Block b is b * block_tokens onwards, and the last block is cut."""
    tokens = make_request().prompt()
    assert tokens.dtype == np.uint32
    assert tokens.tolist() == [20, 21, 22, 23, 0, 1, 2, 3, 28, 29]


def test_a_prompt_much_shorter_than_its_block_costs_what_it_is() -> None:
    """Cost: O(prompt_length); a block of two thousand million tokens is never spelt out."""
    request = make_request(prompt_length=3, block_ids=(0,), block_tokens=LENGTH_MAX, output_length=LENGTH_MAX)
    tokens = request.prompt()
    assert tokens.tolist() == [0, 1, 2]
    assert tokens.base is None or tokens.base.size <= 3


def test_the_clock_moves_at_the_latest_arrival() -> None:
    """Section 9: a hundredth of a millisecond, the shortest iteration, still makes a difference there."""
    latest = make_request(arrival_ms=ARRIVAL_MS_MAX).arrival_ms
    assert latest + 0.01 > latest


def test_output_is_deterministic_and_no_prompt_token() -> None:
    """Output tokens depend on the request id only and lie above every prompt token."""
    first, again = make_request().output(), make_request(prompt_length=9).output()
    assert first.dtype == np.uint32
    assert first.shape == (3,)
    assert first.tolist() == again.tolist()
    assert first.min() >= OUTPUT_TOKEN_BASE


def test_no_two_requests_begin_their_output_alike() -> None:
    """E1: a shared first output token would let one request match another one's output."""
    firsts = {int(make_request(request_id=number).output()[0]) for number in range(5000)}
    assert len(firsts) == 5000


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"request_id": -1}, "request_id is -1"),
        ({"request_id": OUTPUT_TOKEN_BASE}, "request_id is"),
        ({"arrival_ms": -0.5}, "arrival_ms is -0.5"),
        ({"arrival_ms": float("nan")}, "arrival_ms is nan"),
        ({"arrival_ms": float("inf")}, r"arrival_ms is inf; it must be in 0\.\.10000000000000$"),
        ({"arrival_ms": 1.1 * ARRIVAL_MS_MAX}, "arrival_ms is"),
        ({"prompt_length": 0}, r"prompt_length is 0; it must be in 1\.\.2147483647"),
        ({"output_length": 0}, "output_length is 0"),
        ({"output_length": LENGTH_MAX + 1}, "output_length is 2147483648"),
        ({"block_tokens": 0}, "block_tokens is 0"),
        ({"block_tokens": LENGTH_MAX + 1}, "block_tokens is 2147483648"),
        ({"prompt_length": 13}, "take exactly 4"),
        ({"prompt_length": 8}, "take exactly 2"),
        ({"block_ids": (0, -1, 2)}, "run from -1"),
        ({"block_ids": (0, OUTPUT_TOKEN_BASE // 4, 2)}, "must be in 0.."),
    ],
)
def test_impossible_request_is_refused(changes: dict[str, object], named: str) -> None:
    """X1: the message names the value that is out of bounds."""
    with pytest.raises(ValueError, match=named):
        make_request(**changes)


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
