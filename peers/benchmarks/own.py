"""Ours: ownership checks off, as the targets have it, and pools that do not sort, as the peers' do not."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from peers.benchmarks.contender import EvictingPeer, Hit, HybridPeer, SlotPeer, StateCopyPeer, StateSlotPeer
from pymllm.core.inference.contexts import KVBlockAllocator, MambaSlotAllocator
from pymllm.instrument.peer_comparison import OURS
from pymllm.mem_cache import GDNPool, MambaRadixCache, RadixCache, RadixKey, TokenToKVPoolAllocator


class OwnRadix(EvictingPeer):
    """`RadixCache` over `TokenToKVPoolAllocator`."""

    NAME: ClassVar[str] = OURS
    PACKAGE: ClassVar[str] = "pymllm"
    FORM = "int64"

    def __init__(self, page_size: int, capacity: int) -> None:
        super().__init__(page_size, capacity)
        self.pool = TokenToKVPoolAllocator(capacity, "cpu", page_size, need_sort=False, check_ownership=False)
        self.cache = RadixCache(page_size, token_to_kv_pool_allocator=self.pool)

    def match(self, key: Any) -> Hit:
        found = self.cache.match_prefix(RadixKey(key))
        return Hit(found.prefix_len, found.indices, found.last_node)

    def insert(self, key: Any, slots: torch.Tensor, before: int) -> int:
        there = self.cache.insert(RadixKey(key), slots).prefix_len
        if there > before:
            self.pool.free(slots[before:there])
        return there

    def evict(self, tokens: int) -> int:
        return self.cache.evict(tokens).full_evicted

    def hold(self, hit: Hit) -> Any:
        return self.cache.inc_lock_ref(hit.node)

    def release(self, hit: Hit, receipt: Any) -> None:
        self.cache.dec_lock_ref(hit.node, receipt)

    def alloc(self, tokens: int) -> torch.Tensor:
        slots = self.pool.alloc(tokens)
        assert slots is not None
        return slots

    def free(self, slots: torch.Tensor) -> None:
        self.pool.free(slots)

    def available(self) -> int:
        return self.pool.available_size()

    def cached(self) -> int:
        return self.cache.total_size()


class OwnSlots(SlotPeer):
    """`TokenToKVPoolAllocator`."""

    NAME: ClassVar[str] = OURS
    PACKAGE: ClassVar[str] = "pymllm"
    HANDS_OUT = "slots"

    def __init__(self, size: int, page_size: int) -> None:
        self.pool = TokenToKVPoolAllocator(size, "cpu", page_size, need_sort=False, check_ownership=False)

    def alloc(self, count: int) -> Any:
        return self.pool.alloc(count)

    def free(self, piece: Any) -> None:
        self.pool.free(piece)

    def split(self, everything: Any, piece: int, order: list[int]) -> list[Any]:
        return list(everything.reshape(-1, piece)[order].unbind())

    def numbers(self, piece: Any) -> Any:
        return piece.numpy()

    def available(self) -> int:
        return self.pool.available_size()


class OwnHybrid(HybridPeer):
    """`MambaRadixCache` over both pools."""

    NAME: ClassVar[str] = OURS
    PACKAGE: ClassVar[str] = "pymllm"
    FORM = "int64"

    def __init__(self, tokens: int, states: int) -> None:
        super().__init__(tokens, states)
        self.kv = TokenToKVPoolAllocator(tokens, "cpu", 1, need_sort=False, check_ownership=False)
        self.pool = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=states)
        self.cache = MambaRadixCache(1, self.kv, self.pool)

    def alloc(self, tokens: int) -> torch.Tensor:
        slots = self.kv.alloc(tokens)
        assert slots is not None
        return slots

    def alloc_state(self) -> torch.Tensor:
        return torch.full((1,), self.pool.alloc_track_slot())  # `torch.tensor` of a list takes 1.6 us more

    def insert(self, key: Any, slots: torch.Tensor, state: torch.Tensor, before: int) -> int:
        return self.cache.insert(RadixKey(key), slots, mamba_value=state).prefix_len

    def match(self, key: Any) -> Hit:
        found = self.cache.match_prefix(RadixKey(key))
        return Hit(found.prefix_len, found.indices, found.last_node)

    def evict(self, tokens: int, states: int) -> tuple[int, int]:
        gone = self.cache.evict(tokens, states)
        return gone.full_evicted, gone.mamba_evicted

    def nothing_is_lost(self) -> bool:
        cache = self.cache
        states = cache.mamba_evictable_size() + cache.mamba_protected_size()
        return (
            cache.total_size() + self.kv.available_size() == self.tokens
            and states + self.pool.available_track_slots() == self.states
        )


class OwnStateSlots(StateSlotPeer):
    """`MambaSlotAllocator` beside a `KVBlockAllocator`."""

    NAME: ClassVar[str] = OURS
    PACKAGE: ClassVar[str] = "pymllm"

    def __init__(self, blocks: int, slots: int, order: list[int]) -> None:
        context = SimpleNamespace(
            prefix_cache_lru_clock=0, prefix_caching_eviction_policy="lru", max_requests=8
        )
        allocator = context.kv_block_allocator = KVBlockAllocator(context, blocks + 1)
        ids = allocator.allocate_memory_blocks(blocks)
        assert ids is not None
        allocator.register_kv_block_hashes(ids, ids + 1, torch.zeros_like(ids))
        for clock, block in enumerate(order):
            context.prefix_cache_lru_clock = clock
            allocator.update_timestamps([block])
        allocator.release_memory_blocks(ids)
        self.slots = MambaSlotAllocator(context, slots, 1, (1,), (1,), torch.float32, torch.float32)

    def allocate(self, blocks: list[int]) -> None:
        self.slots.allocate_slots_batch(blocks)

    def invalidate(self, blocks: list[int]) -> None:
        self.slots._invalidate_blocks_batch(blocks)

    def free_count(self) -> int:
        return self.slots.free_count

    def without_slot(self) -> np.ndarray[Any, Any]:
        return np.flatnonzero(self.slots.block_to_slot.numpy()[:-1] < 0)


class OwnStateCopies(StateCopyPeer):
    """`MambaSlotAllocator`."""

    NAME: ClassVar[str] = OURS
    PACKAGE: ClassVar[str] = "pymllm"

    def make_context(self, rows: int) -> Any:
        context = SimpleNamespace(max_requests=rows)
        context.kv_block_allocator = KVBlockAllocator(context, 2)
        return context

    def allocator(self) -> type[Any]:
        return MambaSlotAllocator


def shuffled(count: int, seed: int) -> list[int]:
    """Return the numbers below ``count`` in a random order."""
    return random.Random(seed).sample(range(count), count)
