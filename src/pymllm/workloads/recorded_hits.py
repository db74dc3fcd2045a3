"""Counts of requests by whether a recorded server hit more or fewer tokens than a replay."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.workloads.request import Request


@dataclass(slots=True)
class RecordedHits:
    """Counts of requests with recorded cached tokens, by comparison with a replay's hits.

    - ``requests``: Those of which they were recorded; the rest counts nothing.
    - ``recorded_tokens``, ``replayed_tokens``: What the server found cached of them, and what the replay did.
    - ``equal``: Requests of which both are equal, in whole blocks of the trace.
    - ``last_block``: Those of which the server had all but the last block of a prompt that the replay found
      whole: a server has to compute something, and computes that again.
    - ``fewer``, ``more``: All others, of which the server found fewer tokens than the replay, or more.
    """

    requests: int = 0
    recorded_tokens: int = 0
    replayed_tokens: int = 0
    equal: int = 0
    last_block: int = 0
    fewer: int = 0
    more: int = 0

    def add(self, request: Request, hit_tokens: int) -> None:
        """Compare a request's recorded cached tokens with the hits of a replay."""
        recorded, size = request.cached_tokens, request.block_tokens
        if recorded is None:
            return
        self.requests += 1
        self.recorded_tokens += recorded
        self.replayed_tokens += hit_tokens
        is_whole = hit_tokens == request.prompt_length
        if recorded // size == hit_tokens // size:
            self.equal += 1
        elif is_whole and recorded // size == (hit_tokens - 1) // size:
            self.last_block += 1
        elif recorded < hit_tokens:
            self.fewer += 1
        else:
            self.more += 1
