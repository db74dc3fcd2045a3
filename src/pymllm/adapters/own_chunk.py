"""Adapter of `pymllm.mem_cache.chunk_cache.ChunkCache`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from pymllm.adapters.own_prefix import OwnPrefixCache, pool_configurations
from pymllm.history.files import Config
from pymllm.mem_cache.chunk_cache import ChunkCache

__all__ = ["Chunk"]


class Chunk(OwnPrefixCache):
    """`ChunkCache`, which retains nothing and, whatever it is given, refuses nothing."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = pool_configurations([None], ["none", "token"], retains=False)

    def claim(self) -> frozenset[str]:
        """Claim namespaces and bigrams, which cannot meet where nothing is kept."""
        claimed = {"extra_key", "bigrams"}
        if self.config["pool"] != "none":
            claimed |= {"pool", "engine"}
        return frozenset(claimed)

    def make_cache(self, on_node_evict: Callable[[int], None]) -> ChunkCache:
        """Build a cache over the pool; it never calls back."""
        return ChunkCache(self.pool, self._device)

    def audit(self) -> Sequence[str]:
        """Walk the pool's books."""
        return self.audit_pool()
