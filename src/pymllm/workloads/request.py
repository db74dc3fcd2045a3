"""A request of a workload: its lengths, arrival, prompt blocks, and the requests it waits for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Prompt tokens are below this number, output tokens at or above it, so that neither is taken for the other.
OUTPUT_TOKEN_BASE = 1 << 31

#: Three centuries: later than that, a float of milliseconds is too coarse to step by less than a hundredth.
ARRIVAL_MS_MAX = 1e13

#: Blocks are numbered below this: a trace may have more of them than the tokens of an engine can name.
BLOCK_ID_MAX = (1 << 31) - 1

#: No pool has more slots than int32 can count, so nothing longer could ever run.
LENGTH_MAX = (1 << 31) - 1

# Odd, so that multiplying by it modulo a power of two is a bijection: first output tokens never collide.
_OUTPUT_STRIDE = 2_654_435_761


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt as block ids, and the number of tokens to produce; invalid values raise `ValueError`.

    Equal ids at equal leading positions are a shared prefix, except of different namespaces, which share
    nothing. A request with ``wait_for`` arrives once all of those have ended: ``delay_ms`` after the last of
    them, whatever ``arrival_ms`` was recorded; without a delay at ``arrival_ms``, but not before.
    """

    request_id: int  # unique in its workload, 0 .. 2**31 - 1
    arrival_ms: float  # virtual, since the start of the workload, 0 .. ARRIVAL_MS_MAX
    prompt_length: int  # tokens, 1 .. LENGTH_MAX; the last block may be partial
    output_length: int  # tokens to produce, 1 .. LENGTH_MAX
    block_ids: tuple[int, ...]  # each 0 .. BLOCK_ID_MAX, of which `prompt` can name 2**31 // block_tokens
    block_tokens: int = 512  # 1 .. LENGTH_MAX
    namespace: str | int | None = None
    session: int | None = None  # the conversation that it belongs to, counted from 0
    wait_for: tuple[int, ...] = ()  # ids of requests that come before it in its workload
    delay_ms: float | None = None  # 0 .. ARRIVAL_MS_MAX
    kind: str | None = None  # the class of requests that it is counted with
    cached_tokens: int | None = (
        None  # that the server found in its cache when it was recorded, 0 .. prompt_length
    )

    def __post_init__(self) -> None:
        if not 0 <= self.request_id < OUTPUT_TOKEN_BASE:
            raise ValueError(f"request_id is {self.request_id}; it must be in 0..{OUTPUT_TOKEN_BASE - 1}")
        if not 0 <= self.arrival_ms <= ARRIVAL_MS_MAX:
            raise ValueError(f"arrival_ms is {self.arrival_ms}; it must be in 0..{ARRIVAL_MS_MAX:.0f}")
        for name in ("prompt_length", "output_length", "block_tokens"):
            length = getattr(self, name)
            if not 1 <= length <= LENGTH_MAX:
                raise ValueError(f"{name} is {length}; it must be in 1..{LENGTH_MAX}")
        blocks = -(-self.prompt_length // self.block_tokens)
        if len(self.block_ids) != blocks:
            raise ValueError(
                f"block_ids has {len(self.block_ids)} entries; {self.prompt_length} tokens in blocks of "
                f"{self.block_tokens} take exactly {blocks}"
            )
        if min(self.block_ids) < 0 or max(self.block_ids) > BLOCK_ID_MAX:
            raise ValueError(
                f"block_ids run from {min(self.block_ids)} to {max(self.block_ids)}; they must be in "
                f"0..{BLOCK_ID_MAX}"
            )
        for other in self.wait_for:
            if not 0 <= other < OUTPUT_TOKEN_BASE or other == self.request_id:
                raise ValueError(
                    f"wait_for has {other}; it must be the id of another request, 0..{OUTPUT_TOKEN_BASE - 1}"
                )
        if self.cached_tokens is not None and not 0 <= self.cached_tokens <= self.prompt_length:
            raise ValueError(
                f"cached_tokens is {self.cached_tokens}; it must be in 0..{self.prompt_length}, the prompt"
            )
        if self.delay_ms is not None and not 0 <= self.delay_ms <= ARRIVAL_MS_MAX:
            raise ValueError(f"delay_ms is {self.delay_ms}; it must be in 0..{ARRIVAL_MS_MAX:.0f}")

    @property
    def has_tokens(self) -> bool:
        """Whether the block ids are small enough for `prompt` to give each block tokens of its own."""
        return (max(self.block_ids) + 1) * self.block_tokens <= OUTPUT_TOKEN_BASE

    def prompt(self) -> np.ndarray:
        """Return the prompt's tokens, uint32: block ``b`` has ``b * block_tokens`` and those after it."""
        if not self.has_tokens:
            raise ValueError(
                f"block_ids run to {max(self.block_ids)}; with blocks of {self.block_tokens} tokens an "
                f"engine can name 0..{OUTPUT_TOKEN_BASE // self.block_tokens - 1}"
            )
        starts = np.asarray(self.block_ids, dtype=np.uint32) * np.uint32(self.block_tokens)
        # A block may be much larger than the one prompt that begins it.
        in_block = min(self.block_tokens, self.prompt_length)
        tokens = starts[:, None] + np.arange(in_block, dtype=np.uint32)
        return tokens.reshape(-1)[: self.prompt_length]

    def output(self) -> np.ndarray:
        """Return the tokens that the request produces: uint32, all at or above `OUTPUT_TOKEN_BASE`.

        They depend on ``request_id`` only, and the first one differs between any two requests: as in a
        recorded trace, nobody else's prompt contains an output token.
        """
        steps = np.arange(self.request_id, self.request_id + self.output_length, dtype=np.uint64)
        scattered = steps * np.uint64(_OUTPUT_STRIDE) + (steps - np.uint64(self.request_id)) * np.uint64(97)
        return (scattered % np.uint64(OUTPUT_TOKEN_BASE) + np.uint64(OUTPUT_TOKEN_BASE)).astype(np.uint32)
