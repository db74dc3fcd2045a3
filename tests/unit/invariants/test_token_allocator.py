"""The check of a `TokenToKVPoolAllocator` looks at its free list."""

from __future__ import annotations

import pytest

from pymllm.errors import InvariantViolation
from pymllm.invariants.slots import check_token_allocator
from pymllm.mem_cache.slot_store import StoreKind
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator


@pytest.mark.parametrize("store", ["host", "device"])
def test_a_sound_allocator_passes_and_a_miscounted_one_does_not(store: StoreKind) -> None:
    """A2: a counter that disagrees with a recount."""
    allocator = TokenToKVPoolAllocator(8, "cpu", store=store)
    allocator.alloc(3)
    check_token_allocator(allocator)
    allocator._store.free_pages += 1
    with pytest.raises(InvariantViolation, match="5 pages are free, counted 6"):
        check_token_allocator(allocator)
