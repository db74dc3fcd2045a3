"""Buffers of more than 2^31 elements: rows behind that border are written, and none that 32 bits confuse.

On the CPU the border is a small one: what is rehearsed there is the test.
"""

from __future__ import annotations

import pytest
import torch

from pymllm.mem_cache.memory_pool import GDNPool, KVPool, ReqToTokenPool
from tests.stress.card import Card


@pytest.fixture
def border(card: Card, request: pytest.FixtureRequest) -> int:
    """The element in question; where a GPU has no room for as many bytes as the test names, it is skipped."""
    needed: int = request.param
    if card.is_cuda and card.free_bytes() < needed:
        pytest.skip(f"{needed / 2**30:.1f} GiB are needed, {card.free_bytes() / 2**30:.1f} GiB are free")
    return 1 << 31 if card.is_cuda else 1 << 20


def with_room_for(needed: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("border", [pytest.param(needed, id=f"{needed >> 30}GiB")], indirect=True)


@with_room_for(6 << 30)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens", [8, 2_048])
def test_rows_behind_two_to_the_thirty_first_element(
    card: Card, border: int, index_dtype: torch.dtype, tokens: int
) -> None:
    """P3, E5: with few rows and with many, which may take different kernels."""
    k_row, v_row = (4_096, 4_112) if card.is_cuda else (64, 80)
    size = border // k_row + 2 * tokens
    pool = KVPool(size, 1, 1, k_row, card.device, torch.uint8, 1, v_row)
    middle = border // k_row
    rows = torch.tensor([1, 2, size, *range(middle - 2, middle + tokens - 5)], device=card.device)
    k, v = (
        (rows[:, None] * 7 + torch.arange(width, device=card.device)).to(torch.uint8).view(-1, 1, width)
        for width in (k_row, v_row)
    )
    pool.set_kv_buffer(0, rows.to(index_dtype), k, v)
    for buffer, given in ((pool.k_buffer[0], k), (pool.v_buffer[0], v)):
        assert buffer.numel() > border
        assert torch.equal(buffer.index_select(0, rows), given)
        # Where a product that wraps at the border, or at its half, would have put them.
        places = {
            place * buffer.shape[2] % wrap // buffer.shape[2] + step
            for place in rows.tolist()
            for wrap in (border, border // 2)
            for step in (0, 1)
        }
        others = torch.tensor(sorted(places - set(rows.tolist())), device=card.device)
        assert len(others) >= tokens - 4
        assert not buffer.index_select(0, others).any()


@with_room_for(18 << 30)
def test_states_behind_two_to_the_thirty_first_element(card: Card, border: int) -> None:
    """P5: both layers of a pool whose second one ends behind the border."""
    width = 64 if card.is_cuda else 8
    rows = border // (64 * width * width) // 2 + 64
    pool = GDNPool(rows, 2, 64, width, width, 4, 4, card.device, max_track_slots=8)
    state = pool.recurrent_state
    assert state.numel() > border
    last = pool.pool_size - 1
    for layer in range(2):
        state[layer, 1] = float(layer + 1)
        state[layer, rows] = float(layer + 3)
    pool.copy_states([1, rows], [last, last - 1])
    pool.reset_states([rows])
    for layer in range(2):
        assert (state[layer, last] == float(layer + 1)).all()
        assert (state[layer, last - 1] == float(layer + 3)).all()
        assert not any(state[layer, row].any() for row in (0, 2, rows, last - 2))


@with_room_for(9 << 30)
def test_a_table_behind_two_to_the_thirty_first_entry(card: Card, border: int) -> None:
    """P1, P2: the last row of a table with more entries than that."""
    context = 1 << 17 if card.is_cuda else 1 << 12
    requests = border // context + 1
    pool = ReqToTokenPool(requests, context, card.device)
    assert pool.req_to_token.numel() > border
    row = (pool.alloc(requests) or [])[-1]

    def numbers(*given: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(given, dtype=dtype, device=card.device)

    pool.write((row, slice(context - 3, context)), numbers(5, 6, 7, dtype=torch.int32))
    pool.write((numbers(row, row - 1), numbers(0, context - 1)), numbers(8, 9, dtype=torch.int32))
    table = pool.req_to_token
    assert table[row, [0, 1, context - 3, context - 2, context - 1]].tolist() == [8, 0, 5, 6, 7]
    assert table[row - 1, [0, context - 2, context - 1]].tolist() == [0, 0, 9]
    assert not table[:3].any()
    pool.free(row)
    assert not table[row].any()
    assert int(table[row - 1, context - 1]) == 9
