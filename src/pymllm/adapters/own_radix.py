"""Adapters of `pymllm.mem_cache.radix_cache.RadixCache`, without and with a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.malformed_prefix import call_malformed
from pymllm.adapters.own_prefix import OwnPrefixCache, pool_configurations
from pymllm.adapters.tree_view import path_length, view_tree
from pymllm.invariants import check_radix_cache
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.oracle.history import Config
from pymllm.oracle.operations import Hash, Inspect, Key, Lock, Malformed, Reset, Unlock
from pymllm.oracle.outcomes import Done, Hashes, Inspected, Locked, Result

__all__ = ["Radix", "WindowedRadix"]


class Radix(OwnPrefixCache):
    """`RadixCache`, over each of our allocators and over none."""

    CACHE: ClassVar[type[RadixCache]] = RadixCache
    """Whose object it is; what is a variation of ours names itself here."""
    CONFIGURATIONS: ClassVar[Sequence[Config]] = pool_configurations([None], ["none", "token", "swa"])

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._held: list[tuple[Any, Any]] = []
        page_size, window = self.cache.page_size, self.cache.sliding_window_size
        self.foreign_node = RadixCache(page_size, window).insert(RadixKey([1] * page_size)).last_node

    def claim(self) -> frozenset[str]:
        """Claim everything; what is about slots only over a pool."""
        claimed = {
            "extra_key",
            "bigrams",
            "hashes",
            "exact_lru",
            "refusals",
            "faults",
            "callbacks",
            "call_order",
            "inspect",
        }
        if self.config["pool"] != "none":
            claimed |= {"pool", "engine"}
        if self.config["window"] is not None:
            claimed.add("swa")
        return frozenset(claimed)

    def make_cache(self, on_node_evict: Callable[[int], None]) -> RadixCache:
        """Build a cache over the pool."""
        window = self.config["window"]
        return self.CACHE(
            self._size("page_size"),
            None if window is None else self._size("window"),
            self.pool,
            on_node_evict,
        )

    def node_length(self, node: Any, key: Key) -> int:
        """Climb from a node to the root."""
        return path_length(self.cache.root_node, node, key)

    # -- holds and hashes ------------------------------------------------------------------------------

    def do_lock(self, step: int, operation: Lock) -> Result:
        """Take a hold; the root is named by ``None`` now and then, which must not matter (R6)."""
        node = self.node_of(operation.of)
        is_named_none = node is self.cache.root_node and step % 2
        token = self.cache.inc_lock_ref(None if is_named_none else node)
        self.keep_hold(step, node, token)
        if node.parent is not None:  # no root, old or new, is held
            self._held.append((node, token))
        return Locked(token)

    def do_unlock(self, step: int, operation: Unlock) -> Result:
        """Release a hold."""
        released = super().do_unlock(step, operation)
        node, token = self.named_by(operation)
        if (node, token) in self._held:
            self._held.remove((node, token))
        return released

    def some_held_node(self) -> Any:
        """Return the node of the last hold that is outstanding.

        Raises
        ------
        UnsupportedError
            Nothing is held.
        """
        if not self._held:
            raise UnsupportedError("nothing is held")
        return self._held[-1][0]

    def do_hash(self, step: int, operation: Hash) -> Result:
        """Hash a node and then its ancestors, which must not matter (H2)."""
        node = self.node_of(operation.of)
        digests: list[str] = []
        while node is not None and node is not self.cache.root_node:
            digests = [*self.cache.compute_node_hash(node), *digests]
            node = node.parent
        return Hashes(tuple(digests))

    def do_reset(self, step: int, operation: Reset) -> Result:
        """Empty the cache."""
        self._held.clear()
        return super().do_reset(step, operation)

    # -- looking inside --------------------------------------------------------------------------------

    def do_inspect(self, step: int, operation: Inspect) -> Result:
        """Show every node."""
        return Inspected(view_tree(self.cache.root_node))

    def do_malformed(self, step: int, operation: Malformed) -> Result:
        """Pass an argument that must be refused."""
        call_malformed(self, operation.call, operation.wrong)
        return Done()

    def audit(self) -> Sequence[str]:
        """Walk the tree and the pool, unless the last operation only read."""
        if not self.is_touched:
            return ()
        check_radix_cache(self.cache)
        if not self.cache.root_node.children:
            return self.audit_pool()
        laws = ["R5", "R6", "R7", "R8", "R9", "H2"]
        if self.pool is not None:
            laws.append("R1")
        if self.cache.supports_swa:
            laws += ["S3", "S4", "S5", "S6"]
            laws += ["S2"] if self.config["pool"] == "swa" else []
        return (*laws, *self.audit_pool())


class WindowedRadix(Radix):
    """The same with windows of one page, and of more than one in a paged cache."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = pool_configurations([4, 6], ["none", "token", "swa"])
