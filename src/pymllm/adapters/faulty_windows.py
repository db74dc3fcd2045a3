"""Prefix caches with a sliding window that are wrong in one way each."""

from __future__ import annotations

import torch

from pymllm.adapters.faulty import configured
from pymllm.adapters.faulty_radix import FaultyRadix
from pymllm.adapters.own_radix import WindowedRadix
from pymllm.mem_cache.base_prefix_cache import EvictResult, InsertResult, MatchResult, RadixKey
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.radix_tree import PagedKey, RadixTree, Split
from pymllm.mem_cache.sliding_window import SlidingWindow, WindowPlan, WindowVictims
from pymllm.mem_cache.tree_node import TreeNode

__all__ = [
    "DeadLeaves",
    "DeadWindows",
    "LivingTombstones",
    "LowBoundaries",
    "NoProtection",
    "OneWindowMore",
    "ShortHolds",
    "StaleMatches",
    "TwiceProtected",
]


class _Windowed(FaultyRadix):
    SOUND = "radix-window"
    CONFIGURATIONS = WindowedRadix.CONFIGURATIONS


# -- what may be used ----------------------------------------------------------------------------------------


class _IgnoresTombstones(RadixCache):
    def match_prefix(self, key: RadixKey) -> MatchResult:
        usable = super().match_prefix(key)
        path = self._tree.walk(PagedKey.of(key, self.page_size)).path
        last = path[-1] if path else usable.last_node
        return MatchResult(self._tree.gather(path), last, last._depth)


class DeadWindows(_Windowed):
    """Matches prefixes whose last window is dead."""

    BREAKS = "S1"
    CACHE = _IgnoresTombstones


class _DoesNotStamp(RadixCache):
    def _stamp(self, path: list[TreeNode]) -> None:
        pass


class StaleMatches(_Windowed):
    """Does not make what it matches recent."""

    BREAKS = "R8"
    CACHE = _DoesNotStamp


# -- holds ---------------------------------------------------------------------------------------------------


class _HoldsAPageLess(SlidingWindow[TreeNode]):
    def __init__(self, tree: RadixTree[TreeNode], victims: WindowVictims[TreeNode], size: int) -> None:
        super().__init__(tree, victims, size)
        self.span -= tree.page_size


class ShortHolds(_Windowed):
    """Protects one page less than a hold's window needs."""

    BREAKS = "S5"
    ALSO = ("S6",)
    CONFIGURATIONS = tuple(
        config
        for config in WindowedRadix.CONFIGURATIONS
        if (config["page_size"], config["window"]) != (4, 4)  # its windows are one page
    )
    WINDOW = _HoldsAPageLess


class _LeavesIdsBelow(SlidingWindow[TreeNode]):
    def split(self, split: Split[TreeNode]) -> None:
        super().split(split)
        split.upper.swa_boundary_id, split.node.swa_boundary_id = None, split.upper.swa_boundary_id


class LowBoundaries(_Windowed):
    """Leaves a window's boundary with the lower half of a split."""

    BREAKS = "S5"
    WINDOW = _LeavesIdsBelow


class _CountsHolds(RadixCache):
    def swa_protected_size(self) -> int:
        return sum(node._length * node.swa_lock_ref for node in self._tree.nodes())


class TwiceProtected(_Windowed):
    """Counts a protected window once for each of its holds."""

    BREAKS = "S6"
    CACHE = _CountsHolds


# -- evictions and inserts -----------------------------------------------------------------------------------


class _KeepsDeadLeaves(RadixCache):
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


class DeadLeaves(_Windowed):
    """Leaves tombstones behind as leaves."""

    BREAKS = "S4"
    CONFIGURATIONS = configured(WindowedRadix.CONFIGURATIONS, pool="swa")
    CACHE = _KeepsDeadLeaves


class _SetsNoFlag(RadixCache):
    def _tombstone(self, plan: WindowPlan[TreeNode]) -> None:
        nodes = plan.tombstoned
        super()._tombstone(plan)
        for node in nodes:
            node.swa_tombstone = False


class LivingTombstones(_Windowed):
    """Frees the SWA half of a node that it still takes for alive."""

    BREAKS = "S2"
    ALSO = ("R3",)
    CACHE = _SetsNoFlag


class _EvictsMoreWindows(RadixCache):
    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        asks = type(swa_num_tokens) is int and swa_num_tokens > 0
        return super().evict(num_tokens, swa_num_tokens + 1 if asks else swa_num_tokens)


class OneWindowMore(_Windowed):
    """Frees one window token more than was asked for, and so now and then a node more."""

    BREAKS = "S3"
    ALSO = ("R5", "X2")
    CONFIGURATIONS = configured(WindowedRadix.CONFIGURATIONS, page_size=1, pool="swa")
    CACHE = _EvictsMoreWindows


class _ProtectsNothing(RadixCache):
    def _insert_windowed(
        self, paged: PagedKey, slots: torch.Tensor, protected: int, evicted: int
    ) -> InsertResult:
        return super()._insert_windowed(paged, slots, 0, evicted)


class NoProtection(_Windowed):
    """Ignores prev_prefix_len."""

    BREAKS = "S7"
    CACHE = _ProtectsNothing
