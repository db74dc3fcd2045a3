"""What a context knows of a request that it has taken up."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymllm.mem_cache.arguments import as_int
from pymllm.mem_cache.token_encoding import decode_tokens, encode_tokens


class Region(enum.IntEnum):
    """Where in the rows of a context a request stands; rows are in this order."""

    PAUSED = 0
    """Keeps what it has and computes nothing."""
    DECODE = 1
    """Computes one token in each step."""
    PREFILL = 2
    """Computes a chunk of its prompt in the next step."""
    WAITING = 3
    """Is between two chunks and has no next one yet."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request with its row, its blocks, and how far it is."""

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
        """Return some tokens of the prompt and of what was generated."""
        prompt = self.prompt.size
        if stop <= prompt:
            return self.prompt[start:stop]
        generated = np.array(self.generated[max(start - prompt, 0) : stop - prompt], np.uint32)
        return np.concatenate((self.prompt[start:prompt], generated))

    def plan_chunk(self, max_tokens: int | None) -> int:
        """Return the length of a chunk that computes at most ``max_tokens``, what is skipped added."""
        left = self.prompt.size - self.computed - self.skip
        return self.skip + (left if max_tokens is None else min(max_tokens, left))


def read_prompt(req: Any) -> NDArray[np.uint32]:
    """Read the prompt of a request into memory of its own.

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
    """Refuse several prompts, or one in brackets of its own, before it is taken for one of other tokens.

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
    """Check what the forward pass chose, one token for each request of a step."""
    if len(tokens) != len(is_used):
        raise ValueError(f"{len(tokens)} next tokens for {len(is_used)} requests; give one for each")
    chosen = [as_int("next token", t) if used else 0 for t, used in zip(tokens, is_used, strict=True)]  # type: ignore[arg-type]
    for token in chosen:
        if not 0 <= token < 2**32:
            raise ValueError(f"next token {token} is outside 0 .. 2**32 - 1")
    return chosen
