"""Prefix caches that are wrong in one way each: in holds, hashes, evictions, or as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, ClassVar

import numpy as np

from pymllm.adapters.faulty import Faulty, configured
from pymllm.adapters.own_radix import Radix
from pymllm.mem_cache.base_prefix_cache import EvictResult, MatchResult, RadixKey
from pymllm.mem_cache.eviction import EvictionCallbacks, LeafPlan
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.radix_tree import RadixTree, _chain
from pymllm.mem_cache.sliding_window import SlidingWindow, WindowVictims
from pymllm.mem_cache.tree_node import TreeNode

__all__ = [
    "BareNamespaces",
    "FaultyRadix",
    "GlobalIds",
    "GreedyEviction",
    "HeldSlotsLost",
    "LeavesOnly",
    "LockedVictims",
    "LostAncestors",
    "NamespaceFallback",
    "OneByOne",
    "OpenCallbacks",
    "OrphanHashes",
    "RepeatedPages",
]


class FaultyRadix(Faulty, Radix):
    """Adapts a cache that is made of a variation of one of its parts.

    Attributes
    ----------
    TREE, WINDOW, CALLBACKS : type
        The parts.
    """

    SOUND = "radix"
    TREE: ClassVar[type[RadixTree[TreeNode]]] = RadixTree
    WINDOW: ClassVar[type[SlidingWindow[TreeNode]]] = SlidingWindow
    CALLBACKS: ClassVar[type[EvictionCallbacks]] = EvictionCallbacks

    def make_cache(self, on_node_evict: Callable[[int], None]) -> RadixCache:
        """Build the cache and put the parts in, before anything is in them."""
        cache = super().make_cache(on_node_evict)
        if cache.sliding_window_size is None:
            cache._tree = self.TREE(TreeNode, cache.page_size, cache.device, cache._tree.keeps_pages)
        else:
            victims: WindowVictims[TreeNode] = WindowVictims()
            cache._tree = self.TREE(TreeNode, cache.page_size, cache.device, victims=victims)
            cache._window = self.WINDOW(cache._tree, victims, cache.sliding_window_size)
        cache._callbacks = self.CALLBACKS()
        return cache


# -- holds ---------------------------------------------------------------------------------------------------


class _EvictsLocked(RadixCache):
    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        held = [(node, node.lock_ref) for node in self._tree.nodes() if node.lock_ref]
        for node, _ in held:
            node.lock_ref = 0
            self._tree.victims.place(node)
        try:
            return super().evict(num_tokens, swa_num_tokens)
        finally:
            for node, locks in held:
                node.lock_ref = locks
                self._tree.victims.place(node)


class LockedVictims(FaultyRadix):
    """Evicts leaves without a look at their locks."""

    BREAKS = "R6"
    ALSO = ("X2",)  # a call fails that nobody had a reason to make
    CONFIGURATIONS = configured(Radix.CONFIGURATIONS, pool="token")
    CACHE = _EvictsLocked


class _ReleasesAsHeld(RadixTree[TreeNode]):
    def hold(self, node: TreeNode) -> None:
        super().hold(node)
        self._held = {**getattr(self, "_held", {}), node.id: {at.id for at in self.path_to(node)}}

    def release(self, node: TreeNode) -> None:
        since = [at for at in self.path_to(node) if at.id not in self._held[node.id]]
        super().release(node)
        for at in since:
            if not at.lock_ref:
                self.evictable_tokens -= at._length
                self.protected_tokens += at._length
            at.lock_ref += 1


class LostAncestors(FaultyRadix):
    """Releases the nodes that a hold was taken on, and forgets what was split off since."""

    BREAKS = "R6"
    TREE = _ReleasesAsHeld


# -- keys ----------------------------------------------------------------------------------------------------


class _FallsBack(RadixCache):
    def match_prefix(self, key: RadixKey) -> MatchResult:
        found = super().match_prefix(key)
        return found if found.prefix_len else super().match_prefix(RadixKey(key.token_ids))


class NamespaceFallback(FaultyRadix):
    """Serves a namespace that has nothing cached from the plain one."""

    BREAKS = "K1"
    CACHE = _FallsBack


class _StartsAfresh(RadixTree[TreeNode]):
    def page_hashes(self, node: TreeNode) -> list[str]:
        if node.hash_values is None and node.parent is not self.root and node is not self.root:
            node.hash_values = _hash_pages(self, node, None)
        return super().page_hashes(node)


class OrphanHashes(FaultyRadix):
    """Hashes the pages of a node as if nothing came before them."""

    BREAKS = "H2"
    TREE = _StartsAfresh


class _SeedsWithTheName(RadixTree[TreeNode]):
    def page_hashes(self, node: TreeNode) -> list[str]:
        for top in self.path_to(node)[:1]:
            namespace = top.key.extra_key if top.key is not None else None
            if namespace is not None and top.hash_values is None:
                name = hashlib.sha256(str(namespace).encode()).hexdigest()
                top.hash_values = _hash_pages(self, top, name)
        return super().page_hashes(node)


class BareNamespaces(FaultyRadix):
    """Seeds the hashes of a namespace with its name, be it a number or a text."""

    BREAKS = "H3"
    TREE = _SeedsWithTheName


def _hash_pages(tree: RadixTree[TreeNode], node: TreeNode, prior: str | None) -> list[str]:
    return _chain(node._raw, len(node._raw) * tree.page_size // node._length, prior)


# -- evictions -----------------------------------------------------------------------------------------------


class _EvictsMore(RadixCache):
    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        return super().evict(num_tokens + (num_tokens > 0), swa_num_tokens)


class GreedyEviction(FaultyRadix):
    """Evicts one token more than was asked for, and so now and then a leaf more."""

    BREAKS = "R5"
    CONFIGURATIONS = configured(Radix.CONFIGURATIONS, page_size=1, pool="token")
    CACHE = _EvictsMore


class _FreesOneByOne(RadixCache):
    def _give_back(self, plan: LeafPlan[TreeNode]) -> None:
        try:
            for node in plan.removed:
                self.pool.free(node.value)
        except BaseException:
            plan.call_off()
            raise


class OneByOne(FaultyRadix):
    """Frees the victims of an eviction one by one."""

    BREAKS = "X2"
    CONFIGURATIONS = configured(Radix.CONFIGURATIONS, pool="token")
    CACHE = _FreesOneByOne


class _NamesEachSlot(RadixCache):
    def _give_back(self, plan: LeafPlan[TreeNode]) -> None:
        starts = self._tree.page_starts(plan.removed) if plan.removed else None
        try:
            if starts is not None:
                self.pool.free_pages(np.repeat(starts, self.page_size))
        except BaseException:
            plan.call_off()
            raise


class RepeatedPages(FaultyRadix):
    """Names a page once for each of its slots where the pool asks for each page once."""

    BREAKS = "R5"
    ALSO = ("X2",)  # the pool refuses more pages than it has handed out
    CONFIGURATIONS = configured(Radix.CONFIGURATIONS, page_size=4, pool="token", check_ownership=False)
    CACHE = _NamesEachSlot


class _LetsIn(EvictionCallbacks):
    def refuse(self, call: str) -> None:
        pass


class OpenCallbacks(FaultyRadix):
    """Lets a callback call the cache."""

    BREAKS = "X6"
    CALLBACKS = _LetsIn


class _CountsLeaves(RadixCache):
    def evictable_size(self) -> int:
        return sum(leaf._length for leaf in self._tree.victims.leaves)


class LeavesOnly(FaultyRadix):
    """Counts only leaves as evictable."""

    BREAKS = "R7"
    ALSO = ("R6",)
    CACHE = _CountsLeaves


# -- the whole -----------------------------------------------------------------------------------------------


class _SkipsLocked(RadixTree[TreeNode]):
    def nodes(self) -> Iterator[TreeNode]:
        return (node for node in super().nodes() if not node.lock_ref)


class HeldSlotsLost(FaultyRadix):
    """Resets without giving the slots of held nodes back."""

    BREAKS = "X7"
    ALSO = ("X2",)
    CONFIGURATIONS = configured(Radix.CONFIGURATIONS, pool="token")
    TREE = _SkipsLocked


class _CountsForAll(RadixTree[TreeNode]):
    ids: ClassVar[count[int]] = count(1)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._ids = self.ids


class GlobalIds(FaultyRadix):
    """Numbers the nodes of all caches of a process together."""

    BREAKS = "X3"
    TREE = _CountsForAll
