"""Adapters of `pymllm.mem_cache.radix_cache.RadixCache`, without and with a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pymllm.adapters.own_prefix import pool_configurations
from pymllm.adapters.own_tree import OwnTree
from pymllm.history.files import Config
from pymllm.invariants import check_radix_cache
from pymllm.mem_cache.radix_cache import RadixCache

__all__ = ["Radix", "WindowedRadix"]


class Radix(OwnTree):
    """`RadixCache`, over each of our allocators and over none."""

    CACHE: ClassVar[type[RadixCache]] = RadixCache
    """Whose object it is; what is a variation of ours names itself here."""
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([None], ["none", "token", "swa"]),
        *pool_configurations([None], ["token"], check_ownership=False),
    )

    def claim(self) -> frozenset[str]:
        """Claim everything; what is about slots only over a pool."""
        claimed = set(super().claim())
        if self.config["pool"] != "none":
            claimed.add("engine")
        if self.config["window"] is not None:
            claimed.add("swa")
        return frozenset(claimed)

    def build(self, page_size: int, pool: Any = None) -> RadixCache:
        """Build another cache, without a window."""
        return RadixCache(page_size, None, pool)

    def make_cache(self, on_node_evict: Callable[[int], None]) -> RadixCache:
        """Build a cache over the pool."""
        window = self.config["window"]
        return self.CACHE(
            self._size("page_size"),
            None if window is None else self._size("window"),
            self.pool,
            on_node_evict,
        )

    def audit(self) -> Sequence[str]:
        """Walk the tree, what has left it, and the pool, unless the last operation only read."""
        if not self.is_touched:
            return ()
        check_radix_cache(self.cache)
        if not self.cache.root_node.children:
            return (*self.audit_departed(), *self.audit_pool())
        laws = ["R5", "R6", "R7", "R8", "R9", "H2"]
        if self.pool is not None and self.is_checked:
            laws.append("R1")
        if self.cache.supports_swa:
            laws += ["S3", "S4", "S5", "S6"]
            laws += ["S2"] if self.config["pool"] == "swa" else []
        return (*laws, *self.audit_departed(), *self.audit_pool())


class WindowedRadix(Radix):
    """The same with windows of one page, and of more than one in a paged cache."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([4, 6], ["none", "token", "swa"]),
        *pool_configurations([6], ["swa"], check_ownership=False),
    )
