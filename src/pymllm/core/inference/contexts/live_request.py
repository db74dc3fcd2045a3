"""The state of each admitted request in a context, and the table of requests by row."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.arguments import as_int
from pymllm.mem_cache.tree.token_encoding import decode_tokens, encode_tokens

_NONE: Final = -1


class Region(enum.IntEnum):
    """The region of rows in which a request stands; the rows of a context are in this order."""

    PAUSED = 0
    """The request keeps its blocks and computes nothing."""
    DECODE = 1
    """The request computes one token in each step."""
    PREFILL = 2
    """The request computes a chunk of its prompt in the next step."""
    WAITING = 3
    """The request is between two chunks, and none is scheduled."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request with its row, its blocks, and its progress."""

    req: Any  # What the caller gave; its ``finished_chunk_token_count`` is kept up to date
    prompt: NDArray[np.uint32]  # Shape ``(n,)``, uint32
    blocks: list[int]  # Its blocks in order, the matched ones first; one reference of each is its own
    page_hashes: list[str]  # Digests of its first whole blocks, as far as they are known
    matched: int = 0  # How many of its blocks were found in the cache, and are not its to write
    registered: int = 0  # Leading whole blocks whose registration was tried
    skip: int = 0  # Tokens that a restored state stands for, until the first chunk is done; then 0
    chunk: int = 0  # Tokens of the scheduled chunk, the skipped ones included; 0 for none
    row: int = -1  # Where it stands in the context
    region: Region = Region.WAITING
    computed: int = 0  # Tokens whose KV and state are there
    is_known: bool = True  # Whether all of those are registered, these very blocks
    # Tokens behind the prompt; the KV of the last is not there yet
    generated: list[int] = field(default_factory=list)

    @property
    def is_prefilled(self) -> bool:
        """Tell whether the whole prompt is computed."""
        return self.computed >= self.prompt.size

    def tokens(self, start: int, stop: int) -> NDArray[np.uint32]:
        """Return a range of the prompt and the generated tokens."""
        prompt = self.prompt.size
        if stop <= prompt:
            return self.prompt[start:stop]
        generated = np.array(self.generated[max(start - prompt, 0) : stop - prompt], np.uint32)
        return np.concatenate((self.prompt[start:prompt], generated))

    def cut(self, length: int, whole: int, next_token: int) -> None:
        """Forget all tokens after the first ``length``, with ``whole`` blocks, and append another token."""
        place = length - self.prompt.size
        self.generated[place] = next_token
        del self.generated[place + 1 :], self.page_hashes[whole:]
        self.computed, self.registered = length, min(self.registered, whole)

    def plan_chunk(self, max_tokens: int | None) -> int:
        """Return the length of a chunk that computes at most ``max_tokens``, plus the skipped tokens."""
        left = self.prompt.size - self.computed - self.skip
        return self.skip + (left if max_tokens is None else min(max_tokens, left))


def read_prompt(req: Any) -> NDArray[np.uint32]:
    """Return a copy of a request's prompt as an array.

    Returns ``(n,)`` uint32, read-only.
    """
    refuse_batch(req.prompt_tokens)
    raw, width = encode_tokens(req.prompt_tokens)
    if width != 1:
        raise ValueError(
            f"prompt_tokens has tokens of {width} integers; a context takes plain ones: "
            "give integers, and one prompt of a batch"
        )
    if not raw:
        raise ValueError("prompt_tokens is empty; a request computes at least one token")
    return decode_tokens(raw, 1)


def refuse_batch(prompt_tokens: Any) -> None:
    """Raise an error for a batch of prompts, which could be mistaken for one prompt of wide tokens.

    Cost: O(1). Laws: K1, X1.
    """
    dimensions = getattr(prompt_tokens, "ndim", 1)
    if isinstance(prompt_tokens, list) and prompt_tokens and isinstance(prompt_tokens[0], list):
        dimensions = 2
    if dimensions != 1:
        raise ValueError(
            f"prompt_tokens has {dimensions} dimensions, a prompt has one: give one of a batch "
            "(prompt_tokens[0]), or all of it as one (flatten)"
        )


def check_next_tokens(tokens: Sequence[int | None], is_used: Sequence[bool]) -> list[int]:
    """Check the tokens that the forward pass chose, one for each request of a step."""
    if len(tokens) != len(is_used):
        raise ValueError(f"{len(tokens)} next tokens for {len(is_used)} requests; give one for each")
    chosen = [as_int("next token", t) if used else 0 for t, used in zip(tokens, is_used, strict=True)]  # type: ignore[arg-type]
    for token in chosen:
        if not 0 <= token < 2**32:
            raise ValueError(f"next token {token} is outside 0 .. 2**32 - 1")
    return chosen


@dataclass(slots=True)
class MambaMetadata:
    """The numbers about a step that recurrent layers need."""

    # ``[max_requests]`` int32 on the host: the row of each request in the live states, -1 for none
    request_to_mamba_state_idx: torch.Tensor
    intermediate_count: int = 0  # States that the forward pass extracts in this step
    # The same for each request of the prefill batch
    per_request_intermediate_counts: list[int] = field(default_factory=list)


