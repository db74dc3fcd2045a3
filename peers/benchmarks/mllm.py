"""mllm's caches and allocator, where ``PYMLLM_MLLM`` names a checkout; their interface is ours."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from peers.benchmarks.contender import CheckoutPeer, EvictingPeer, Hit, HybridPeer
from peers.benchmarks.own import OwnHybrid, OwnRadix, OwnSlots
from pymllm_peers.checkouts import Checkout
from pymllm_peers.mllm.package import load_mllm
from pymllm_peers.projects import MLLM


class _OfMllm(CheckoutPeer):
    NAME: ClassVar[str] = "mllm"
    CHECKOUT: ClassVar[Checkout] = MLLM
    FORM = "list"


def _make_pool(size: int, page_size: int) -> Any:
    return load_mllm("memory_pool").TokenToKVPoolAllocator(size, "cpu", page_size, need_sort=False)


class MllmRadixPeer(_OfMllm, OwnRadix):
    """``RadixCache`` over ``TokenToKVPoolAllocator``."""

    def __init__(self, page_size: int, capacity: int) -> None:
        EvictingPeer.__init__(self, page_size, capacity)
        self.pool = _make_pool(capacity, page_size)
        self.cache = load_mllm("radix_cache").RadixCache(page_size, None, self.pool)
        self._key = load_mllm("base_prefix_cache").RadixKey

    def match(self, key: Any) -> Hit:
        found = self.cache.match_prefix(self._key(key))
        return Hit(found.prefix_len, found.indices, found.last_node)

    def insert(self, key: Any, slots: torch.Tensor, before: int) -> int:
        there: int = self.cache.insert(self._key(key), slots).prefix_len
        if there > before:
            self.pool.free(slots[before:there])
        return there


class MllmSlots(_OfMllm, OwnSlots):
    """``TokenToKVPoolAllocator``."""

    def __init__(self, size: int, page_size: int) -> None:
        self.pool = _make_pool(size, page_size)


class MllmHybridPeer(_OfMllm, OwnHybrid):
    """``MambaRadixCache`` over both pools."""

    def __init__(self, tokens: int, states: int) -> None:
        HybridPeer.__init__(self, tokens, states)
        self.kv = _make_pool(tokens, 1)
        self.pool = load_mllm("memory_pool").GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=states)
        self.cache = load_mllm("mamba_radix_cache").MambaRadixCache(1, self.kv, self.pool)
        self._key = load_mllm("base_prefix_cache").RadixKey

    def insert(self, key: Any, slots: torch.Tensor, state: torch.Tensor, before: int) -> int:
        there: int = self.cache.insert(self._key(key), slots, mamba_value=state).prefix_len
        return there

    def match(self, key: Any) -> Hit:
        found = self.cache.match_prefix(self._key(key))
        return Hit(found.prefix_len, found.indices, found.last_node)

    def evict(self, tokens: int, states: int) -> tuple[int, int]:
        """Count the evicted states by those back in the pool: mllm counts the tokens of evicted nodes."""
        free = self.pool._free_track_slots
        before = len(free)
        return self.cache.evict(tokens, states).full_evicted, len(free) - before

    def nothing_is_lost(self) -> bool:
        states = len(self.cache.mamba_lru) + len(self.pool._free_track_slots)
        return self.cache.total_size() + self.kv.available_size() == self.tokens and states == self.states
