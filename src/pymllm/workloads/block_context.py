"""A context that says what a scheduler and a report want to know: evictions, hits, and what is needed."""

from __future__ import annotations

from time import perf_counter_ns

import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.kv_block_allocator import PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.prefix_index import HashPage
from pymllm.workloads.block_request import BlockRequest
from pymllm.workloads.engine_config import EngineConfig

__all__ = ["MeasuredContext", "make_block_context"]

_LAYERS = 2
_CONV_SHAPE, _CONV_DTYPE = (3,), torch.bfloat16
_SSM_SHAPE, _SSM_DTYPE = (2, 2), torch.float32


class MeasuredContext(DynamicInferenceContext):
    """A `DynamicInferenceContext` that counts and times its evictions of blocks.

    Attributes
    ----------
    evict_calls, evicted_blocks, evict_ns : int
        Allocations that had to evict, the blocks that they took from the cache, and how long they took.
    """

    evict_calls = 0
    evicted_blocks = 0
    evict_ns = 0

    def room(self) -> int:
        """Count the blocks that are free or evictable (law E4)."""
        return self._room()

    def blocks_for(self, tokens: int) -> int:
        """Count the blocks that some tokens take."""
        return self._blocks_for(tokens)

    def cached_states(self) -> int:
        """Count the cached states."""
        slots = self.mamba_slot_allocator
        return 0 if slots is None else slots.max_slots - slots.free_count

    def missing_blocks(self, req: BlockRequest) -> int:
        """Count the blocks that the rest of a request's prompt will take."""
        live = self._live_by_id[id(req)]
        return max(0, self._blocks_for(live.prompt.size) - len(live.blocks))

    def scheduled_tokens(self, req: BlockRequest) -> int:
        """Count the tokens of a request's scheduled chunk that are computed; 0 without one."""
        live = self._live_by_id[id(req)]
        return live.chunk - live.skip if live.chunk else 0

    def note_hit(self, req: BlockRequest) -> None:
        """Tell a request that was just added how much of it was cached, and how much is computed again."""
        live = self._live_by_id[id(req)]
        usable = (live.prompt.size - 1) // self.block_size_tokens
        req.cached_tokens = min(live.matched, usable) * self.block_size_tokens
        req.resumed_tokens = live.skip

    def _allocate(self, count: int) -> list[int] | None:
        missing = count - self.kv_block_allocator.pool_avail
        if missing <= 0:
            return super()._allocate(count)
        began = perf_counter_ns()
        blocks = super()._allocate(count)
        self.evict_ns += perf_counter_ns() - began
        if blocks is not None:
            self.evict_calls += 1
            self.evicted_blocks += missing
        return blocks


def make_block_context(config: EngineConfig, hash_page: HashPage | None = None) -> MeasuredContext:
    """Build the context that a configuration describes.

    Parameters
    ----------
    config : EngineConfig
        Of cache ``"blocks"``, already rounded.
    hash_page : callable, optional
        As of `DynamicInferenceContext`: tests give one that collides.

    Returns
    -------
    MeasuredContext
        Empty; its live and cached states are the smallest that have every dimension.
    """
    assert config.track_slots is not None
    assert config.mamba_chunk_size is not None
    assert config.eviction_policy is not None
    assert config.paused_capacity is not None
    return MeasuredContext(
        max_requests=config.max_running,
        num_blocks=config.capacity // config.page_size + 1,
        max_blocks_per_request=-(-config.max_context // config.page_size),
        block_size_tokens=config.page_size,
        mamba_chunk_size=config.mamba_chunk_size,
        mamba_slots=config.track_slots,
        num_mamba_layers=_LAYERS,
        conv_states_shape=_CONV_SHAPE,
        ssm_states_shape=_SSM_SHAPE,
        conv_states_dtype=_CONV_DTYPE,
        ssm_states_dtype=_SSM_DTYPE,
        prefix_caching_eviction_policy=PrefixCachingEvictionPolicy(config.eviction_policy),
        paused_limit=config.paused_capacity // config.page_size,
        hash_page=hash_page,
        device=config.device,
    )
