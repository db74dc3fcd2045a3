"""Each check of a `GDNPool` can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants.pools import check_gdn_pool
from pymllm.mem_cache.gdn_pool import GDNPool


def make_pool(max_track_slots: int = 3) -> GDNPool:
    pool = GDNPool(2, 2, 1, 2, 3, 4, 3, "cpu", torch.float16, max_track_slots)
    pool.alloc_track_slot()
    return pool


@pytest.mark.parametrize("max_track_slots", [0, 3])
def test_a_sound_pool_passes(max_track_slots: int) -> None:
    """P4, P5: a sound pool is not accused."""
    assert check_gdn_pool(make_pool(max_track_slots)) is None


def swap_the_head_dims(pool: GDNPool) -> None:
    pool.recurrent_state = pool.recurrent_state.transpose(-1, -2).contiguous()


def store_half_precision(pool: GDNPool) -> None:
    pool.recurrent_state = pool.recurrent_state.half()


def keep_the_whole_kernel(pool: GDNPool) -> None:
    pool.conv_state = torch.zeros(2, 6, 4, 3, dtype=torch.float16)


def transpose_the_storage(pool: GDNPool) -> None:
    pool.conv_state = torch.zeros(6, 2, 4, 2, dtype=torch.float16).transpose(0, 1)


def lose_a_track_slot(pool: GDNPool) -> None:
    pool._held_track_slots.clear()


def hand_out_a_working_row(pool: GDNPool) -> None:
    pool._free_track_slots.insert(0, 2)


def reverse_the_free_slots(pool: GDNPool) -> None:
    pool._free_track_slots.reverse()


@pytest.mark.parametrize(
    ("corrupt", "law"),
    [
        (swap_the_head_dims, "P4"),
        (store_half_precision, "P4"),
        (keep_the_whole_kernel, "P4"),
        (transpose_the_storage, "P4"),
        (lose_a_track_slot, "P5"),
        (hand_out_a_working_row, "P5"),
        (reverse_the_free_slots, "X3"),
    ],
)
def test_a_corrupt_pool_is_accused_of_the_law_it_breaks(corrupt: Callable[[GDNPool], None], law: str) -> None:
    """P4, P5, X3: a checker nobody has seen fail is decoration."""
    pool = make_pool()
    corrupt(pool)
    with pytest.raises(InvariantViolation) as caught:
        check_gdn_pool(pool)
    assert caught.value.law == law
