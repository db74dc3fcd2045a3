"""The decode batch steps all its requests at once and hands back true numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pymllm.workloads.live_request import DecodeBatch, LiveRequest
from pymllm.workloads.request import Request


def joined(
    ask: Callable[..., Request], page_size: int, *lengths: int
) -> tuple[DecodeBatch, list[LiveRequest]]:
    """Make a batch of requests with so many tokens each and 5 steps to come."""
    batch, lives = DecodeBatch(page_size), []
    for number, length in enumerate(lengths):
        live = LiveRequest(ask(number, length, 6), place=number)
        live.row, live.length, live.last_slot, live.released_length = number + 1, length, 40 + 10 * number, 0
        batch.add(live)
        lives.append(live)
    return batch, lives


def test_only_requests_at_a_page_end_cross(ask: Callable[..., Request]) -> None:
    """A3: slots within a page follow on, a new page starts where it was allocated."""
    batch, _ = joined(ask, 4, 4, 5, 8)
    assert batch.crossing().tolist() == [0, 2]
    assert batch.step(np.array([80, 84])).tolist() == [80, 51, 84]
    assert batch.lengths.tolist() == [5, 6, 9]
    assert batch.remaining.tolist() == [4, 4, 4]


def test_page_of_one_token_always_crosses(ask: Callable[..., Request]) -> None:
    """A3: with pages of one token every step needs a slot for each request."""
    batch, _ = joined(ask, 1, 3, 7)
    assert batch.crossing().tolist() == [0, 1]


def test_leaving_requests_take_their_numbers_along(ask: Callable[..., Request]) -> None:
    """The batch's columns are the truth until a request leaves."""
    batch, lives = joined(ask, 4, 5, 6, 7)
    batch.released[1] = 4
    batch.step(np.array([], dtype=np.int64))
    assert lives[1].length == 6
    batch.remove([lives[1]])
    assert (lives[1].length, lives[1].last_slot, lives[1].released_length) == (7, 51, 4)
    assert batch.requests == [lives[0], lives[2]]
    assert (len(batch), batch.rows.tolist(), batch.lengths.tolist()) == (2, [1, 3], [6, 8])
    batch.remove(lives)
    assert not batch


def test_headroom_counts_new_pages_of_the_steps_to_come(ask: Callable[..., Request]) -> None:
    """E4: what is left of a page needs no allocation, and nobody needs more than remains."""
    batch, _ = joined(ask, 4, 5, 8)
    assert [batch.headroom(steps) for steps in (0, 1, 3, 4, 5, 99)] == [0, 4, 4, 8, 12, 12]
    assert DecodeBatch(4).headroom(9) == 0