class RequestRows:
    """Requests in rows, ordered by region, with their blocks and the rows of their states.

    ``max_requests``: rows. ``max_blocks``: blocks that one request may have. ``block_table``:
    ``[max_requests, max_blocks]`` int32 on the host, -1 where there is no block. ``metadata``: its
    ``request_to_mamba_state_idx`` is kept here. A request that changes its region swaps rows with at most one
    other per border it crosses. The row of its live state stays the same until it leaves. Nothing here wants
    memory that grows once the rows are made: a caller may have no way back. Law: X2.
    """

    def __init__(self, max_requests: int, max_blocks: int) -> None:
        self._table = np.empty((max_requests, max_blocks), np.int32)
        self._state_of = np.empty(max_requests, np.int32)
        self._spare = np.empty(max_blocks, np.int32)
        self.block_table = torch.from_numpy(self._table)
        self.metadata = MambaMetadata(torch.from_numpy(self._state_of))
        self.clear()

    def clear(self) -> None:
        """Empty every row."""
        self._table[:] = _NONE
        self._state_of[:] = _NONE
        self.metadata.intermediate_count = 0
        self.metadata.per_request_intermediate_counts = []
        self._requests: list[LiveRequest] = []
        self._counts = [0] * len(Region)
        # An ascending list already is a heap.
        self._free_states = list(range(self._state_of.size))

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(self._requests)

    @property
    def is_full(self) -> bool:
        """Tell whether no row is left."""
        return len(self._requests) == self._state_of.size

    def count(self, region: Region) -> int:
        """Return the number of requests in a region."""
        return self._counts[region]

    def first_row(self, region: Region) -> int:
        """Return the first row of a region, empty or not."""
        return sum(self._counts[:region])

    def of(self, region: Region) -> list[LiveRequest]:
        """Return the requests in a region, by row."""
        first = self.first_row(region)
        return self._requests[first : first + self._counts[region]]

    def open(self, live: LiveRequest) -> None:
        """Give a request the next row, as waiting, and a row of the live states; both must be available."""
        live.row, live.region = len(self._requests), Region.WAITING
        self._requests.append(live)
        self._counts[Region.WAITING] += 1
        self._state_of[live.row] = heapq.heappop(self._free_states)
        self._write(live.row, 0, live.blocks)

    def close(self, live: LiveRequest) -> None:
        """Remove a request and clear its row."""
        self.move(live, Region.WAITING)
        self._swap(live, self._requests[-1])
        self._requests.pop()
        self._counts[Region.WAITING] -= 1
        heapq.heappush(self._free_states, int(self._state_of[live.row]))
        self._state_of[live.row] = _NONE
        self._table[live.row] = _NONE
        live.row = _NONE

    def state_of(self, live: LiveRequest) -> int:
        """Return a request's row in the live states."""
        return int(self._state_of[live.row])

    def extend(self, live: LiveRequest, blocks: Sequence[int]) -> None:
        """Append blocks to a request's row."""
        self._write(live.row, len(live.blocks), blocks)
        live.blocks.extend(blocks)

    def shorten(self, live: LiveRequest, count: int) -> None:
        """Remove the last ``count`` blocks from a request's row."""
        for _ in range(count):
            live.blocks.pop()
            self._table[live.row, len(live.blocks)] = _NONE

    def move(self, live: LiveRequest, region: Region) -> None:
        """Move a request to another region, by exchanges at the borders between the regions."""
        while live.region > region:
            self._swap(live, self._requests[self.first_row(live.region)])
            self._shift(live, -1)
        while live.region < region:
            last = self.first_row(live.region) + self._counts[live.region] - 1
            self._swap(live, self._requests[last])
            self._shift(live, +1)

    def _shift(self, live: LiveRequest, by: int) -> None:
        """Move the border beside a request to its other side."""
        self._counts[live.region] -= 1
        live.region = Region(live.region + by)
        self._counts[live.region] += 1

    def _swap(self, one: LiveRequest, other: LiveRequest) -> None:
        if one is other:
            return
        table, states = self._table, self._state_of
        self._spare[:] = table[one.row]
        table[one.row] = table[other.row]
        table[other.row] = self._spare
        states[one.row], states[other.row] = states.item(other.row), states.item(one.row)
        one.row, other.row = other.row, one.row
        self._requests[one.row], self._requests[other.row] = one, other

    def _write(self, row: int, start: int, blocks: Sequence[int]) -> None:
        """Write block ids to a row one by one, since a list would first be copied to an array."""
        for place, block in enumerate(blocks, start):
            self._table[row, place] = block


class BatchDimensions:
    """The numbers of requests in the next step.

    ``rows``: where they stand.
    """

    def __init__(self, rows: RequestRows) -> None:
        self._rows = rows

    def __repr__(self) -> str:
        """Return the class with its two counts."""
        return (
            f"BatchDimensions(decode_req_count={self.decode_req_count}, "
            f"prefill_req_count={self.prefill_req_count})"
        )

    @property
    def decode_req_count(self) -> int:
        """Return the number of requests that compute one token."""
        return self._rows.count(Region.DECODE)

    @property
    def prefill_req_count(self) -> int:
        """Return the number of requests that compute a chunk of their prompt."""
        return self._rows.count(Region.PREFILL)
