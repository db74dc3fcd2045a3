"""The interface of a context that a block engine drives: this package's, or an adapter's in a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pymllm.core.inference.contexts.forward_batch import ForwardBatch, RequestStep

__all__ = ["EngineContext", "ForwardBatch", "RequestStep"]


class EngineContext(Protocol):
    """The interface of a `DynamicInferenceContext`, with the counters that an engine reads."""

    @property
    def block_size_tokens(self) -> int:
        """Tokens per block."""

    @property
    def requests(self) -> Sequence[Any]:
        """The requests in the context."""

    @property
    def evict_calls(self) -> int:
        """The number of allocations that had to evict blocks."""

    @property
    def evicted_blocks(self) -> int:
        """The number of blocks that these allocations evicted."""

    @property
    def evict_ns(self) -> int:
        """The nanoseconds that these allocations took."""

    @property
    def total_blocks(self) -> int:
        """The number of blocks without the dummy, whose id is this number."""

    @property
    def free_blocks(self) -> int:
        """The number of free blocks."""

    @property
    def cached_blocks(self) -> int:
        """The number of evictable blocks."""

    # -- requests and steps, as of `DynamicInferenceContext` ---------------------------------------------

    def add_request(self, req: Any, limit: int | None = None, *, reserve: int | None = None) -> bool:
        """Add a request if there is room for it."""

    def schedule_chunk(self, req: Any, limit: int | None = None) -> bool:
        """Give a request its next chunk if there is room for it."""

    def begin_step(self) -> ForwardBatch:
        """Plan the next step; raise `CapacityError` if too few blocks are free."""

    def commit_step(self, next_tokens: Sequence[int | None]) -> None:
        """Store the results of the step."""

    def pause(self, req: Any) -> bool:
        """Pause a request, unless paused requests would then keep too many blocks."""

    def resume(self, req: Any) -> None:
        """Resume a paused request."""

    def release(self, req: Any) -> None:
        """Release a request and everything that it holds."""

    # -- looks ---------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Return the number of blocks that are free or evictable (law E4)."""

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for a number of tokens."""

    def cached_states(self) -> int:
        """Return the number of cached states."""

    def has_state(self, block: int) -> bool:
        """Tell whether a state is cached for a block."""

    def is_registered(self, block: int) -> bool:
        """Tell whether a block can be found by its hash."""

    def blocks_of(self, req: Any) -> int:
        """Return the number of blocks of a request."""

    def missing_blocks(self, req: Any) -> int:
        """Return the number of blocks that the remaining prompt of a request needs."""

    def scheduled_tokens(self, req: Any) -> int:
        """Return the number of tokens that a request's scheduled chunk computes; 0 without a chunk."""

    def note_hit(self, req: Any) -> None:
        """Report to a new request how many of its tokens are cached, and how many of these are recomputed."""

    def references_of(self, blocks: np.ndarray) -> np.ndarray:
        """Return the number of references to each of some blocks."""

    def referenced_blocks(self) -> list[int]:
        """Return the blocks that have references."""

    def walk(self) -> None:
        """Check all trackers of the context, if its internal state is accessible."""

    def empty(self) -> None:
        """Empty the cache of a context without requests (law E3)."""
