"""What the adapters of our own radix trees share: holds, hashes, nodes to look at, and bad arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.malformed_prefix import call_malformed
from pymllm.adapters.own_prefix import OwnPrefixCache
from pymllm.adapters.tree_view import path_length, view_node, view_tree
from pymllm.history.operations import Hash, Insert, Inspect, Key, Lock, Malformed, Match, Reset, Unlock
from pymllm.history.outcomes import Done, Hashes, Inspected, Locked, NodeView, Result
from pymllm.invariants.radix_cache import check_departed
from pymllm.mem_cache.base_prefix_cache import RadixKey

__all__ = ["OwnTree"]


class OwnTree(OwnPrefixCache):
    """A prefix cache of ours that is a tree of nodes.

    Attributes
    ----------
    foreign_node : object
        A node of another cache.
    """

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._held: list[tuple[Any, Any]] = []
        self._kept: dict[int, Any] = {}
        page_size = self._size("page_size")
        self.foreign_node = self.build(page_size).insert(RadixKey([1] * page_size)).last_node

    @abstractmethod
    def build(self, page_size: int, pool: Any = None) -> Any:
        """Build another cache of the same class."""

    def claim(self) -> frozenset[str]:
        """Claim what every tree of ours can: slots over a pool, and refusals unless that checks nothing."""
        claimed = {
            "extra_key",
            "bigrams",
            "hashes",
            "exact_lru",
            "faults",
            "callbacks",
            "call_order",
            "inspect",
            "lean_matches",
        }
        if self.is_checked:
            claimed.add("refusals")
        if self.config["pool"] != "none":
            claimed.add("pool")
        return frozenset(claimed)

    def do_match(self, step: int, operation: Match) -> Result:
        """Match a key, and keep the node for `audit_departed`."""
        return self._keep_node(step, super().do_match(step, operation))

    def do_insert(self, step: int, operation: Insert) -> Result:
        """Insert a key, and keep the node for `audit_departed`."""
        return self._keep_node(step, super().do_insert(step, operation))

    def _keep_node(self, step: int, result: Result) -> Result:
        node = self.node_of(step)
        self._kept[id(node)] = node
        return result

    def audit_departed(self) -> tuple[str, ...]:
        """Look once at what each node keeps alive that was handed out and has left the tree; the law's id."""
        left = [node for node in self._kept.values() if not self._is_inside(node)]
        for node in left:
            del self._kept[id(node)]
            check_departed(node)
        return ("X5",) if left else ()

    def _is_inside(self, node: Any) -> bool:
        return node is self.cache.root_node or node._owner is self.cache._tree.epoch

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

    def view(self, node: Any, parent: int | None) -> NodeView:
        """Tell what a node looks like, whose parent has this id."""
        return view_node(node, parent)

    def do_inspect(self, step: int, operation: Inspect) -> Result:
        """Show every node."""
        return Inspected(view_tree(self.cache.root_node, self.view))

    def do_malformed(self, step: int, operation: Malformed) -> Result:
        """Pass an argument that must be refused."""
        call_malformed(self, operation.call, operation.wrong)
        return Done()
