"""Each check of a `KVPool` can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants.pools import check_kv_pool
from pymllm.mem_cache.kv_pool import KVPool


def make_pool(page_size: int = 4) -> KVPool:
    return KVPool(8, 2, 2, 3, "cpu", torch.float32, v_head_num=1, page_size=page_size)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_sound_pool_passes_before_and_after_a_write(page_size: int) -> None:
    """P3, A1: a sound pool is not accused."""
    pool = make_pool(page_size)
    check_kv_pool(pool)
    pool.set_kv_buffer(1, torch.tensor([7]), torch.ones(1, 2, 3), torch.ones(1, 1, 3))
    assert check_kv_pool(pool) is None


def drop_a_layer(pool: KVPool) -> None:
    pool.v_buffer.pop()


def forget_the_reserved_page(pool: KVPool) -> None:
    pool.k_buffer[1] = torch.zeros(9, 2, 3)


def swap_heads_and_dim(pool: KVPool) -> None:
    pool.k_buffer[0] = torch.zeros(12, 3, 2)


def store_another_dtype(pool: KVPool) -> None:
    pool.v_buffer[1] = pool.v_buffer[1].half()


def move_a_layer(pool: KVPool) -> None:
    pool.v_buffer[1] = pool.v_buffer[1].to("meta")


def transpose_the_storage(pool: KVPool) -> None:
    pool.k_buffer[0] = torch.zeros(3, 2, 12).permute(2, 1, 0)


def share_a_layer(pool: KVPool) -> None:
    pool.k_buffer[1] = pool.k_buffer[0]


@pytest.mark.parametrize(
    ("corrupt", "law"),
    [
        (drop_a_layer, "P3"),
        (forget_the_reserved_page, "A1"),
        (swap_heads_and_dim, "P3"),
        (store_another_dtype, "P3"),
        (move_a_layer, "P3"),
        (transpose_the_storage, "P3"),
        (share_a_layer, "P3"),
    ],
)
def test_a_corrupt_pool_is_accused_of_the_law_it_breaks(corrupt: Callable[[KVPool], None], law: str) -> None:
    """P3, A1: a checker nobody has seen fail is decoration."""
    pool = make_pool()
    corrupt(pool)
    with pytest.raises(InvariantViolation) as caught:
        check_kv_pool(pool)
    assert caught.value.law == law
