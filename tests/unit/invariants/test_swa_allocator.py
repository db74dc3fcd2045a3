"""Each check of an `SWATokenToKVPoolAllocator` can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.errors import InvariantViolation
from pymllm.invariants.slots import check_swa_allocator
from pymllm.mem_cache.slot_store import StoreKind
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator

Fault = Callable[[SWATokenToKVPoolAllocator], None]


def make(store: StoreKind) -> SWATokenToKVPoolAllocator:
    """Full pages 1, 2 and 3 held with halves 1, 2 and 3, page 4 held without one."""
    allocator = SWATokenToKVPoolAllocator(8, 6, "cpu", store=store)
    slots = allocator.alloc(4)
    assert slots is not None
    allocator.free_swa(slots[3:])
    return allocator


@pytest.mark.parametrize("store", ["host", "device"])
def test_a_sound_allocator_passes(store: StoreKind) -> None:
    """A7: with halves gone, inside a group, and with no half in use at all."""
    allocator = make(store)
    check_swa_allocator(allocator)
    allocator.free_group_begin()
    check_swa_allocator(allocator)
    allocator.clear()
    assert check_swa_allocator(allocator) is None


def miscount_full(allocator: SWATokenToKVPoolAllocator) -> None:
    allocator._full.free_pages += 1


def miscount_swa(allocator: SWATokenToKVPoolAllocator) -> None:
    allocator._swa.free_pages += 1


def open_one_group(allocator: SWATokenToKVPoolAllocator) -> None:
    allocator._swa.begin_group()


def give_a_free_page_a_half(allocator: SWATokenToKVPoolAllocator) -> None:
    allocator._half_of[7] = 3


def name_a_half_outside(allocator: SWATokenToKVPoolAllocator) -> None:
    allocator._half_of[1] = 7


def name_a_negative_half(allocator: SWATokenToKVPoolAllocator) -> None:
    allocator._half_of[1] = -1


def share_a_half(allocator: SWATokenToKVPoolAllocator) -> None:
    allocator._half_of[1] = 2


def lose_a_half(allocator: SWATokenToKVPoolAllocator) -> None:
    allocator._half_of[1] = 0


def use_a_free_half(allocator: SWATokenToKVPoolAllocator) -> None:
    allocator._half_of[4] = 5


@pytest.mark.parametrize("store", ["host", "device"])
@pytest.mark.parametrize(
    ("fault", "law", "message"),
    [
        (miscount_full, "A2", "4 pages are free, counted 5"),
        (miscount_swa, "A2", "3 pages are free, counted 4"),
        (open_one_group, "A6", "in one of the two pools only"),
        (give_a_free_page_a_half, "A7", r"full pages \[7\] have SWA halves and are not handed out"),
        (name_a_half_outside, "A7", r"halves \[7\] are outside the SWA pages 1..6"),
        (name_a_negative_half, "A7", r"halves \[-1\] are outside"),
        (share_a_half, "A7", r"SWA pages \[2\] are the half of several"),
        (lose_a_half, "A7", r"SWA pages \[1\] are handed out without"),
        (use_a_free_half, "A7", r"SWA pages \[5\] are handed out without a full page, or free with one"),
    ],
)
def test_a_broken_allocator_is_found(store: StoreKind, fault: Fault, law: str, message: str) -> None:
    """A2, A6, A7: one field wrong is enough, and the law is named."""
    allocator = make(store)
    fault(allocator)
    with pytest.raises(InvariantViolation, match=message) as caught:
        check_swa_allocator(allocator)
    assert caught.value.law == law
