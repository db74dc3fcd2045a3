"""Every check says what it can walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymllm.invariants import (
    check_gdn_pool,
    check_kv_pool,
    check_mamba_radix_cache,
    check_radix_cache,
    check_req_to_token_pool,
    check_swa_allocator,
    check_token_allocator,
)
from pymllm.invariants.blocks import (
    check_dynamic_context,
    check_kv_block_allocator,
    check_mamba_slot_allocator,
)
from pymllm.invariants.pools import check_subject
from pymllm.mem_cache import MambaRadixCache, RadixCache


def test_objects_of_the_class_and_below_pass() -> None:
    """X1: whoever derives from a class is checked like it."""

    class Mine(RadixCache):
        pass

    check_subject(Mine(), RadixCache)
    with pytest.raises(TypeError, match=r"is a MambaRadixCache: give a RadixCache$"):
        check_subject(MambaRadixCache(), RadixCache)


@pytest.mark.parametrize("given", [None, 5, object()], ids=["None", "int", "object"])
@pytest.mark.parametrize(
    ("check", "wanted"),
    [
        (check_dynamic_context, "DynamicInferenceContext"),
        (check_gdn_pool, "GDNPool"),
        (check_kv_block_allocator, "KVBlockAllocator"),
        (check_kv_pool, "KVPool"),
        (check_mamba_radix_cache, "MambaRadixCache"),
        (check_mamba_slot_allocator, "MambaSlotAllocator"),
        (check_radix_cache, "RadixCache"),
        (check_req_to_token_pool, "ReqToTokenPool"),
        (check_swa_allocator, "SWATokenToKVPoolAllocator"),
        (check_token_allocator, "TokenToKVPoolAllocator"),
    ],
)
def test_what_a_check_cannot_walk_is_refused(check: Callable[[Any], None], wanted: str, given: Any) -> None:
    """X1: one line with what came and what is wanted, not the name of a private field."""
    with pytest.raises(TypeError, match=f"is a {type(given).__name__}: give a {wanted}$"):
        check(given)


def test_caches_of_another_kind_are_refused() -> None:
    """X1: either prefix cache looks like the other for a while."""
    with pytest.raises(TypeError, match=r"is a RadixCache: give a MambaRadixCache$"):
        check_mamba_radix_cache(RadixCache())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"is a MambaRadixCache: give a RadixCache$"):
        check_radix_cache(MambaRadixCache())  # type: ignore[arg-type]
