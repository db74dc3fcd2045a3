"""Slots go back by page where the pool takes pages, and by `free` where anybody listens to that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.mem_cache import RadixCache, RadixKey, SWATokenToKVPoolAllocator, TokenToKVPoolAllocator
from pymllm.mem_cache.slot_returns import counts_in_pages, return_what_is_left, takes_pages


class _Counting(TokenToKVPoolAllocator):
    """Overrides `free` alone, as a user's pool may."""

    freed = 0

    def free(self, indices: torch.Tensor) -> None:
        self.freed += indices.numel()
        super().free(indices)


class _Paging(_Counting):
    def free_pages(self, starts: Any) -> None:
        self.freed += len(starts) * self.page_size
        super().free_pages(starts)


class _Named(TokenToKVPoolAllocator):
    """Overrides neither."""


def make(kind: type[Any], *sizes: int) -> Any:
    return kind(*sizes, "cpu", 4)


@pytest.mark.parametrize(
    ("kind", "sizes", "expected"),
    [
        (TokenToKVPoolAllocator, (64,), True),
        (_Named, (64,), True),
        (_Paging, (64,), True),
        (_Counting, (64,), False),
        (SWATokenToKVPoolAllocator, (64, 64), False),
    ],
)
def test_pool_takes_pages_where_nobody_replaced_free_alone(
    kind: type[Any], sizes: tuple[int, ...], expected: bool
) -> None:
    """X2: the class that says last what `free` does says what `free_pages` does, too."""
    pool = make(kind, *sizes)
    assert takes_pages(pool) is expected
    assert counts_in_pages(pool, 4, torch.device("cpu")) is expected
    assert counts_in_pages(pool, 1, torch.device("cpu"))  # a slot is all of its page, whose ever it is
    assert not counts_in_pages(pool, 4, torch.device("meta"))


def test_object_without_either_takes_no_pages() -> None:
    """X1: nothing is asked of a pool that it does not have."""
    assert not takes_pages(object())


@pytest.mark.parametrize("kind", [_Counting, _Paging])
def test_subclass_sees_every_slot_that_goes(kind: type[Any]) -> None:
    """X2: in whole pages, by whichever call it has."""
    pool = make(kind, 64)
    cache = RadixCache(4, token_to_kv_pool_allocator=pool)
    cache.insert(RadixKey(list(range(12))), pool.alloc(12))
    cache.insert(RadixKey([50, 51, 52, 53]), pool.alloc(4))
    assert cache.evict(16).full_evicted == 16
    assert (pool.freed, pool.available_size()) == (16, 64)


def test_free_replaced_on_the_object_is_called() -> None:
    """X2: also where the cache was built before."""
    pool = make(TokenToKVPoolAllocator, 64)
    cache = RadixCache(4, token_to_kv_pool_allocator=pool)
    cache.insert(RadixKey(list(range(12))), pool.alloc(12))
    seen: list[list[int]] = []
    pool.free = lambda indices: seen.append(indices.tolist())
    cache.evict(1)
    assert seen == [list(range(4, 16))]


def test_cache_with_a_window_gives_pages_back_by_their_slots() -> None:
    """X2: it keeps every slot, and the pool takes the first of each page."""
    pool = make(TokenToKVPoolAllocator, 64)
    cache = RadixCache(4, 4, pool)
    cache.insert(RadixKey(list(range(12))), pool.alloc(12))
    assert cache.evict(1).full_evicted == 12
    assert pool.available_size() == 64


class _Bare:
    """A pool that knows `free` alone, and may refuse."""

    def __init__(self, refuses: tuple[int, ...] = ()) -> None:
        self.freed: list[int] = []
        self._refuses = refuses

    def free(self, indices: torch.Tensor) -> None:
        if set(indices.tolist()) & set(self._refuses):
            raise ValueError("not mine")
        self.freed += indices.tolist()


def left_in(pool: Any, values: list[list[int]]) -> tuple[RadixCache, list[Any]]:
    """Make a cache with a node for each list of slots."""
    cache = RadixCache(1, None, pool)
    nodes = [
        cache.insert(RadixKey([100 * at + slot for slot in value]), torch.tensor(value)).last_node
        for at, value in enumerate(values)
    ]
    return cache, nodes


def test_what_is_left_goes_back_once_and_node_by_node(caplog: pytest.LogCaptureFixture) -> None:
    """X7: what one node's slots are refused for is no other's loss."""
    pool = _Bare(refuses=(4,))
    cache, nodes = left_in(pool, [[1, 2], [2, 3], [4], [5]])
    return_what_is_left(pool, cache._tree, nodes)
    assert pool.freed == [1, 2, 3, 5]
    assert "does not take tensor([4])" in caplog.text


def test_a_pool_is_asked_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """X7: what it has already is not given back again, and nodes without slots have nothing to give."""
    pool = TokenToKVPoolAllocator(8, "cpu")
    slots = pool.alloc(5)
    assert slots is not None
    cache, nodes = left_in(pool, [slots[:2].tolist(), slots[2:4].tolist(), slots[4:].tolist()])
    pool.free(slots[1:4])
    nodes[2]._starts = None
    return_what_is_left(pool, cache._tree, nodes)
    assert (pool.available_size(), caplog.text) == (7, "")
    assert pool.is_handed_out(slots[4:]).all()
