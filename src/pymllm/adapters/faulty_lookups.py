"""Prefix caches that are wrong in one way each, in what they match or insert."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from pymllm.adapters.faulty import configured
from pymllm.adapters.faulty_radix import FaultyRadix
from pymllm.adapters.own_radix import Radix
from pymllm.mem_cache.base_prefix_cache import InsertResult, MatchResult, RadixKey
from pymllm.mem_cache.edge_slots import PageStarts
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.radix_tree import PagedKey, RadixTree, Split
from pymllm.mem_cache.tree_node import TreeNode

__all__ = [
    "BottomUpSlots",
    "EarlyRefusal",
    "EmptyNodes",
    "FreedDuplicates",
    "OverstatedAdoption",
    "SharedPages",
    "ShortMatches",
    "ShortValues",
    "SilentHits",
    "SplitViews",
    "ZeroPrefix",
]


# -- matches -------------------------------------------------------------------------------------------------


class _LeavesATokenOut(RadixCache):
    def match_prefix(self, key: RadixKey) -> MatchResult:
        found = super().match_prefix(key)
        is_whole = 0 < found.prefix_len == len(key)
        return super().match_prefix(key[:-1]) if is_whole else found


class ShortMatches(FaultyRadix):
    """Never matches the last token of a key."""

    BREAKS = "R2"
    CACHE = _LeavesATokenOut


class _GathersBottomUp(RadixCache):
    def match_prefix(self, key: RadixKey) -> MatchResult:
        found = super().match_prefix(key)
        path = self._tree.path_to(found.last_node)
        return dataclasses.replace(found, indices=self._tree.gather(path[::-1]))


class BottomUpSlots(FaultyRadix):
    """Gives the slots of a path node by node from its end to its start."""

    BREAKS = "E1"
    CONFIGURATIONS = configured(Radix.CONFIGURATIONS, pool="token")
    CACHE = _GathersBottomUp


class _ForgetsHits(RadixTree[TreeNode]):
    def split(self, split: Split[TreeNode]) -> None:
        super().split(split)
        split.upper.hit_count = 0


class SilentHits(FaultyRadix):
    """Begins to count the hits of the upper half of a split anew."""

    BREAKS = "R10"
    TREE = _ForgetsHits


class _SplitsIntoViews(RadixTree[TreeNode]):
    def split(self, split: Split[TreeNode]) -> None:
        upper, node = split.upper, split.node
        whole = node.value
        super().split(split)
        assert whole is not None
        upper.value, node.value = whole[: upper._length], whole[upper._length :]


class SplitViews(FaultyRadix):
    """Splits the slots of a node into views, each of which keeps the whole alive."""

    BREAKS = "X5"
    TREE = _SplitsIntoViews


class _CutsPagesTwice(RadixTree[TreeNode]):
    def _divide_slots(
        self, node: TreeNode, upper: TreeNode, tokens: int
    ) -> tuple[PageStarts | None, torch.Tensor | None]:
        starts, value = super()._divide_slots(node, upper, tokens)
        return starts if node._starts is None else node._starts[: -tokens // self.page_size].copy(), value


class SharedPages(FaultyRadix):
    """Splits a list of pages and leaves the lower half its first ones, the upper half's."""

    BREAKS = "R3"
    CONFIGURATIONS = configured(Radix.CONFIGURATIONS, pool="token")
    TREE = _CutsPagesTwice


# -- inserts -------------------------------------------------------------------------------------------------


class _FreesDuplicates(RadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        result = super().insert(key, value, **options)
        own = self._tree.gather(self._tree.path_to(result.last_node))[: result.prefix_len]
        if value is not None and len(duplicates := value[: len(own)][value[: len(own)] != own]):
            self.pool.free(duplicates)
        return result


class FreedDuplicates(FaultyRadix):
    """Frees the slots of what is cached already, although they are the caller's."""

    BREAKS = "R4"
    ALSO = ("X2",)
    CONFIGURATIONS = configured(Radix.CONFIGURATIONS, pool="token")
    CACHE = _FreesDuplicates


class _AdoptsInWords(RadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        result = super().insert(key, value, **options)
        adopted = tuple((0, end) for _, end in result.adopted)
        return dataclasses.replace(result, adopted=adopted)


class OverstatedAdoption(FaultyRadix):
    """Tells that it adopted all of a key whose end was new."""

    BREAKS = "R4"
    CACHE = _AdoptsInWords


class _SaysNothingWasThere(RadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        return dataclasses.replace(super().insert(key, value, **options), prefix_len=0)


class ZeroPrefix(FaultyRadix):
    """Tells that nothing of a key was cached before."""

    BREAKS = "R3"
    CACHE = _SaysNothingWasThere


class _CutsToTheShorter(RadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        if isinstance(value, torch.Tensor):
            length = min(len(key), len(value))
            key, value = key[:length], value[:length]
        return super().insert(key, value, **options)


class ShortValues(FaultyRadix):
    """Cuts a key and its slots to the shorter of the two instead of refusing them."""

    BREAKS = "R1"
    ALSO = ("X1",)  # what is cut off may be what had to be refused
    CACHE = _CutsToTheShorter


class _RefusesTooLate(RadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        if isinstance(value, torch.Tensor) and len(value) < len(key):
            super().insert(key[: len(value)], value, **options)
        return super().insert(key, value, **options)


class EarlyRefusal(FaultyRadix):
    """Caches as much of a key as there are slots for, and only then refuses it."""

    BREAKS = "X1"
    ALSO = ("R8",)
    # Without the pool's books nothing is claimed to be refused.
    CONFIGURATIONS = tuple(it for it in Radix.CONFIGURATIONS if it.get("check_ownership") is not False)
    CACHE = _RefusesTooLate


class _AddsEmptyNodes(RadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **options: Any) -> InsertResult:
        result = super().insert(key, value, **options)
        if result.prefix_len and not result.adopted and not result.last_node.children:
            nothing = torch.empty(0, dtype=torch.int64)
            paged = PagedKey.of(key, self.page_size)
            self._tree.append(self._tree.make_leaf(result.last_node, paged, nothing))
        return result


class EmptyNodes(FaultyRadix):
    """Adds an empty node below a leaf that is cached again."""

    BREAKS = "R9"
    CACHE = _AddsEmptyNodes
