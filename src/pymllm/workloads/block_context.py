"""The interface of a context as a block engine needs it: one of ours, or an adapter's in a search."""

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
        """Allocations that had to evict blocks."""

    @property
    def evicted_blocks(self) -> int:
        """Blocks that these allocations evicted."""

    @property
    def evict_ns(self) -> int:
        """Nanoseconds that these allocations took."""

    @property
    def total_blocks(self) -> int:
        """All blocks except the dummy, whose number equals this count."""

    @property
    def free_blocks(self) -> int:
        """Blocks that are free."""

    @property
    def cached_blocks(self) -> int:
        """Blocks that are evictable."""

    # -- requests and steps, as of `DynamicInferenceContext` ---------------------------------------------

    def add_request(self, req: Any, limit: int | None = None, *, reserve: int | None = None) -> bool:
        """Add a request, if there is room."""

    def schedule_chunk(self, req: Any, limit: int | None = None) -> bool:
        """Give a request its next chunk, if there is room."""

    def begin_step(self) -> ForwardBatch:
        """Fix the work of the next step; `CapacityError` where too few blocks are free."""

    def commit_step(self, next_tokens: Sequence[int | None]) -> None:
        """Store the results of the step."""

    def pause(self, req: Any) -> bool:
        """Set a request aside, unless paused requests would then keep too many blocks."""

    def resume(self, req: Any) -> None:
        """Resume a paused request."""

    def release(self, req: Any) -> None:
        """Release a request and everything that it holds."""

    # -- looks ---------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Count the blocks that are free or evictable (law E4)."""

    def blocks_for(self, tokens: int) -> int:
        """Count the blocks that a number of tokens needs."""

    def cached_states(self) -> int:
        """Count the cached states."""

    def has_state(self, block: int) -> bool:
        """Tell whether a state is cached for a block."""

    def is_registered(self, block: int) -> bool:
        """Tell whether a block can be found by its hash."""

    def blocks_of(self, req: Any) -> int:
        """Count the blocks that a request has."""

    def missing_blocks(self, req: Any) -> int:
        """Count the blocks that the rest of a request's prompt will take."""

    def scheduled_tokens(self, req: Any) -> int:
        """Count the tokens of a request's scheduled chunk that are computed; 0 without one."""

    def note_hit(self, req: Any) -> None:
        """Tell a request just added how many tokens were cached, and how many are computed again."""

    def references_of(self, blocks: np.ndarray) -> np.ndarray:
        """Count the references of some blocks."""

    def referenced_blocks(self) -> list[int]:
        """List the blocks that have references."""

    def walk(self) -> None:
        """Check all trackers from inside, where the context can be looked into."""

    def empty(self) -> None:
        """Empty the cache, in which no request is left (law E3)."""
