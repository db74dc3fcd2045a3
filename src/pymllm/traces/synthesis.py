"""Synthetic traces that resemble another: fitted to it in one pass, and generated from a seed.

What is kept of the fitted trace is, for each request, how many blocks it shared, how many requests ago the
deepest of them was used and how long that request was, its own lengths, the time since the request before it,
its kind, and whether it went on with a session: a few numbers, and nothing of which block or whose.

A new trace is made of runs of them, drawn at random: each request shares as much, with a request as long ago
as that, and the rest of its prompt is new. So lengths and gaps are distributed as they were, in bursts as
they were, and sharing by depth nearly so. Reuse distances come out shorter, as several requests may go on
from one that only one went on from: how much shorter, is seen in the statistics of both.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from pymllm.errors import UsageError
from pymllm.traces.forest import Path
from pymllm.traces.statistics import KINDS_MAX, OTHER, TraceStatistics
from pymllm.workloads.request import ARRIVAL_MS_MAX, BLOCK_ID_MAX, Request

FITTED_MAX = 1 << 20
"""The greatest number of requests, from the first, that are fitted."""

_RUN = 32  # requests of a run, on average
_HISTORY = 1 << 16  # requests that a new one may share with
_LOOKED_AT = 256


@dataclass(slots=True)
class Fit:
    """Statistics learned from a trace, request by request."""

    statistics: TraceStatistics = field(default_factory=TraceStatistics)
    kinds: list[str | None] = field(default_factory=list)
    has_sessions: bool = False
    shared: array[int] = field(default_factory=lambda: array("i"))
    ago: array[int] = field(default_factory=lambda: array("i"))
    of: array[int] = field(default_factory=lambda: array("i"))  # blocks of the request shared with
    lengths: array[int] = field(default_factory=lambda: array("i"))
    outputs: array[int] = field(default_factory=lambda: array("i"))
    gaps: array[float] = field(default_factory=lambda: array("d"))
    kind: array[int] = field(default_factory=lambda: array("h"))
    goes_on: bytearray = field(default_factory=bytearray)
    _sessions: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.shared)

    def learn(self, request: Request) -> None:
        """Learn from the next request of the trace."""
        found = self.statistics
        before, number = found.now_ms, found.requests
        path = found.add(request)
        if len(self) >= FITTED_MAX:
            return
        donor = found.donor
        session = -1 if request.session is None else request.session
        self.has_sessions |= session >= 0
        self._sessions.append(session)
        self.shared.append(len(path.shared))
        self.ago.append(0 if donor is None else number - donor)
        self.of.append(0 if donor is None else -(-self.lengths[donor] // request.block_tokens))
        self.lengths.append(request.prompt_length)
        self.outputs.append(request.output_length)
        self.gaps.append(found.now_ms - before if number else 0.0)
        self.goes_on.append(donor is not None and session >= 0 and self._sessions[donor] == session)
        kind = request.kind
        if kind not in self.kinds:
            kind = kind if len(self.kinds) < KINDS_MAX else OTHER
            if kind not in self.kinds:
                self.kinds.append(kind)
        self.kind.append(self.kinds.index(kind))


def synthesized(fit: Fit, requests: int, seed: int, found: TraceStatistics) -> Iterator[Request]:
    """Yield so many requests like those of a fitted trace, and collect their statistics."""
    draw = random.Random(seed)
    size = fit.statistics.block_tokens
    history: list[tuple[tuple[int, ...], Path]] = []  # of the latest requests
    sessions = array("i")
    blocks, session_count, now_ms = 0, 0, 0.0
    source = 0
    for number in range(requests):
        source = source + 1 if number and draw.random() > 1 / _RUN else draw.randrange(len(fit))
        source %= len(fit)
        now_ms += fit.gaps[source]
        if now_ms > ARRIVAL_MS_MAX:
            raise UsageError(f"request {number + 1:,} would arrive after {ARRIVAL_MS_MAX:.0f} milliseconds")
        length = fit.lengths[source]
        total = -(-length // size)
        donor = _donor(history, number, fit, source, found)
        kept: tuple[int, ...] = ()
        if donor is not None:
            kept = history[donor - (number - len(history))][0][: min(fit.shared[source], total)]
        fresh = total - len(kept)
        if blocks + fresh > BLOCK_ID_MAX:
            raise UsageError(f"request {number + 1:,} would bring more than {BLOCK_ID_MAX:,} blocks")
        session = None
        if fit.has_sessions:
            session = session_count
            if fit.goes_on[source] and donor is not None:
                session = sessions[donor]
            session_count += session == session_count
            sessions.append(session)
        request = Request(
            number,
            now_ms,
            length,
            fit.outputs[source],
            (*kept, *range(blocks, blocks + fresh)),
            size,
            session=session,
            kind=fit.kinds[fit.kind[source]],
        )
        blocks += fresh
        history.append((request.block_ids, found.add(request)))
        if len(history) >= 2 * _HISTORY:
            del history[:_HISTORY]
        yield request


def _donor(
    history: list[tuple[tuple[int, ...], Path]], number: int, fit: Fit, source: int, found: TraceStatistics
) -> int | None:
    """Return an earlier request whose first blocks a new request will share.

    Its last shared block should have been used about so many requests ago, and it should be about as long as
    the one that was shared with: of those that are near, the one is taken where both are nearest, as ratios.
    Where none is long enough, the longest.
    """
    shared, ago, blocks = fit.shared[source], fit.ago[source], fit.of[source]
    if not shared or not history:
        return None
    oldest = number - len(history)
    wanted = max(oldest, number - ago)
    best, longest, error = None, None, math.inf
    for step in range(_LOOKED_AT):
        if math.log1p(step / ago) > error:
            break
        for at in {wanted - step, wanted + step}:
            if not oldest <= at < number:
                continue
            ids, path = history[at - oldest]
            if len(ids) >= shared:
                since = number - found.last_use(_node(path, shared - 1))
                off = abs(math.log(since / ago)) + abs(math.log(len(ids) / blocks))
                if best is None or off < error:
                    best, error = at, off
            elif longest is None or len(ids) > len(history[longest - oldest][0]):
                longest = at
    return longest if best is None else best


def _node(path: Path, depth: int) -> int:
    """Return the node of a path at a depth counted from 0."""
    known = len(path.shared)
    return path.shared[depth] if depth < known else path.first + depth - known
