"""A request's sequence of tokens while it lives, whatever keeps its KV."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from pymllm.workloads.cache_probe import CacheTimes
from pymllm.workloads.fingerprint import prefix_fingerprints
from pymllm.workloads.request import Request

__all__ = ["LiveSequence"]


@dataclass(slots=True, eq=False)
class LiveSequence(ABC):
    """What every engine knows about a request. Lengths are in tokens, counted from the start of its sequence.

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
    length : int
        Tokens whose KV is there.

    Attributes
    ----------
    request_id : int
        Id of the request.
    """

    request: Request
    place: int
    ceiling_tokens: int = 0
    request_id: int = field(init=False)
    prompt_length: int = field(init=False)
    final_length: int = field(init=False)
    length: int = 0
    was_admitted: bool = False
    times: CacheTimes = field(default_factory=CacheTimes)
    _tokens: np.ndarray | None = None
    _fingerprints: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.request_id = self.request.request_id
        self.prompt_length = self.request.prompt_length
        self.final_length = self.request.prompt_length + self.request.output_length - 1

    @property
    def namespace(self) -> str | int | None:
        """What its content depends on besides its tokens."""
        return self.request.namespace

    @property
    @abstractmethod
    def hit_tokens(self) -> int:
        """Prompt tokens that the cache has served at the last admission."""

    @property
    @abstractmethod
    def stateless_tokens(self) -> int:
        """Tokens beyond them whose KV was cached, but for which there was no state; 0 without states."""

    @property
    def tokens(self) -> np.ndarray:
        """Tokens that get KV, shape ``(final_length,)``, uint32; expanded at first use."""
        if self._tokens is None:
            self._tokens = self._expand()
        return self._tokens

    def _expand(self) -> np.ndarray:
        return np.concatenate([self.request.prompt(), self.request.output()[:-1]])

    @property
    def fingerprints(self) -> np.ndarray:
        """Prefix fingerprints of `tokens`, shape ``(final_length,)``, uint64; computed at first use."""
        if self._fingerprints is None:
            self._fingerprints = prefix_fingerprints(self.tokens, self.namespace)
        return self._fingerprints

    def keep_produced(self) -> None:
        """Make the tokens produced so far a part of the prompt, before a retraction.

        The last of them has no KV yet, so a request in decode has one more token than ``length``.
        """
        self.prompt_length = max(self.prompt_length, self.length + 1)
