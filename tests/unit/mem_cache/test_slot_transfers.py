"""Slots under transfer: what is given back meanwhile is handed out only when the transfer has ended."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.invariants import check_swa_allocator, check_token_allocator
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator

STORES = [
    {"store": "host", "check_ownership": True},
    {"store": "host", "check_ownership": False, "need_sort": False},
    {"store": "device", "check_ownership": True},
    {"store": "device", "check_ownership": False},
]
CHECKED = [store for store in STORES if store["check_ownership"]]


@pytest.fixture(params=STORES, ids=lambda store: "-".join(map(str, store.values())))
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of each free list."""
    chosen: dict[str, Any] = request.param
    return chosen


def make(options: dict[str, Any], pages: int = 4, page_size: int = 1) -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(pages * page_size, "cpu", page_size, **options)


def make_swa(options: dict[str, Any], pages: int = 4, page_size: int = 1) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(pages * page_size, pages * page_size, "cpu", page_size, **options)


def take_all(pool: Any) -> torch.Tensor:
    slots = pool.alloc(pool.size)
    assert slots is not None
    return slots


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.notices("B28", "B260")
def test_what_is_freed_under_transfer_is_not_handed_out(options: dict[str, Any], page_size: int) -> None:
    """A2: it is neither the caller's nor available, and becomes free at the end of the transfer."""
    pool = make(options, page_size=page_size)
    slots = take_all(pool)
    transfer = pool.begin_transfer(slots[: 2 * page_size])
    pool.free(slots)
    check_token_allocator(pool)
    assert pool.available_size() == 2 * page_size
    assert not pool.is_handed_out(slots).any()
    rest = pool.alloc(2 * page_size)
    assert rest is not None
    assert sorted(rest.tolist()) == slots[2 * page_size :].tolist()
    assert pool.alloc(1) is None
    pool.end_transfer(transfer)
    check_token_allocator(pool)
    again = pool.alloc(2 * page_size)
    assert again is not None
    assert sorted(again.tolist()) == slots[: 2 * page_size].tolist()


def test_a_transfer_leaves_slots_with_their_caller(options: dict[str, Any]) -> None:
    """A2: whoever frees them after the end frees them at once."""
    pool = make(options)
    slots = take_all(pool)
    transfer = pool.begin_transfer(slots)
    assert pool.is_handed_out(slots).all()
    pool.end_transfer(transfer)
    assert pool.is_handed_out(slots).all()
    pool.free(slots)
    assert pool.available_size() == 4


@pytest.mark.notices("B261")
def test_the_last_of_several_transfers_gives_a_page_back(options: dict[str, Any]) -> None:
    """A2: a transfer in and a transfer out may hold a page at a time, and end in any order."""
    pool = make(options)
    slots = take_all(pool)
    first, second = pool.begin_transfer(slots[:2]), pool.begin_transfer(slots[1:3])
    assert first != second
    pool.free(slots[:3])
    pool.end_transfer(first)
    check_token_allocator(pool)
    assert pool.available_size() == 1
    pool.end_transfer(second)
    assert pool.available_size() == 3


def test_pages_of_a_tree_under_transfer_wait_when_they_are_evicted(options: dict[str, Any]) -> None:
    """A2: a cache gives pages back by another call, which knows of transfers, too."""
    pool = make(options, page_size=2)
    cache = RadixCache(2, None, pool)
    slots = take_all(pool)
    cache.insert(RadixKey([1, 2, 3, 4, 5, 6, 7, 8]), slots)
    transfer = pool.begin_transfer(slots[2:4])
    cache.evict(8)
    assert pool.available_size() == 6
    pool.end_transfer(transfer)
    assert pool.available_size() == 8


def test_a_group_and_a_transfer_each_keep_pages_back(options: dict[str, Any]) -> None:
    """A6: what comes back by the end of a transfer inside a group waits for its end."""
    pool = make(options, page_size=2)
    slots = take_all(pool)
    outer, inner = pool.begin_transfer(slots[:2]), pool.begin_transfer(slots[2:4])
    pool.free_group_begin()
    pool.free(slots[:6])
    pool.end_transfer(inner)
    check_token_allocator(pool)
    assert pool.available_size() == 0
    pool.free_group_end()
    check_token_allocator(pool)
    assert pool.available_size() == 4
    pool.end_transfer(outer)
    assert pool.available_size() == 6


