"""The sources of an engine's choices: a trace, a seeded generator, or a search.

The engine decides nothing that a workload could decide differently. So a replay, a Hypothesis machine and a
soak drive one and the same engine.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable, Sequence
from typing import Protocol

from pymllm.workloads.request import Request


class Stage(enum.Enum):
    """A stage of a request's life at which it may be aborted (law E3)."""

    QUEUED = "queued"
    """The request waits, for the first time or after a retraction, and owns no memory."""
    HELD = "held"
    """The request's cached prefix is held, and no memory is allocated yet."""
    PREFILL = "prefill"
    """The request is between two chunks of its prompt."""
    DECODE = "decode"
    """The request's prompt is computed, and at least one output token is still to come."""


class Source(Protocol):
    """The interface of a source of requests and of choices that the engine leaves open.

    The engine asks in an order that depends on earlier answers only: a deterministic source makes a
    deterministic run.
    """

    @property
    def may_abort(self) -> bool:
        """Whether `abort` can ever return true; otherwise the engine does not call it."""

    def next_request(self) -> Request | None:
        """Return the next request in order of arrival, or ``None`` if there is none (now)."""

    def abort(self, request_id: int, stage: Stage) -> bool:
        """Tell whether to abort a request at this stage."""

    def chunk_limit(self, request_id: int, limit: int) -> int:
        """Return the most tokens for the next prefill chunk, ``1 .. limit``."""

    def retract_victim(self, candidates: Sequence[int]) -> int:
        """Return the request to retract, among live request ids in order of arrival."""


class TraceSource:
    """Requests in order of arrival, read lazily; none is aborted, and the youngest is retracted."""

    may_abort = False

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = iter(requests)

    def next_request(self) -> Request | None:
        """Return the next request of the trace, or ``None`` after the last one."""
        return next(self._requests, None)

    def abort(self, request_id: int, stage: Stage) -> bool:
        """Return false: every request runs to its end."""
        return False

    def chunk_limit(self, request_id: int, limit: int) -> int:
        """Return the whole ``limit``."""
        return limit

    def retract_victim(self, candidates: Sequence[int]) -> int:
        """Return the youngest request, so that the oldest always progresses."""
        return candidates[-1]


class RandomSource:
    """Random requests from a seed that share prefixes, may be aborted, and prefill in odd chunks.

    Prompts diverge at multiples of ``block_tokens``; few distinct ids (``alphabet``) make shared prefixes
    common. Some arrive together, others after ``mean_gap_ms`` on average, and each question of an abort says
    yes by ``abort_chance``.
    """

    def __init__(
        self,
        seed: int,
        *,
        requests: int = 100,
        max_prompt: int = 64,
        max_output: int = 16,
        block_tokens: int = 3,
        alphabet: int = 4,
        namespaces: Sequence[str | int | None] = (None,),
        mean_gap_ms: float = 50.0,
        abort_chance: float = 0.02,
    ) -> None:
        self._random = random.Random(seed)
        self._left = requests
        self._made = 0
        self._now = 0.0
        self._max_prompt = max_prompt
        self._max_output = max_output
        self._block_tokens = block_tokens
        self._alphabet = alphabet
        self._namespaces = tuple(namespaces)
        self._mean_gap_ms = mean_gap_ms
        self._abort_chance = abort_chance
        self._earlier: list[tuple[int, ...]] = []

    @property
    def may_abort(self) -> bool:
        """Whether the chance of an abort is above zero."""
        return self._abort_chance > 0

    def next_request(self) -> Request | None:
        """Return a request that often shares an earlier one's beginning, or ``None`` after the last."""
        if self._made == self._left:
            return None
        draw = self._random
        prompt_length = draw.randint(1, self._max_prompt)
        if draw.random() < 0.5:
            self._now += draw.expovariate(1.0) * 2 * self._mean_gap_ms
        request = Request(
            request_id=self._made,
            arrival_ms=self._now,
            prompt_length=prompt_length,
            output_length=draw.randint(1, self._max_output),
            block_ids=self._block_ids(-(-prompt_length // self._block_tokens)),
            block_tokens=self._block_tokens,
            namespace=draw.choice(self._namespaces),
        )
        self._made += 1
        return request

    def _block_ids(self, count: int) -> tuple[int, ...]:
        draw = self._random
        shared = draw.choice(self._earlier) if self._earlier else ()
        kept = shared[: draw.randint(0, count)]
        ids = kept + tuple(draw.randrange(self._alphabet) for _ in range(count - len(kept)))
        self._earlier.append(ids)
        return ids

    def abort(self, request_id: int, stage: Stage) -> bool:
        """Return true with the given chance, at any stage."""
        return self._random.random() < self._abort_chance

    def chunk_limit(self, request_id: int, limit: int) -> int:
        """Return the whole limit or an odd part of it, with equal chance."""
        return limit if self._random.random() < 0.5 else self._random.randint(1, limit)

    def retract_victim(self, candidates: Sequence[int]) -> int:
        """Return a random request."""
        return self._random.choice(candidates)
