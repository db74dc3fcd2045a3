"""White-box checks of this package's own classes: each takes an object and walks everything it keeps.

They raise `pymllm.errors.InvariantViolation` with the id of the law, change nothing, and ask nothing of the
code that they check but its fields.
"""

from __future__ import annotations

import pymllm.torch_needed  # noqa: F401  # before a module asks for torch itself
from pymllm.invariants.blocks import (
    check_dynamic_context,
    check_kv_block_allocator,
    check_mamba_slot_allocator,
)
from pymllm.invariants.mamba_radix_cache import check_mamba_radix_cache
from pymllm.invariants.pools import check_gdn_pool, check_kv_pool, check_req_to_token_pool
from pymllm.invariants.radix_cache import check_radix_cache
from pymllm.invariants.slots import check_swa_allocator, check_token_allocator

__all__ = [
    "check_dynamic_context",
    "check_gdn_pool",
    "check_kv_block_allocator",
    "check_kv_pool",
    "check_mamba_radix_cache",
    "check_mamba_slot_allocator",
    "check_radix_cache",
    "check_req_to_token_pool",
    "check_swa_allocator",
    "check_token_allocator",
]
