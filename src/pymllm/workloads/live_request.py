"""What the engine over a prefix cache knows about a request between its arrival and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.workloads.cold_run import ColdRun
from pymllm.workloads.live_sequence import LiveSequence

__all__ = ["LiveRequest"]


@dataclass(slots=True, eq=False)
class LiveRequest(LiveSequence):
    """A request with its row, its own slots, and its hold in the cache.

    ::

        0            held_length             length            prompt_length     final_length
        | tree's, held | own slots with KV     | still to prefill | to decode      |

    Parameters
    ----------
    request, place, ceiling_tokens
        As of `LiveSequence`.
    """

    row: int = 0
    last_slot: int = 0
    held_length: int = 0
    held_node: Any = None
    lock_token: Any = None
    #: With a window: own SWA halves in ``held_length .. released_length`` have been returned.
    released_length: int = 0
    #: Tokens of the last cache query, and whether all that was computed since was cached already.
    queried_length: int = 0
    is_recomputing: bool = False
    #: With states: tokens whose KV was cached beyond the prefix that could be used; 0 if none.
    branching_length: int = 0
    #: With states: own track slot for the next snapshot; 0 without one.
    track_slot: int = 0
    #: With simulated states: what those of a cold run of its tokens are; computed at first use.
    cold_run: ColdRun | None = None

    @property
    def hit_tokens(self) -> int:
        """Tokens of the prefix that it holds."""
        return self.held_length

    @property
    def stateless_tokens(self) -> int:
        """Tokens whose KV was cached beyond that prefix."""
        return max(0, self.branching_length - self.held_length)

    def key(self, length: int) -> RadixKey:
        """Name the first ``length`` tokens in the request's namespace, without a copy."""
        return RadixKey(self.tokens[:length], self.request.namespace)

    def forget_memory(self) -> None:
        """Own nothing any more; the caller has given everything back."""
        self.length = self.row = self.last_slot = self.held_length = self.released_length = 0
        self.branching_length = 0
        self.held_node = self.lock_token = None
