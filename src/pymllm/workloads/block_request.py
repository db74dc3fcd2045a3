"""A live request of a block engine, as its context wants it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymllm.workloads.fingerprint import token_fingerprints
from pymllm.workloads.live_sequence import LiveSequence

__all__ = ["BlockRequest"]


@dataclass(slots=True, eq=False)
class BlockRequest(LiveSequence):
    """A request with how much of it was cached; its blocks are the context's.

    A context has no namespaces. So the tokens of a request that has one are other tokens, by a mask of the
    namespace, and it shares nothing with equal prompts of other namespaces.

    Parameters
    ----------
    request, place, ceiling_tokens
        As of `LiveSequence`.
    finished_chunk_token_count : int
        Kept by the context.
    cached_tokens : int
        Tokens whose KV was cached at the last admission, short of the last token of the prompt.
    resumed_tokens : int
        Those of them that the restored state stands for.
    is_unread : bool
        Its KV and state are to be compared before it computes on.
    """

    finished_chunk_token_count: int = 0
    cached_tokens: int = 0
    resumed_tokens: int = 0
    is_unread: bool = True

    @property
    def namespace(self) -> None:
        """Nothing: the tokens say it."""
        return

    @property
    def hit_tokens(self) -> int:
        """Tokens that were not computed again."""
        return self.resumed_tokens

    @property
    def stateless_tokens(self) -> int:
        """Tokens that were, although their KV was cached."""
        return self.cached_tokens - self.resumed_tokens

    @property
    def prompt_tokens(self) -> np.ndarray:
        """Tokens that a context computes as prompt: after a retraction, what was produced too."""
        return self.tokens[: self.prompt_length]

    @property
    def is_prefilled(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.length >= self.prompt_length

    def token_after(self, length: int) -> int:
        """Return the token that the model chooses after ``length`` tokens; 0 for the last, never read."""
        return int(self.tokens[length]) if length < self.final_length else 0

    def forget_memory(self) -> None:
        """Own nothing any more; the context has released it."""
        self.length = self.finished_chunk_token_count = 0
        self.is_unread = True

    def _expand(self) -> np.ndarray:
        # Zero-argument super() fails in a dataclass with slots.
        tokens = LiveSequence._expand(self)
        name = self.request.namespace
        if name is None:
            return tokens
        mask = token_fingerprints(np.zeros(1, np.uint32), name).astype(np.uint32)
        masked: np.ndarray = tokens ^ mask
        return masked
