"""Rows of a context: regions in order, and everything of a request moves with it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pymllm.core.inference.contexts.live_request import LiveRequest, Region
from pymllm.core.inference.contexts.request_rows import BatchDimensions, RequestRows

PAUSED, DECODE, PREFILL, WAITING = Region


def make_live(*blocks: int) -> LiveRequest:
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


@pytest.mark.parametrize(("start", "end"), list(itertools.product(Region, Region)))
def test_a_request_moves_with_all_that_it_has(start: Region, end: Region) -> None:
    """E2: past requests in every region between, in either direction."""
    rows = RequestRows(9, 3)
    lives = [make_live(10 * n, 10 * n + 1) for n in range(9)]
    for live, region in zip(lives, [*Region, *Region, start], strict=True):
        rows.open(live)
        rows.move(live, region)
        assert_sound(rows)
    states = {id(live): rows.state_of(live) for live in lives}
    rows.move(lives[-1], end)
    assert_sound(rows)
    assert lives[-1].region is end
    assert {id(live): rows.state_of(live) for live in lives} == states
    assert sorted(states.values()) == list(range(9))
    assert rows.is_full


@pytest.mark.parametrize("place", range(4))
def test_a_closed_row_keeps_nothing(place: int) -> None:
    """E2: neither blocks nor the row of a state, which is the next to be given."""
    rows = RequestRows(5, 3)
    lives = [make_live(n, n + 10, n + 20) for n in range(4)]
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
    again = make_live(99)
    rows.open(again)
    assert rows.state_of(again) == state
    assert rows.block_table[3].tolist() == [99, -1, -1]


def test_more_blocks_go_behind_the_others() -> None:
    """E2: in the table as in the request."""
    rows = RequestRows(2, 4)
    live = make_live(5)
    rows.open(live)
    rows.extend(live, [7, 6])
    rows.extend(live, [])
    assert live.blocks == [5, 7, 6]
    assert rows.block_table[0].tolist() == [5, 7, 6, -1]


def test_the_batch_is_counted_by_region() -> None:
    """Specification, blocks: prefill rows begin behind paused and decoding ones."""
    rows = RequestRows(6, 1)
    batch = BatchDimensions(rows)
    for region in [PAUSED, DECODE, DECODE, PREFILL, WAITING]:
        rows.open(live := make_live())
        rows.move(live, region)
    assert (batch.decode_req_count, batch.prefill_req_count) == (2, 1)
    assert rows.first_row(PREFILL) == 3
    assert not rows.is_full


def test_clear_makes_new_rows() -> None:
    """C9: bit for bit."""
    rows, new = RequestRows(3, 2), RequestRows(3, 2)
    rows.open(make_live(1))
    rows.metadata.intermediate_count = 4
    rows.metadata.per_request_intermediate_counts = [4]
    rows.clear()
    assert list(rows) == []
    assert rows.block_table.tolist() == new.block_table.tolist()
    assert rows.metadata.request_to_mamba_state_idx.tolist() == [-1] * 3
    assert (rows.metadata.intermediate_count, rows.metadata.per_request_intermediate_counts) == (0, [])
    assert rows._free_states == new._free_states
