"""The simulated recurrent model advances what it should, and notices whatever else is there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.memory_pool import GDNPool
from pymllm.workloads.engine_forward import SimulatedRecurrent
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]
TRACK_SLOT = 10


@pytest.fixture
def pool() -> GDNPool:
    """Make room for nine working states and two snapshots."""
    return GDNPool(9, 2, 1, 2, 2, 2, 2, device="cpu", max_track_slots=2)


@pytest.fixture
def model(pool: GDNPool) -> SimulatedRecurrent:
    """Make a model over the pool."""
    return SimulatedRecurrent(pool, seed=0)


def live_in(row: int, request: Request) -> LiveRequest:
    """Give a request a row."""
    live = LiveRequest(request, place=1)
    live.row = row
    return live


def prefilled(model: SimulatedRecurrent, live: LiveRequest, *ends: int) -> LiveRequest:
    """Let a request take in its tokens up to each of some ends."""
    for end in ends:
        start, live.length = live.length, end
        model.prefill(live, start)
    return live


def test_chunks_end_in_the_state_of_a_cold_run(pool: GDNPool, model: SimulatedRecurrent, ask: Ask) -> None:
    """E1: the same state however the prompt is cut, in whole numbers that the dtypes hold exactly."""
    one = prefilled(model, live_in(3, ask(0, 20)), 20)
    many = prefilled(model, live_in(4, ask(0, 20)), 1, 7, 19, 20)
    for live in (one, many):
        model.check(live)
    assert torch.equal(pool.recurrent_state[:, 3], pool.recurrent_state[:, 4])
    assert torch.equal(pool.conv_state[:, 3], pool.conv_state[:, 4])
    for state in (pool.recurrent_state, pool.conv_state):
        assert state[:, 3].count_nonzero() > 0
        assert torch.equal(state[:, 3], state[:, 3].round())
    assert model.checked_states == 2
    model.check_untouched()


def test_decoded_tokens_are_taken_in_by_the_whole_batch(model: SimulatedRecurrent, ask: Ask) -> None:
    """E1: each request of a batch takes in its own token, in its own namespace."""
    lives = [
        prefilled(model, live_in(2, ask(0, 6, 5)), 6),
        prefilled(model, live_in(5, ask(1, 9, 5, namespace="a")), 9),
    ]
    for step in range(3):
        model.decode(lives, np.array([2, 5]), np.array([6 + step, 9 + step]))
    for live in lives:
        live.length += 3
        model.check(live)
    model.check_untouched()


@pytest.mark.parametrize("start", [6, 8])
def test_state_of_another_length_is_noticed(start: int, model: SimulatedRecurrent, ask: Ask) -> None:
    """E1: a token taken in twice, or left out; the message names request, row, length and element."""
    live = prefilled(model, live_in(3, ask(0, 20)), 7)
    live.length = 20
    model.prefill(live, start)
    with pytest.raises(
        InvariantViolation,
        match=r"E1: request 0: recurrent_state of row 3 after 20 tokens, layer 0, element 0: expected \d+",
    ):
        model.check(live)


def test_wrong_state_stays_wrong_whatever_is_taken_in(
    pool: GDNPool, model: SimulatedRecurrent, ask: Ask
) -> None:
    """E1: a step goes on from what the pool has, so that no chunk and no token mends what was lost."""
    lives = [prefilled(model, live_in(row, ask(row, 20, 9)), 7) for row in (2, 3)]
    pool.recurrent_state[0, 3].view(-1)[0] += 1
    for live in lives:
        prefilled(model, live, 20)
    model.decode(lives, np.array([2, 3]), np.array([20, 20]))
    for live in lives:
        live.length += 1
    model.check(lives[0])
    with pytest.raises(InvariantViolation, match="E1: request 3: recurrent_state of row 3 after 21 tokens"):
        model.check(lives[1])


def test_snapshot_brings_the_state_back(pool: GDNPool, model: SimulatedRecurrent, ask: Ask) -> None:
    """E1, P5: a copy there and back is the state; one of a row that went on is another."""
    live = prefilled(model, live_in(3, ask(0, 20)), 7)
    pool.copy_states(3, TRACK_SLOT)
    model.note_copy(3, TRACK_SLOT)
    prefilled(model, live, 20)
    again = live_in(6, ask(0, 20))
    pool.copy_states(TRACK_SLOT, 6)
    model.note_copy(TRACK_SLOT, 6)
    again.length = 7
    model.check(again)
    prefilled(model, again, 20)
    model.check(again)
    pool.reset_states(6)
    model.note_reset(6)
    model.check_untouched()
    with pytest.raises(InvariantViolation, match="E1"):
        model.check(again)


@pytest.mark.parametrize("name", ["recurrent_state", "conv_state"])
def test_one_changed_bit_is_noticed(name: str, pool: GDNPool, model: SimulatedRecurrent, ask: Ask) -> None:
    """E1: minus zero equals zero, and is another state."""
    live = live_in(3, ask(0, 20))
    model.check(live)
    getattr(pool, name)[1, 3].view(-1)[-1] = -0.0
    with pytest.raises(InvariantViolation, match=f"E1: request 0: {name} of row 3"):
        model.check(live)


@pytest.mark.parametrize("name", ["recurrent_state", "conv_state"])
def test_write_into_another_row_is_noticed(name: str, pool: GDNPool, model: SimulatedRecurrent) -> None:
    """E5: row 0 may hold anything, every other row only what was written to it."""
    getattr(pool, name)[:, 0] = 9
    model.check_untouched()
    getattr(pool, name)[1, TRACK_SLOT].view(-1)[1] = 9
    with pytest.raises(InvariantViolation, match=f"E5: {name} of row 10, layer 1, element 1 holds 9"):
        model.check_untouched()


def test_padding_goes_to_row_zero(pool: GDNPool, model: SimulatedRecurrent, ask: Ask) -> None:
    """E5: a batch of one is padded, and its garbage is nobody's state."""
    prefilled(model, live_in(3, ask(0, 20)), 7)
    assert pool.recurrent_state[:, 0].count_nonzero() > 0
    untouched = [row for row in range(1, 12) if row != 3]
    assert pool.recurrent_state[:, untouched].count_nonzero() == 0
    model.check_untouched()