def test_a_clear_ends_all_transfers(options: dict[str, Any]) -> None:
    """X7: the pool is new; an end that comes later is refused and gives nothing back."""
    for pool in (make(options), make_swa(options)):
        slots = take_all(pool)
        transfer = pool.begin_transfer(slots)
        pool.free(slots)
        pool.clear()
        owned = take_all(pool)
        with pytest.raises(OwnershipError, match=f"transfer {transfer} is not under way"):
            pool.end_transfer(transfer)
        assert pool.available_size() == 0
        assert pool.begin_transfer(owned) != transfer
        pool.free(owned)
        assert pool.available_size() == 0


@pytest.mark.notices("B263")
def test_a_transfer_ends_once(options: dict[str, Any]) -> None:
    """A5: the second end is refused, also where the slots are somebody's again."""
    pool = make(options)
    slots = take_all(pool)
    transfer = pool.begin_transfer(slots)
    pool.free(slots)
    pool.end_transfer(transfer)
    take_all(pool)
    for wrong in (transfer, 0, 77):
        with pytest.raises(OwnershipError, match=rf"transfer {wrong} is not under way: end each one once"):
            pool.end_transfer(wrong)
    with pytest.raises(TypeError, match="transfer"):
        pool.end_transfer(None)  # type: ignore[arg-type]
    assert pool.available_size() == 0


def test_a_transfer_of_nothing_holds_nothing(options: dict[str, Any]) -> None:
    """A2: it begins and ends as any other."""
    pool = make(options)
    slots = take_all(pool)
    transfer = pool.begin_transfer(slots[:0])
    pool.free(slots)
    assert pool.available_size() == 4
    pool.end_transfer(transfer)


@pytest.mark.parametrize("store", CHECKED, ids=["host", "device"])
def test_a_second_free_under_transfer_is_refused(store: dict[str, Any]) -> None:
    """A5: and says what the slot waits for; a transfer of it is refused likewise."""
    for page_size, named in ((1, "slot 2"), (2, "page 1 of slot 2")):
        pool = make(store, page_size=page_size)
        slots = take_all(pool)
        transfer = pool.begin_transfer(slots)
        two = torch.tensor([2])
        pool.free(two)
        for call in (pool.free, pool.begin_transfer):
            words = f"{named} is already given back, and waits for a transfer to end"
            with pytest.raises(OwnershipError, match=words):
                call(two)
        pool.end_transfer(transfer)
        assert pool.available_size() == page_size


@pytest.mark.parametrize("page_size", [1, 2])
@pytest.mark.notices("B262")
def test_halves_under_transfer_wait_too(options: dict[str, Any], page_size: int) -> None:
    """A2, A7: a window that slides, and a request that ends, give halves back under transfer."""
    pool = make_swa(options, page_size=page_size)
    slots = take_all(pool)
    transfer = pool.begin_transfer(slots[: 2 * page_size])
    pool.free_swa(slots[:page_size])
    check_swa_allocator(pool)
    assert pool.swa_available_size() == 0
    pool.free_swa_pages(slots[3 * page_size :: page_size])
    assert pool.swa_available_size() == page_size
    pool.free_pages(slots[page_size::page_size])
    check_swa_allocator(pool)
    assert (pool.full_available_size(), pool.swa_available_size()) == (2 * page_size, 2 * page_size)
    pool.end_transfer(transfer)
    check_swa_allocator(pool)
    assert (pool.full_available_size(), pool.swa_available_size()) == (3 * page_size, 4 * page_size)
    pool.free(slots[:page_size])
    assert pool.available_size() == 4 * page_size


def test_a_half_under_transfer_waits_wherever_it_moved(options: dict[str, Any]) -> None:
    """A2, A7: the transfer reads the half, and not the slot before it."""
    pool = make_swa(options)
    slots = take_all(pool)
    pool.free_swa(slots[3:])
    transfer = pool.begin_transfer(slots[:1])
    pool.move_swa(slots[:1], slots[3:])
    pool.free(slots[3:])
    check_swa_allocator(pool)
    assert (pool.full_available_size(), pool.swa_available_size()) == (1, 1)
    pool.end_transfer(transfer)
    assert (pool.full_available_size(), pool.swa_available_size()) == (1, 2)
