"""The state of a request from its arrival to its end, and of requests that decode together."""

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
        """The namespace that determines the contents of the request, besides its tokens."""
        return self.request.namespace

    @property
    @abstractmethod
    def hit_tokens(self) -> int:
        """The number of prompt tokens that the cache provided at the last admission."""

    @property
    @abstractmethod
    def stateless_tokens(self) -> int:
        """Cached KV tokens beyond the hit, unusable for lack of a state; 0 without states."""

    @property
    def tokens(self) -> np.ndarray:
        """The tokens that need KV, shape ``(final_length,)``, uint32; computed at first use."""
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
    """A request with its row, its own slots, and its hold on the cache.

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
        """The number of tokens in the held prefix."""
        return self.held_length

    @property
    def stateless_tokens(self) -> int:
        """The number of tokens whose KV was cached beyond the held prefix."""
        return max(0, self.branching_length - self.held_length)

    def key(self, length: int) -> RadixKey:
        """Return the key of the first ``length`` tokens in the request's namespace, without a copy."""
        return RadixKey(self.tokens[:length], self.request.namespace)

    def forget_memory(self) -> None:
        """Forget all slots, row and hold, after the caller has given them back."""
        self.length = self.row = self.last_slot = self.held_length = self.released_length = 0
        self.branching_length = 0
        self.held_node = self.lock_token = None


@dataclass(slots=True, eq=False)
class BlockRequest(LiveSequence):
    """A request with its count of cached tokens; its blocks are in the context.

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
        """The number of prompt tokens that were not computed again."""
        return self.resumed_tokens

    @property
    def stateless_tokens(self) -> int:
        """The number of prompt tokens that were computed again although their KV was cached."""
        return self.cached_tokens - self.resumed_tokens

    @property
    def prompt_tokens(self) -> np.ndarray:
        """The number of tokens computed as prompt, which after a retraction include produced ones."""
        return self.tokens[: self.prompt_length]

    @property
    def is_prefilled(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.length >= self.prompt_length

    def token_after(self, length: int) -> int:
        """Return the token that the model chooses after ``length`` tokens; 0 for the last, unused one."""
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
    """The requests in decode, in order of joining, with their numbers in int64 columns of shape ``(n,)``.

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
        """Remove requests, and write their numbers back to them."""
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
        """Return the batch indices, ascending, of requests whose next token begins a new page."""
        places: np.ndarray = (self.lengths % self._page_size == 0).nonzero()[0]
        return places

    def step(self, new_slots: np.ndarray) -> np.ndarray:
        """Advance every request by one token; return the slots, shape ``(n,)``, int64.

        ``new_slots`` has the first slot of a fresh page for each that is `crossing`; others follow within a
        page (law A3).
        """
        self.last_slots += 1
        self.last_slots[self.crossing()] = new_slots
        self.lengths += 1
        self.remaining -= 1
        return self.last_slots

    def headroom(self, steps: int) -> int:
        """Return the number of tokens, in whole new pages, that the batch will need in ``steps`` steps."""
        wanted = np.minimum(self.remaining, steps)
        beyond = np.maximum(wanted - -self.lengths % self._page_size, 0)
        return int(-(-beyond // self._page_size).sum()) * self._page_size
