"""Prefix caches with states that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pymllm.adapters.faulty import Faulty, configured
from pymllm.adapters.own_caches import Mamba
from pymllm.mem_cache.base_prefix_cache import EvictResult, InsertResult, MatchResult, RadixKey
from pymllm.mem_cache.mamba_radix_cache import LRUList, MambaRadixCache, MambaTreeNode
from pymllm.mem_cache.radix_tree import PagedKey


class _Hybrid(Faulty, Mamba):
    SOUND = "mamba"
    CONFIGURATIONS = configured(Mamba.CONFIGURATIONS, track_slots=3)


# -- where a state belongs -----------------------------------------------------------------------------------


@_Hybrid.breaking("M1")
class InheritedStates(MambaRadixCache):
    """Tells that a state exists where only an ancestor has one."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        result = super().insert(key, value, **kwargs)
        if kwargs.get("mamba_value") is not None:
            above = result.last_node.parent
            while above is not self.root_node:
                result.mamba_exist |= above.mamba_value is not None
                above = above.parent
        return result


@_Hybrid.breaking("M2")
class StatelessMatches(MambaRadixCache):
    """Matches KV beyond the last state."""

    def match_prefix(self, key: RadixKey) -> MatchResult:
        usable = super().match_prefix(key)
        path = self._tree.walk(PagedKey.of(key, self.page_size)).path
        last = path[-1] if path else usable.last_node
        return MatchResult(self._tree.gather(path), last, last._depth, usable.mamba_branching_seqlen)


# A state that nobody counts or lists: sizes are wrong, and what touches its node ends with a KeyError.
@_Hybrid.breaking("M3", "M1", "M4", "R3", "R6")
class CopiedStates(MambaRadixCache):
    """Splits a node and leaves its state with both halves."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        known = {node.id for node in self._tree.nodes()}
        result = super().insert(key, value, **kwargs)
        for node in self._tree.nodes():
            upper = node.parent
            if node.id in known and upper is not None and upper is not self.root_node:
                upper.mamba_value = upper.mamba_value if upper.id in known else node.mamba_value
        return result


# -- holds ---------------------------------------------------------------------------------------------------


@_Hybrid.breaking("M4")
class StolenLocks(MambaRadixCache):
    """Releases a hold and with it the states that others hold above it."""

    def dec_lock_ref(self, node: MambaTreeNode | None, **kwargs: Any) -> None:
        super().dec_lock_ref(node, **kwargs)
        above = None if node is None else node.parent
        while above is not None:
            if above.mamba_lock_ref:
                self._states.release(above)
            above = above.parent


# -- counting ------------------------------------------------------------------------------------------------


@_Hybrid.breaking("M5", "X2")
class StatesAsTokens(MambaRadixCache):
    """Takes the number of states to evict for a number of tokens."""

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        if type(swa_num_tokens) is not int:
            return super().evict(num_tokens, swa_num_tokens)  # where it is refused
        states = tokens = 0
        for node in reversed(self.mamba_lru):
            if tokens < swa_num_tokens and not node.mamba_lock_ref:
                states, tokens = states + 1, tokens + node._length
        return super().evict(num_tokens, states)


# M4: the same size after a hold or a release
@_Hybrid.breaking("M6", "M4")
class TokensAsStates(MambaRadixCache):
    """Counts the tokens of nodes with a state instead of the states."""

    def mamba_evictable_size(self) -> int:
        return sum(node._length for node in self.mamba_lru if not node.mamba_lock_ref)


# -- memory --------------------------------------------------------------------------------------------------


@_Hybrid.breaking("M7")
class FreedStates(MambaRadixCache):
    """Frees the track slot of a state that it has already, although it is the caller's."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        state = kwargs.get("mamba_value")
        result = super().insert(key, value, **kwargs)
        if state is not None and result.mamba_exist:
            self.mamba_pool.free_track_slot(int(state))
        return result


class _NeverTouched(LRUList):
    def touch_path_mru(self, path: Sequence[MambaTreeNode]) -> None:
        pass

    def touch_stretch_mru(self, newest: MambaTreeNode, oldest: MambaTreeNode) -> None:
        pass


@_Hybrid.breaking("M8")
class UntouchedLists(MambaRadixCache):
    """Leaves a node where it is in the list of all nodes when it is used again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.full_lru = _NeverTouched()


# -- what is in a state --------------------------------------------------------------------------------------


class _Contents(_Hybrid):
    """Wrong in what stands in track slots, which nobody but an engine writes and reads."""

    NEEDS_ENGINE = True


@_Contents.breaking("E1")
class OverwrittenStates(MambaRadixCache):
    """Copies each new state over that of the node above, too."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        result = super().insert(key, value, **kwargs)
        above = result.last_node.parent
        if kwargs.get("mamba_value") is not None and above is not None and above.mamba_value is not None:
            self.mamba_pool.copy_states(int(kwargs["mamba_value"]), int(above.mamba_value))
        return result


@_Contents.breaking("E1")
class WipedStates(MambaRadixCache):
    """Zeroes a state when the last hold at its node is released."""

    def dec_lock_ref(self, node: MambaTreeNode | None, **kwargs: Any) -> None:
        super().dec_lock_ref(node, **kwargs)
        if node is not None and node.mamba_value is not None and not node.mamba_lock_ref:
            self.mamba_pool.reset_states(int(node.mamba_value))
