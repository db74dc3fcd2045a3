"""Tests of a request in a context: its prompt, its row, and the tokens that a step computes."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.forward_batch import plan_step
from pymllm.core.inference.contexts.live_request import (
    LiveRequest,
    Region,
    RequestRows,
    check_next_tokens,
    read_prompt,
    refuse_batch,
)

# -- tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [[1, 2, 2**32 - 1], (1, 2, 2**32 - 1), array("q", [1, 2, 2**32 - 1]), torch.tensor([1, 2, 2**32 - 1])],
)
def test_a_prompt_may_be_anything_with_tokens(tokens: Any) -> None:
    """K1: and is copied, so nobody changes it later."""
    prompt = read_prompt(SimpleNamespace(prompt_tokens=tokens))
    assert prompt.tolist() == [1, 2, 2**32 - 1]


@pytest.mark.parametrize("batch", [torch.ones((1, 3), dtype=torch.int64), np.ones((3, 1), int), [[1, 2, 3]]])
def test_a_batch_is_no_prompt(batch: Any) -> None:
    """K1, X1: whoever counts or reads the tokens of a prompt refuses a batch and says what to give."""
    for read in (refuse_batch, lambda given: read_prompt(SimpleNamespace(prompt_tokens=given))):
        with pytest.raises(ValueError, match=r"prompt_tokens has 2 dimensions.*\(prompt_tokens\[0\]\)"):
            read(batch)


def test_next_tokens_are_looked_at_where_they_are_used() -> None:
    """A chunk that does not end its prompt has none."""
    assert check_next_tokens([7, None, 2**32 - 1], [True, False, True]) == [7, 0, 2**32 - 1]
    assert check_next_tokens([], []) == []


# -- rows ----------------------------------------------------------------------------------------------------


PAUSED, DECODE, PREFILL, WAITING = Region


def make_row(*blocks: int) -> LiveRequest:
    return LiveRequest(object(), np.zeros(1, np.uint32), list(blocks), [])


def assert_sound(rows: RequestRows) -> None:
    """Each request is where it believes to be, in order of regions, and the table names its blocks."""
    lives = list(rows)
    assert [live.row for live in lives] == list(range(len(rows)))
    assert [live.region for live in lives] == sorted(live.region for live in lives)
    for region in Region:
        assert rows.of(region) == [live for live in lives if live.region is region]
        assert rows.count(region) == len(rows.of(region))
    for live in lives:
        assert [b for b in rows.block_table[live.row].tolist() if b >= 0] == live.blocks


@pytest.mark.notices("B107-requests")
@pytest.mark.parametrize("place", range(4))
def test_a_closed_row_keeps_nothing(place: int) -> None:
    """E2: neither blocks nor the row of a state, which is the next to be given."""
    rows = RequestRows(5, 3)
    lives = [make_row(n, n + 10, n + 20) for n in range(4)]
    for live, region in zip(lives, Region, strict=True):
        rows.open(live)
        rows.move(live, region)
    state = rows.state_of(lives[place])
    rows.close(lives[place])
    assert_sound(rows)
    assert lives[place].row == -1
    assert len(rows) == 3
    assert (rows.block_table[3:] == -1).all()
    assert rows.metadata.request_to_mamba_state_idx.tolist()[3:] == [-1, -1]
    again = make_row(99)
    rows.open(again)
    assert rows.state_of(again) == state
    assert rows.block_table[3].tolist() == [99, -1, -1]


# -- steps ---------------------------------------------------------------------------------------------------


def make_started(**state: int) -> LiveRequest:
    live = LiveRequest(object(), np.arange(100, 110, dtype=np.uint32), [7, 3, 5], [], matched=2)
    for name, value in state.items():
        setattr(live, name, value)
    live.generated = [200, 201]
    return live


@pytest.mark.notices("B148-requests")
def test_tokens_in_shared_blocks_go_to_the_dummy() -> None:
    """E2, E5: what is computed again for its state is not written again; block 9 takes it."""
    step = plan_step(make_started(skip=4, chunk=10, row=2), 1, 4, 9, (2, 4), 6)
    assert step.start == 4
    assert step.tokens.tolist() == [104, 105, 106, 107, 108, 109]
    assert step.kv_slots.tolist() == [36, 37, 38, 39, 20, 21]
    assert (step.row, step.state_idx, step.blocks) == (2, 1, (7, 3, 5))
    assert (step.offsets, step.first_output) == ((2, 4), 6)
    assert step.is_sampled
