"""The state of a request between its arrival and its end, and of requests that decode together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.workloads.cache_probe import CacheTimes
from pymllm.workloads.exact_values import ColdRun, prefix_fingerprints, token_fingerprints
from pymllm.workloads.request import Request


@dataclass(slots=True, eq=False)
class LiveSequence(ABC):
    """The state of a request in any engine. Lengths are in tokens, counted from the start of its sequence.

    The last output token is produced, but its KV is never computed: nothing follows that would read it.
    So ``final_length`` is the prompt and all but one output token. ``length`` tokens have KV. The smaller its
    ``place`` in the order of arrival, the older it is; an unlimited cache would serve ``ceiling_tokens``.
    """

    request: Request
    place: int
    ceiling_tokens: int = 0
    request_id: int = field(init=False)
    prompt_length: int = field(init=False)
    final_length: int = field(init=False)
    length: int = 0
    admissions: int = 0
    times: CacheTimes = field(default_factory=CacheTimes)
    _tokens: np.ndarray | None = None
    _fingerprints: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.request_id = self.request.request_id
        self.prompt_length = self.request.prompt_length
        self.final_length = self.request.prompt_length + self.request.output_length - 1

    @property
    def namespace(self) -> str | int | None:
        """The namespace on which the contents of the request depend, besides its tokens."""
        return self.request.namespace

    @property
    @abstractmethod
    def hit_tokens(self) -> int:
        """Prompt tokens that the cache has served at the last admission."""

    @property
    @abstractmethod
    def stateless_tokens(self) -> int:
        """Cached tokens of KV beyond the hit, useless for want of a state; 0 without states."""

    @property
    def tokens(self) -> np.ndarray:
        """Tokens that need KV, shape ``(final_length,)``, uint32; expanded at first use."""
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


@dataclass(slots=True, eq=False)
class LiveRequest(LiveSequence):
    """A request with its row, its own slots, and its hold in the cache.

    ::

        0            held_length             length            prompt_length     final_length
        | tree's, held | own slots with KV     | still to prefill | to decode      |
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
        """Tokens of the held prefix."""
        return self.held_length

    @property
    def stateless_tokens(self) -> int:
        """Tokens whose KV was cached beyond the held prefix."""
        return max(0, self.branching_length - self.held_length)

    def key(self, length: int) -> RadixKey:
        """Name the first ``length`` tokens in the request's namespace, without a copy."""
        return RadixKey(self.tokens[:length], self.request.namespace)

    def forget_memory(self) -> None:
        """Forget all slots, row and hold, after the caller has given them back."""
        self.length = self.row = self.last_slot = self.held_length = self.released_length = 0
        self.branching_length = 0
        self.held_node = self.lock_token = None


@dataclass(slots=True, eq=False)
class BlockRequest(LiveSequence):
    """A request with its count of cached tokens; the context has its blocks.

    A context has no namespaces. So the tokens of a request that has one are masked by it, and it shares
    nothing with equal prompts of others.
    """

    finished_chunk_token_count: int = 0
    cached_tokens: int = 0  # whose KV was cached at the last admission, short of the prompt's last token
    resumed_tokens: int = 0  # those of them that the restored state stands for
    is_unread: bool = True  # KV and state are to be compared before it computes on

    @property
    def namespace(self) -> None:
        """``None``, since the namespace is already mixed into the tokens."""
        return

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that were not computed again."""
        return self.resumed_tokens

    @property
    def stateless_tokens(self) -> int:
        """Prompt tokens that were computed again although their KV was cached."""
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
        """Forget all blocks, after the context has released them."""
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


class DecodeBatch:
    """Requests in decode, oldest joined first, with their numbers in columns of int64, shape ``(n,)``.

    While a request is in the batch, these are true and not the fields of its `LiveRequest`; `remove` writes
    them back.
    """

    def __init__(self, page_size: int) -> None:
        self.requests: list[LiveRequest] = []
        self._page_size = page_size
        self._set_columns(np.empty((5, 0), dtype=np.int64))

    def _set_columns(self, columns: np.ndarray) -> None:
        self._columns = columns
        self.rows: np.ndarray  # of the table
        self.lengths: np.ndarray  # tokens with KV
        self.last_slots: np.ndarray  # of the last of them
        self.released: np.ndarray  # `LiveRequest.released_length`
        self.remaining: np.ndarray  # decode steps
        self.rows, self.lengths, self.last_slots, self.released, self.remaining = columns

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, live: LiveRequest) -> None:
        """Add a request whose prompt is computed; at least one step remains."""
        remaining = live.final_length - live.length
        column = [[live.row], [live.length], [live.last_slot], [live.released_length], [remaining]]
        self._set_columns(np.concatenate([self._columns, np.array(column, dtype=np.int64)], axis=1))
        self.requests.append(live)

    def remove(self, leaving: Iterable[LiveRequest]) -> None:
        """Take requests out, and write their numbers back to them."""
        self.write_back()
        gone = set(map(id, leaving))
        stays = [at for at, live in enumerate(self.requests) if id(live) not in gone]
        self.requests = [self.requests[at] for at in stays]
        self._set_columns(self._columns[:, stays])

    def write_back(self) -> None:
        """Update the fields of every `LiveRequest` in the batch."""
        for live, column in zip(self.requests, self._columns.T.tolist(), strict=True):
            _, live.length, live.last_slot, live.released_length, _ = column

    def crossing(self) -> np.ndarray:
        """List the places in the batch, ascending, of requests whose next token begins a new page."""
        places: np.ndarray = (self.lengths % self._page_size == 0).nonzero()[0]
        return places

    def step(self, new_slots: np.ndarray) -> np.ndarray:
        """Give every request one more token; return their slots, shape ``(n,)``, int64.

        ``new_slots`` has the first slot of a fresh page for each that is `crossing`; others follow within a
        page (law A3).
        """
        self.last_slots += 1
        self.last_slots[self.crossing()] = new_slots
        self.lengths += 1
        self.remaining -= 1
        return self.last_slots

    def headroom(self, steps: int) -> int:
        """Count the tokens, in whole new pages, that the batch will allocate in the next ``steps`` steps."""
        wanted = np.minimum(self.remaining, steps)
        beyond = np.maximum(wanted - -self.lengths % self._page_size, 0)
        return int(-(-beyond // self._page_size).sum()) * self._page_size
