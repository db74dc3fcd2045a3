"""Prefix caches with states that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pymllm.adapters.faulty import Faulty, configured
from pymllm.adapters.own_mamba import Mamba
from pymllm.mem_cache.base_prefix_cache import EvictResult, InsertResult, MatchResult, RadixKey
from pymllm.mem_cache.mamba_radix_cache import LRUList, MambaRadixCache, MambaTreeNode
from pymllm.mem_cache.radix_tree import PagedKey

__all__ = [
    "CopiedStates",
    "FreedStates",
    "InheritedStates",
    "OverwrittenStates",
    "StatelessMatches",
    "StatesAsTokens",
    "StolenLocks",
    "TokensAsStates",
    "UntouchedLists",
    "WipedStates",
]


class _Hybrid(Faulty, Mamba):
    SOUND = "mamba"
    CONFIGURATIONS = configured(Mamba.CONFIGURATIONS, track_slots=3)


# -- where a state belongs -----------------------------------------------------------------------------------


class _AsksAncestors(MambaRadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        result = super().insert(key, value, **kwargs)
        if kwargs.get("mamba_value") is not None:
            above = result.last_node.parent
            while above is not self.root_node:
                result.mamba_exist |= above.mamba_value is not None
                above = above.parent
        return result


class InheritedStates(_Hybrid):
    """Tells that a state exists where only an ancestor has one."""

    BREAKS = "M1"
    CACHE = _AsksAncestors


class _ResumesAnywhere(MambaRadixCache):
    def match_prefix(self, key: RadixKey) -> MatchResult:
        usable = super().match_prefix(key)
        path = self._tree.walk(PagedKey.of(key, self.page_size)).path
        last = path[-1] if path else usable.last_node
        return MatchResult(self._tree.gather(path), last, last._depth, usable.mamba_branching_seqlen)


class StatelessMatches(_Hybrid):
    """Matches KV beyond the last state."""

    BREAKS = "M2"
    CACHE = _ResumesAnywhere


class _CopiesUp(MambaRadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        known = {node.id for node in self._tree.nodes()}
        result = super().insert(key, value, **kwargs)
        for node in self._tree.nodes():
            upper = node.parent
            if node.id in known and upper is not None and upper is not self.root_node:
                upper.mamba_value = upper.mamba_value if upper.id in known else node.mamba_value
        return result


class CopiedStates(_Hybrid):
    """Splits a node and leaves its state with both halves."""

    BREAKS = "M3"
    # A state that nobody counts or lists: sizes are wrong, and what touches its node ends with a KeyError.
    ALSO = ("M1", "M4", "R3", "R6")
    CACHE = _CopiesUp


# -- holds ---------------------------------------------------------------------------------------------------


class _ReleasesAncestors(MambaRadixCache):
    def dec_lock_ref(self, node: MambaTreeNode | None, **kwargs: Any) -> None:
        super().dec_lock_ref(node, **kwargs)
        above = None if node is None else node.parent
        while above is not None:
            if above.mamba_lock_ref:
                self._states.release(above)
            above = above.parent


class StolenLocks(_Hybrid):
    """Releases a hold and with it the states that others hold above it."""

    BREAKS = "M4"
    CACHE = _ReleasesAncestors


# -- counting ------------------------------------------------------------------------------------------------


class _CountsTokens(MambaRadixCache):
    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        if type(swa_num_tokens) is not int:
            return super().evict(num_tokens, swa_num_tokens)  # where it is refused
        states = tokens = 0
        for node in reversed(self.mamba_lru):
            if tokens < swa_num_tokens and not node.mamba_lock_ref:
                states, tokens = states + 1, tokens + node._length
        return super().evict(num_tokens, states)


class StatesAsTokens(_Hybrid):
    """Takes the number of states to evict for a number of tokens."""

    BREAKS = "M5"
    ALSO = ("X2",)
    CACHE = _CountsTokens


class _TellsTokens(MambaRadixCache):
    def mamba_evictable_size(self) -> int:
        return sum(node._length for node in self.mamba_lru if not node.mamba_lock_ref)


class TokensAsStates(_Hybrid):
    """Counts the tokens of nodes with a state instead of the states."""

    BREAKS = "M6"
    ALSO = ("M4",)  # the same size after a hold or a release
    CACHE = _TellsTokens


# -- memory --------------------------------------------------------------------------------------------------


class _FreesDuplicates(MambaRadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        state = kwargs.get("mamba_value")
        result = super().insert(key, value, **kwargs)
        if state is not None and result.mamba_exist:
            self.mamba_pool.free_track_slot(int(state))
        return result


class FreedStates(_Hybrid):
    """Frees the track slot of a state that it has already, although it is the caller's."""

    BREAKS = "M7"
    CACHE = _FreesDuplicates


class _NeverTouched(LRUList):
    def touch_path_mru(self, path: Sequence[MambaTreeNode]) -> None:
        pass

    def touch_stretch_mru(self, newest: MambaTreeNode, oldest: MambaTreeNode) -> None:
        pass


class _KeepsItsOrder(MambaRadixCache):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.full_lru = _NeverTouched()


class UntouchedLists(_Hybrid):
    """Leaves a node where it is in the list of all nodes when it is used again."""

    BREAKS = "M8"
    CACHE = _KeepsItsOrder


# -- what is in a state --------------------------------------------------------------------------------------


class _Contents(_Hybrid):
    """Wrong in what stands in track slots, which nobody but an engine writes and reads."""

    BREAKS = "E1"
    NEEDS_ENGINE = True


class _WritesAbove(MambaRadixCache):
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        result = super().insert(key, value, **kwargs)
        above = result.last_node.parent
        if kwargs.get("mamba_value") is not None and above is not None and above.mamba_value is not None:
            self.mamba_pool.copy_states(int(kwargs["mamba_value"]), int(above.mamba_value))
        return result


class OverwrittenStates(_Contents):
    """Copies each new state over that of the node above, too."""

    CACHE = _WritesAbove


class _WipesUnlocked(MambaRadixCache):
    def dec_lock_ref(self, node: MambaTreeNode | None, **kwargs: Any) -> None:
        super().dec_lock_ref(node, **kwargs)
        if node is not None and node.mamba_value is not None and not node.mamba_lock_ref:
            self.mamba_pool.reset_states(int(node.mamba_value))


class WipedStates(_Contents):
    """Zeroes a state when the last hold at its node is released."""

    CACHE = _WipesUnlocked
