"""A prefix cache that caches nothing, for servers that run without prefix caching."""

from __future__ import annotations

from typing import Any

import torch

from pymllm.mem_cache.arguments import as_device, as_pool
from pymllm.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    EvictResult,
    InsertResult,
    MatchResult,
    RadixKey,
)

__all__ = ["ChunkCache"]


class ChunkCache(BasePrefixCache):
    """A prefix cache that accepts every call of the interface without caching anything.

    Parameters
    ----------
    token_to_kv_pool_allocator : allocator, optional
        Kept as ``pool``, and the source of the device; never called: nothing is ever adopted, so every slot
        stays the caller's to free. Anything with a ``free`` will do, as for the caches that call it.
    device : str or torch.device
        Where the empty ``indices`` live when there is no allocator to say so.

    Raises
    ------
    TypeError
        The allocator has no ``free``, or the device is neither a name nor a device.
    ValueError
        Torch knows no such device.

    Notes
    -----
    Cost: O(1) everywhere. Laws: docs/specification/prefixes.md, of a cache that retains nothing.
    """

    def __init__(self, token_to_kv_pool_allocator: Any = None, device: str | torch.device = "cpu") -> None:
        self.pool = as_pool(token_to_kv_pool_allocator)
        self.device = as_device(getattr(token_to_kv_pool_allocator, "device", device))

    def reset(self) -> None:
        """Do nothing, since no memory is owned."""

    def match_prefix(self, key: RadixKey) -> MatchResult:
        """Return an empty match."""
        return MatchResult(torch.empty(0, dtype=torch.int64, device=self.device))

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        """Adopt no slots; all incoming slots stay the caller's."""
        return InsertResult()

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        """Evict nothing, since nothing is cached."""
        return EvictResult()

    def inc_lock_ref(self, node: Any) -> None:
        """Hold nothing, since there are no nodes to protect."""

    def dec_lock_ref(self, node: Any, **kwargs: Any) -> None:
        """Release nothing, since there are no holds."""
