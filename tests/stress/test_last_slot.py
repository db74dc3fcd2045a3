"""Pools filled to the last slot: each has its own number, and the rows around them are untouched."""

from __future__ import annotations

import pytest
import torch

from pymllm.mem_cache.memory_pool import GDNPool, KVPool, make_full_attention_net_mem_pool
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from tests.stress.card import Card, Rounds

WIDTH = 16
ROW_BYTES = 2 * WIDTH * 8


def slots_for(card: Card, page_size: int, row_bytes: int = ROW_BYTES) -> int:
    """As many slots as the test's memory has room for, in whole pages and no round number of them."""
    pages = card.budget(on_cpu=4 << 20, at_most=8 << 30) // row_bytes // page_size
    return (pages - pages % 2 - 1) * page_size


def fill(pool: KVPool, slots: torch.Tensor, sign: int) -> None:
    """Write each slot's own number into its rows, in pieces that are no temporary of the pool's size."""
    for part in slots.split(1 << 20):
        # In full: rows whose elements lie on top of each other are left to torch, which has its own tests.
        numbers = (part.long() * sign)[:, None, None].repeat(1, 1, WIDTH)
        pool.set_kv_buffer(0, part, numbers, -numbers)


def check(pool: KVPool, slots: torch.Tensor, sign: int) -> None:
    for part in slots.split(1 << 20):
        numbers = (part.long() * sign)[:, None, None].expand(-1, 1, WIDTH)
        assert torch.equal(pool.k_buffer[0].index_select(0, part), numbers)
        assert torch.equal(pool.v_buffer[0].index_select(0, part), -numbers)


@pytest.mark.parametrize("page_size", [1, 16])
def test_every_slot_holds_its_own_number(card: Card, rounds: Rounds, page_size: int) -> None:
    """A1, A2, P3, E5: page 0 apart, every row of the pool has an owner, and no row has two."""
    size = slots_for(card, page_size)
    pool, allocator = make_full_attention_net_mem_pool(
        size, 1, 1, WIDTH, 1, WIDTH, card.device, torch.int64, page_size
    )
    slots = allocator.alloc(size)
    assert slots is not None
    assert allocator.available_size() == 0
    assert allocator.alloc(page_size) is None
    assert int(slots.min()) == page_size
    assert int(slots.max()) == size + page_size - 1 == len(pool.k_buffer[0]) - 1
    fill(pool, slots, 1)
    check(pool, slots, 1)
    for number in rounds(2):
        given = slots.view(-1, page_size)[number % 2 :: 2].reshape(-1)
        allocator.free(given)
        again = allocator.alloc(len(given))
        assert again is not None
        assert allocator.alloc(page_size) is None
        assert torch.equal(again.sort().values, given.sort().values)
        fill(pool, again, -1)
        check(pool, again, -1)
        fill(pool, again, 1)
    check(pool, slots, 1)
    assert not pool.k_buffer[0][:page_size].any()
    assert not pool.v_buffer[0][:page_size].any()


@pytest.mark.parametrize("page_size", [1, 16])
def test_both_halves_fill_to_the_last_slot(card: Card, page_size: int) -> None:
    """A1, S1: whichever half is the smaller one, it is full to the last slot and empty again."""
    size = slots_for(card, page_size, row_bytes=256)
    for full, window in ((size, size // 2 // page_size * page_size), (size, size)):
        allocator = SWATokenToKVPoolAllocator(full, window, card.device, page_size)
        slots = allocator.alloc(window)
        assert slots is not None
        assert allocator.alloc(page_size) is None
        behind = allocator.translate_to_swa(slots)
        assert torch.equal(
            behind.long().sort().values,
            torch.arange(page_size, window + page_size, device=card.device, dtype=torch.int64),
        )
        allocator.free_swa(slots)
        allocator.free(slots)
        assert (allocator.full_available_size(), allocator.swa_available_size()) == (full, window)


def test_every_state_row_holds_its_own_number(card: Card) -> None:
    """P4, P5, E5: working rows and track slots to the last, moved there by copies alone."""
    row_bytes = 2 * 8 * 8 * 4
    rows = card.budget(on_cpu=1 << 20, at_most=1 << 30) // row_bytes // 4
    pool = GDNPool(rows, 2, 1, 8, 8, 4, 4, card.device, max_track_slots=rows)
    tracks = [pool.alloc_track_slot() for _ in range(rows)]
    assert (tracks[-1], pool.alloc_track_slot()) == (pool.pool_size - 1, None)
    numbers = torch.arange(pool.pool_size, device=card.device)
    pool.recurrent_state.copy_(numbers[None, :, None, None, None])
    working = numbers[1 : rows + 1]
    pool.copy_states(working, working.flip(0) + rows)
    assert torch.equal(pool.recurrent_state[0, 1 : rows + 1, 0, 0, 0].long(), working)
    assert torch.equal(pool.recurrent_state[1, rows + 1 :, 0, -1, -1].long(), working.flip(0))
    assert not pool.recurrent_state[:, 0].any()
