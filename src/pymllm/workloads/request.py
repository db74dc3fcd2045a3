"""One request of a workload: lengths, arrival, and the blocks that its prompt is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Prompt tokens are below this number, output tokens at or above it, so that neither is taken for the other.
OUTPUT_TOKEN_BASE = 1 << 31

#: Three centuries: later than that, a float of milliseconds is too coarse to step by less than a hundredth.
ARRIVAL_MS_MAX = 1e13

#: No pool has more slots than int32 can count, so nothing longer could ever run.
LENGTH_MAX = (1 << 31) - 1

# Odd, so that multiplying by it modulo a power of two is a bijection: first output tokens never collide.
_OUTPUT_STRIDE = 2_654_435_761


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt given as block ids, and how many tokens to produce after it; out of bounds is a `ValueError`.

    Equal ids at equal leading positions are a shared prefix, except of different namespaces, which share
    nothing.
    """

    request_id: int  # unique in its workload, 0 .. 2**31 - 1
    arrival_ms: float  # virtual, since the start of the workload, 0 .. ARRIVAL_MS_MAX
    prompt_length: int  # tokens, 1 .. LENGTH_MAX; the last block may be partial
    output_length: int  # tokens to produce, 1 .. LENGTH_MAX
    block_ids: tuple[int, ...]  # each 0 .. 2**31 // block_tokens - 1
    block_tokens: int = 512  # 1 .. LENGTH_MAX
    namespace: str | int | None = None

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
        if min(self.block_ids) < 0 or (max(self.block_ids) + 1) * self.block_tokens > OUTPUT_TOKEN_BASE:
            raise ValueError(
                f"block_ids run from {min(self.block_ids)} to {max(self.block_ids)}; with blocks of "
                f"{self.block_tokens} tokens they must be in 0..{OUTPUT_TOKEN_BASE // self.block_tokens - 1}"
            )

    def prompt(self) -> np.ndarray:
        """Expand the prompt's blocks to uint32: block ``b`` is ``b * block_tokens`` and those after it."""
        starts = np.asarray(self.block_ids, dtype=np.uint32) * np.uint32(self.block_tokens)
        # A block may be much larger than the one prompt that begins it.
        in_block = min(self.block_tokens, self.prompt_length)
        tokens = starts[:, None] + np.arange(in_block, dtype=np.uint32)
        return tokens.reshape(-1)[: self.prompt_length]

    def output(self) -> np.ndarray:
        """Name the tokens that this request produces: uint32, all at or above `OUTPUT_TOKEN_BASE`.

        They depend on ``request_id`` only, and the first one differs between any two requests: as in a
        recorded trace, nobody else's prompt contains an output token.
        """
        steps = np.arange(self.request_id, self.request_id + self.output_length, dtype=np.uint64)
        scattered = steps * np.uint64(_OUTPUT_STRIDE) + (steps - np.uint64(self.request_id)) * np.uint64(97)
        return (scattered % np.uint64(OUTPUT_TOKEN_BASE) + np.uint64(OUTPUT_TOKEN_BASE)).astype(np.uint32)
