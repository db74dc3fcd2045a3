"""The least context that block allocators can be in: everything that they ask for, and nothing that acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["BlockContext"]

_MAX_BLOCKS = 4


@dataclass(eq=False)
class BlockContext:
    """Offers what a context offers to its allocators; the clock and the live states are the caller's.

    Parameters
    ----------
    max_requests : int
        Requests, of which the last never has a live state.
    block_size_tokens : int
        Tokens per block.
    prefix_caching_eviction_policy : object
        Of both allocators.
    device : torch.device
        Where the states are.

    Notes
    -----
    Live states lie in the opposite order of requests, and the last row is nobody's: whoever takes a request
    for its row is found out.
    """

    max_requests: int
    block_size_tokens: int
    prefix_caching_eviction_policy: Any
    device: torch.device
    mamba_chunk_size: int = 2
    prefix_cache_lru_clock: int = 0
    kv_block_allocator: Any = None
    mamba_slot_allocator: Any = None
    mamba_conv_states: torch.Tensor | None = None
    mamba_ssm_states: torch.Tensor | None = None
    paused_request_count: int = 0
    batch_dimensions: Any = field(
        default_factory=lambda: SimpleNamespace(prefill_req_count=0, decode_req_count=0)
    )

    def __post_init__(self) -> None:
        shape = (self.max_requests, _MAX_BLOCKS)
        self.request_to_kv_block_ids = torch.full(shape, -1, dtype=torch.int32)
        self.mamba_metadata = SimpleNamespace(
            request_to_mamba_state_idx=[*range(self.max_requests - 2, -1, -1), -1],
            intermediate_count=0,
            per_request_intermediate_counts=[0] * self.max_requests,
        )

    @property
    def live_rows(self) -> list[int]:
        """Row of each request's live state, and last the row that is nobody's."""
        return [*self.mamba_metadata.request_to_mamba_state_idx[:-1], self.max_requests - 1]
