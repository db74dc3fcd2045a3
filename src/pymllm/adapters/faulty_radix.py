"""Prefix caches that are wrong in one way each: in what they match, insert, hold, hash and evict."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, ClassVar

import numpy as np
import torch

from pymllm.adapters.faulty import Faulty
from pymllm.adapters.own_caches import Radix, WindowedRadix
from pymllm.mem_cache.base_prefix_cache import EvictResult, InsertResult, MatchResult, RadixKey
from pymllm.mem_cache.edge_slots import PageStarts
from pymllm.mem_cache.eviction import EvictionCallbacks, LeafPlan
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.radix_tree import PagedKey, RadixTree, Split, _chain
from pymllm.mem_cache.sliding_window import SlidingWindow, WindowPlan, WindowVictims
from pymllm.mem_cache.tree_node import TreeNode


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


# X2: a call fails that nobody had a reason to make
@FaultyRadix.breaking("R6", "X2", pool="token")
class LockedVictims(RadixCache):
    """Evicts leaves without a look at their locks."""

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


@FaultyRadix.breaking("R6")
class LostAncestors(RadixTree[TreeNode]):
    """Releases the nodes that a hold was taken on, and forgets what was split off since."""

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


# -- keys ----------------------------------------------------------------------------------------------------


@FaultyRadix.breaking("K1")
class NamespaceFallback(RadixCache):
    """Serves a namespace that has nothing cached from the plain one."""

    def match_prefix(self, key: RadixKey) -> MatchResult:
        found = super().match_prefix(key)
        return found if found.prefix_len else super().match_prefix(RadixKey(key.token_ids))


@FaultyRadix.breaking("H2")
class OrphanHashes(RadixTree[TreeNode]):
    """Hashes the pages of a node as if nothing came before them."""

    def page_hashes(self, node: TreeNode) -> list[str]:
        if node.hash_values is None and node.parent is not self.root and node is not self.root:
            node.hash_values = _hash_pages(self, node, None)
        return super().page_hashes(node)


@FaultyRadix.breaking("H3")
class BareNamespaces(RadixTree[TreeNode]):
    """Seeds the hashes of a namespace with its name, be it a number or a text."""

    def page_hashes(self, node: TreeNode) -> list[str]:
        for top in self.path_to(node)[:1]:
            namespace = top.key.extra_key if top.key is not None else None
            if namespace is not None and top.hash_values is None:
                name = hashlib.sha256(str(namespace).encode()).hexdigest()
                top.hash_values = _hash_pages(self, top, name)
        return super().page_hashes(node)


def _hash_pages(tree: RadixTree[TreeNode], node: TreeNode, prior: str | None) -> list[str]:
    return _chain(node._raw, len(node._raw) * tree.page_size // node._length, prior)


# -- evictions -----------------------------------------------------------------------------------------------


@FaultyRadix.breaking("R5", page_size=1, pool="token")
class GreedyEviction(RadixCache):
    """Evicts one token more than was asked for, and so now and then a leaf more."""

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        return super().evict(num_tokens + (num_tokens > 0), swa_num_tokens)


@FaultyRadix.breaking("X2", pool="token")
class OneByOne(RadixCache):
    """Frees the victims of an eviction one by one."""

    def _give_back(self, plan: LeafPlan[TreeNode]) -> None:
        try:
            for node in plan.removed:
                self.pool.free(node.value)
        except BaseException:
            plan.call_off()
            raise


# X2: the pool refuses more pages than it has handed out.
@FaultyRadix.breaking("R5", "X2", page_size=4, pool="token", check_ownership=False)
class RepeatedPages(RadixCache):
    """Names a page once for each of its slots where the pool asks for each page once."""

    def _give_back(self, plan: LeafPlan[TreeNode]) -> None:
        starts = self._tree.page_starts(plan.removed) if plan.removed else None
        try:
            if starts is not None:
                self.pool.free_pages(np.repeat(starts, self.page_size))
        except BaseException:
            plan.call_off()
            raise


@FaultyRadix.breaking("X6")
class OpenCallbacks(EvictionCallbacks):
    """Lets a callback call the cache."""

    def refuse(self, call: str) -> None:
        pass


@FaultyRadix.breaking("R7", "R6")
class LeavesOnly(RadixCache):
    """Counts only leaves as evictable."""

    def evictable_size(self) -> int:
        return sum(leaf._length for leaf in self._tree.victims.leaves)


# -- the whole -----------------------------------------------------------------------------------------------


@FaultyRadix.breaking("X7", "X2", pool="token")
class HeldSlotsLost(RadixTree[TreeNode]):
    """Resets without giving the slots of held nodes back."""

    def nodes(self) -> Iterator[TreeNode]:
        return (node for node in super().nodes() if not node.lock_ref)


@FaultyRadix.breaking("X3")
class GlobalIds(RadixTree[TreeNode]):
    """Numbers the nodes of all caches of a process together."""

    ids: ClassVar[count[int]] = count(1)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._ids = self.ids


# -- matches -------------------------------------------------------------------------------------------------


@FaultyRadix.breaking("R2")
class ShortMatches(RadixCache):
    """Never matches the last token of a key."""

    def match_prefix(self, key: RadixKey) -> MatchResult:
        found = super().match_prefix(key)
        is_whole = 0 < found.prefix_len == len(key)
        return super().match_prefix(key[:-1]) if is_whole else found


@FaultyRadix.breaking("E1", pool="token")
class BottomUpSlots(RadixCache):
    """Gives the slots of a path node by node from its end to its start."""

    def match_prefix(self, key: RadixKey) -> MatchResult:
        found = super().match_prefix(key)
        path = self._tree.path_to(found.last_node)
        return dataclasses.replace(found, indices=self._tree.gather(path[::-1]))


@FaultyRadix.breaking("R10")
class SilentHits(RadixTree[TreeNode]):
    """Begins to count the hits of the upper half of a split anew."""

    def split(self, split: Split[TreeNode]) -> None:
        super().split(split)
        split.upper.hit_count = 0


@FaultyRadix.breaking("X5")
class SplitViews(RadixTree[TreeNode]):
    """Splits the slots of a node into views, each of which keeps the whole alive."""

    def split(self, split: Split[TreeNode]) -> None:
        upper, node = split.upper, split.node
        whole = node.value
        super().split(split)
        assert whole is not None
        upper.value, node.value = whole[: upper._length], whole[upper._length :]


@FaultyRadix.breaking("R3", pool="token")
class SharedPages(RadixTree[TreeNode]):
    """Splits a list of pages and leaves the lower half its first ones, the upper half's."""

    def _divide_slots(
        self, node: TreeNode, upper: TreeNode, tokens: int
    ) -> tuple[PageStarts | None, torch.Tensor | None]:
        starts, value = super()._divide_slots(node, upper, tokens)
        return starts if node._starts is None else node._starts[: -tokens // self.page_size].copy(), value


# -- inserts -------------------------------------------------------------------------------------------------


@FaultyRadix.breaking("R4", "X2", pool="token")
class FreedDuplicates(RadixCache):
    """Frees the slots of what is cached already, although they are the caller's."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        result = super().insert(key, value, **options)
        own = self._tree.gather(self._tree.path_to(result.last_node))[: result.prefix_len]
        if value is not None and len(duplicates := value[: len(own)][value[: len(own)] != own]):
            self.pool.free(duplicates)
        return result


@FaultyRadix.breaking("R4")
class OverstatedAdoption(RadixCache):
    """Tells that it adopted all of a key whose end was new."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        result = super().insert(key, value, **options)
        adopted = tuple((0, end) for _, end in result.adopted)
        return dataclasses.replace(result, adopted=adopted)


@FaultyRadix.breaking("R3")
class ZeroPrefix(RadixCache):
    """Tells that nothing of a key was cached before."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        return dataclasses.replace(super().insert(key, value, **options), prefix_len=0)


# X1: what is cut off may be what had to be refused
@FaultyRadix.breaking("R1", "X1")
class ShortValues(RadixCache):
    """Cuts a key and its slots to the shorter of the two instead of refusing them."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        if isinstance(value, torch.Tensor):
            length = min(len(key), len(value))
            key, value = key[:length], value[:length]
        return super().insert(key, value, **options)


# Without the pool's books nothing is claimed to be refused.
@FaultyRadix.breaking("X1", "R8", where=lambda config: config.get("check_ownership") is not False)
class EarlyRefusal(RadixCache):
    """Caches as much of a key as there are slots for, and only then refuses it."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        if isinstance(value, torch.Tensor) and len(value) < len(key):
            super().insert(key[: len(value)], value, **options)
        return super().insert(key, value, **options)


@FaultyRadix.breaking("R9")
class EmptyNodes(RadixCache):
    """Adds an empty node below a leaf that is cached again."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        result = super().insert(key, value, **options)
        if result.prefix_len and not result.adopted and not result.last_node.children:
            nothing = torch.empty(0, dtype=torch.int64)
            paged = PagedKey.of(key, self.page_size)
            self._tree.append(self._tree.make_leaf(result.last_node, paged, nothing))
        return result


class _Windowed(FaultyRadix):
    SOUND = "radix-window"
    CONFIGURATIONS = WindowedRadix.CONFIGURATIONS


# -- what may be used ----------------------------------------------------------------------------------------


@_Windowed.breaking("S1")
class DeadWindows(RadixCache):
    """Matches prefixes whose last window is dead."""

    def match_prefix(self, key: RadixKey) -> MatchResult:
        usable = super().match_prefix(key)
        path = self._tree.walk(PagedKey.of(key, self.page_size)).path
        last = path[-1] if path else usable.last_node
        return MatchResult(self._tree.gather(path), last, last._depth)


@_Windowed.breaking("R8")
class StaleMatches(RadixCache):
    """Does not make what it matches recent."""

    def _stamp(self, path: list[TreeNode]) -> None:
        pass


# -- holds ---------------------------------------------------------------------------------------------------


# Windows of one page would be none.
@_Windowed.breaking("S5", "S6", where=lambda config: (config["page_size"], config["window"]) != (4, 4))
class ShortHolds(SlidingWindow[TreeNode]):
    """Protects one page less than a hold's window needs."""

    def __init__(self, tree: RadixTree[TreeNode], victims: WindowVictims[TreeNode], size: int) -> None:
        super().__init__(tree, victims, size)
        self.span -= tree.page_size


@_Windowed.breaking("S5")
class LowBoundaries(SlidingWindow[TreeNode]):
    """Leaves a window's boundary with the lower half of a split."""

    def split(self, split: Split[TreeNode]) -> None:
        super().split(split)
        split.upper.swa_boundary_id, split.node.swa_boundary_id = None, split.upper.swa_boundary_id


@_Windowed.breaking("S6")
class TwiceProtected(RadixCache):
    """Counts a protected window once for each of its holds."""

    def swa_protected_size(self) -> int:
        return sum(node._length * node.swa_lock_ref for node in self._tree.nodes())


# -- evictions and inserts -----------------------------------------------------------------------------------


@_Windowed.breaking("S4", pool="swa")
class DeadLeaves(RadixCache):
    """Leaves tombstones behind as leaves."""

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        # What seems locked is not looked at when its last child goes.
        dead = [node for node in self._tree.nodes() if node.swa_tombstone]
        for node in dead:
            node.lock_ref += 1
        try:
            return super().evict(num_tokens, swa_num_tokens)
        finally:
            for node in dead:
                node.lock_ref -= 1


@_Windowed.breaking("S2", "R3")
class LivingTombstones(RadixCache):
    """Frees the SWA half of a node that it still takes for alive."""

    def _tombstone(self, plan: WindowPlan[TreeNode]) -> None:
        nodes = plan.tombstoned
        super()._tombstone(plan)
        for node in nodes:
            node.swa_tombstone = False


@_Windowed.breaking("S3", "R5", "X2", page_size=1, pool="swa")
class OneWindowMore(RadixCache):
    """Frees one window token more than was asked for, and so now and then a node more."""

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        asks = type(swa_num_tokens) is int and swa_num_tokens > 0
        return super().evict(num_tokens, swa_num_tokens + 1 if asks else swa_num_tokens)


@_Windowed.breaking("S7")
class NoProtection(RadixCache):
    """Ignores prev_prefix_len."""

    def _insert_windowed(
        self, paged: PagedKey, slots: torch.Tensor, protected: int, evicted: int
    ) -> InsertResult:
        return super()._insert_windowed(paged, slots, 0, evicted)
