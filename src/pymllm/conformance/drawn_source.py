"""The choices that a searcher makes for an engine, given before they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage

__all__ = ["DrawnSource"]


class DrawnSource:
    """Answers as it was told beforehand, and sensibly where it was told nothing.

    Attributes
    ----------
    chunk : int
        Most tokens of a prefill chunk; 0 for no limit.
    victim : int
        How many places before the youngest the next victims stand, counted round.
    aborting : Stage or None
        The stage at which the last abort was asked for, until somebody takes note and clears it.
    """

    may_abort = True

    def __init__(self) -> None:
        self.chunk = 0
        self.victim = 0
        self.aborting: Stage | None = None
        self._requests: deque[Request] = deque()
        self._doomed: set[tuple[int, Stage]] = set()

    @property
    def pending(self) -> int:
        """Requests that were pushed and not taken yet."""
        return len(self._requests)

    @property
    def pending_ids(self) -> list[int]:
        """Their ids, in the order of arrival."""
        return [request.request_id for request in self._requests]

    def push(self, request: Request) -> None:
        """Let a request arrive next."""
        self._requests.append(request)

    def doom(self, request_id: int, stage: Stage) -> None:
        """Abort a request when it is next asked about at a stage."""
        self._doomed.add((request_id, stage))

    def calm(self) -> None:
        """Let everything that was asked for finish from now on."""
        self.chunk = self.victim = 0
        self._doomed.clear()

    def next_request(self) -> Request | None:
        """Give the next request that was pushed."""
        return self._requests.popleft() if self._requests else None

    def abort(self, request_id: int, stage: Stage) -> bool:
        """Abort who is doomed here."""
        if (request_id, stage) not in self._doomed:
            return False
        self._doomed.remove((request_id, stage))
        self.aborting = stage
        return True

    def chunk_limit(self, request_id: int, limit: int) -> int:
        """Allow `chunk` tokens."""
        return min(self.chunk or limit, limit)

    def retract_victim(self, candidates: Sequence[int]) -> int:
        """Choose `victim`; the youngest by default."""
        return candidates[-1 - self.victim % len(candidates)]
