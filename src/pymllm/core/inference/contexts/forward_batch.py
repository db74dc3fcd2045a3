"""The plan of a step, as the forward pass reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymllm.core.inference.contexts.live_request import LiveRequest


@dataclass(frozen=True, slots=True, eq=False)
class RequestStep:
    """The work of one request in a step."""

    req: Any  # The request
    row: int  # Its row of the context
    # Its row of the live states, which are those after ``start`` tokens now and must be those after
    # ``start + len(tokens)`` when the forward pass is done
    state_idx: int
    tokens: NDArray[np.uint32]  # Shape ``(n,)``, uint32: what is computed
    start: int  # Position of the first of them
    blocks: tuple[int, ...]  # Its blocks in order
    # Shape ``(n,)``, int64: where the KV of each token goes (block times block size plus offset).
    # Tokens in shared blocks go to the dummy block: their KV is there, and is not this request's to
    # write
    kv_slots: NDArray[np.int64]
    offsets: tuple[int, ...]  # After how many of ``tokens`` a state is to be extracted, ascending
    first_output: int  # Row of the output buffers for the first of those; the others follow
    is_sampled: bool  # Whether a next token is to be chosen: the request decodes, or its prompt ends here


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """All requests of a step, decoding ones first."""

    requests: tuple[RequestStep, ...]  # In the order of their rows

    def __len__(self) -> int:
        return len(self.requests)


#: Advances the live states, writes KV and extracted states, and returns a next token for each request of the
#: batch; where none is sampled the entry is not looked at.
ForwardPass = Callable[[ForwardBatch], Sequence[int | None]]


def plan_step(
    live: LiveRequest,
    state_idx: int,
    block_size: int,
    dummy_block: int,
    offsets: tuple[int, ...] = (),
    first_output: int = 0,
) -> RequestStep:
    """Return the tokens that a request computes in the next step, with the slots of their KV.

    Cost: O(what is computed). Laws: E2, E5.
    """
    start = live.computed + live.skip
    stop = live.computed + (live.chunk or 1)
    positions = np.arange(start, stop)
    first = start // block_size
    blocks = np.array(live.blocks[first : -(-stop // block_size)])[positions // block_size - first]
    blocks[positions < live.matched * block_size] = dummy_block
    return RequestStep(
        req=live.req,
        row=live.row,
        state_idx=state_idx,
        tokens=live.tokens(start, stop),
        start=start,
        blocks=tuple(live.blocks),
        kv_slots=blocks * block_size + positions % block_size,
        offsets=offsets,
        first_output=first_output,
        is_sampled=stop >= live.prompt.size,
    )
