"""White-box check of a `TokenToKVPoolAllocator`."""

from __future__ import annotations

from pymllm.invariants.slot_store import check_slot_store
from pymllm.invariants.subject import check_subject
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator

__all__ = ["check_token_allocator"]


def check_token_allocator(allocator: TokenToKVPoolAllocator) -> None:
    """Raise if anything that the allocator keeps contradicts anything else.

    Parameters
    ----------
    allocator : TokenToKVPoolAllocator
        In any state, free groups included; it is only read.

    Raises
    ------
    InvariantViolation
        Naming the law, as `pymllm.invariants.slot_store.check_slot_store` lists them.
    TypeError
        It is no `TokenToKVPoolAllocator`.

    Notes
    -----
    Cost: 1 ms for a million slots on the host. Laws: A1, A2, A4-A6.
    """
    check_subject(allocator, TokenToKVPoolAllocator)
    check_slot_store(allocator._store)
