"""Block contexts: KV blocks with their references, cached states of blocks, and whole requests.

Every name is also importable from its own module.
"""

from __future__ import annotations

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch, ForwardPass, RequestStep
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.mamba_slot_allocator import (
    MAX_INTERMEDIATE_OFFSETS_PER_REQUEST,
    MambaSlotAllocator,
    MambaSlotCapacityError,
)

__all__ = [
    "MAX_INTERMEDIATE_OFFSETS_PER_REQUEST",
    "DynamicInferenceContext",
    "ForwardBatch",
    "ForwardPass",
    "KVBlockAllocator",
    "MambaSlotAllocator",
    "MambaSlotCapacityError",
    "PrefixCachingEvictionPolicy",
    "RequestStep",
]
