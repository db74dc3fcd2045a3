"""What the engine knows about a request between its arrival and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.workloads.cache_probe import CacheTimes
from pymllm.workloads.fingerprint import prefix_fingerprints
from pymllm.workloads.request import Request

__all__ = ["LiveRequest"]


@dataclass(slots=True, eq=False)
class LiveRequest:
    """State of one request. Lengths are in tokens, counted from the start of its sequence.

    ::

        0            held_length             length            prompt_length     final_length
        | tree's, held | own slots with KV     | still to prefill | to decode      |

    The last output token is produced, but its KV is never computed: nothing follows that would read it.
    So ``final_length`` is the prompt and all but one output token.

    Parameters
    ----------
    request : Request
        Where it came from.
    place : int
        Place in the order of arrival; smaller is older.
    ceiling_tokens : int
        Prompt tokens that an unlimited cache would serve.
    """

    request: Request
    place: int
    ceiling_tokens: int = 0
    prompt_length: int = field(init=False)
    final_length: int = field(init=False)
    length: int = 0
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
    was_admitted: bool = False
    times: CacheTimes = field(default_factory=CacheTimes)
    _tokens: np.ndarray | None = None
    _fingerprints: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.prompt_length = self.request.prompt_length
        self.final_length = self.request.prompt_length + self.request.output_length - 1

    @property
    def request_id(self) -> int:
        """Id of the request."""
        return self.request.request_id

    @property
    def tokens(self) -> np.ndarray:
        """Tokens that get KV, shape ``(final_length,)``, uint32; expanded at first use."""
        if self._tokens is None:
            self._tokens = np.concatenate([self.request.prompt(), self.request.output()[:-1]])
        return self._tokens

    @property
    def fingerprints(self) -> np.ndarray:
        """Prefix fingerprints of `tokens`, shape ``(final_length,)``, uint64; computed at first use."""
        if self._fingerprints is None:
            self._fingerprints = prefix_fingerprints(self.tokens, self.request.namespace)
        return self._fingerprints

    def key(self, length: int) -> RadixKey:
        """Name the first ``length`` tokens in the request's namespace, without a copy."""
        return RadixKey(self.tokens[:length], self.request.namespace)

    def keep_produced(self) -> None:
        """Make the tokens produced so far a part of the prompt, before a retraction.

        The last of them has no KV yet, so a request in decode has one more token than ``length``.
        """
        self.prompt_length = max(self.prompt_length, self.length + 1)

    def forget_memory(self) -> None:
        """Own nothing any more; the caller has given everything back."""
        self.length = self.row = self.last_slot = self.held_length = self.released_length = 0
        self.branching_length = 0
        self.held_node = self.lock_token = None
