"""Statistics of a trace in one pass: lengths, arrivals, sharing, reuse, and working sets."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pymllm.traces.forest import Path, PrefixForest
from pymllm.workloads.recorded_hits import RecordedHits
from pymllm.workloads.request import Request

WIDTHS = (1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0)
"""The widths in seconds of the windows in which working sets are counted."""

POINTS_MAX = 200
"""The greatest number of windows of one width that are listed singly."""

KINDS_MAX = 1000
OTHER = "(others)"
"""The name under which requests of further kinds are counted."""


@dataclass(slots=True)
class KindCounts:
    """Counts of the requests of one kind."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    shared_tokens: int = 0


@dataclass(slots=True)
class Window:
    """Consecutive windows of one width, with the tokens that requests used in each."""

    seconds: float
    index: int = 0
    first: int = 0  # the first request of the current one
    tokens: int = 0
    requests: int = 0
    count: int = 0  # of those closed
    total: int = 0
    most: int = 0
    points: list[tuple[int, int, int, int]] | None = field(default_factory=list)

    def close(self, footprint: int) -> None:
        """End the current window."""
        if not self.requests:
            return
        self.count += 1
        self.total += self.tokens
        self.most = max(self.most, self.tokens)
        if self.points is not None:
            self.points.append((self.index, self.requests, self.tokens, footprint))
            if len(self.points) > POINTS_MAX:
                self.points = None
        self.tokens = self.requests = 0


class _RecencyTree:
    """Tokens by the last request that used them, with the number used since any request in O(log n)."""

    def __init__(self) -> None:
        self._sums = array("q", [0])
        self._total = 0

    def append(self, tokens: int) -> None:
        """Add the next request, which used so many tokens."""
        place = len(self._sums)
        sums, low = self._sums, place - (place & -place)
        self._total += tokens
        at = place - 1
        while at > low:
            tokens += sums[at]
            at -= at & -at
        sums.append(tokens)

    def take(self, request: int, tokens: int) -> int:
        """Remove reused tokens from a request, and return how many other tokens were used since it."""
        sums = self._sums
        at, since = request + 1, self._total
        while at:
            since -= sums[at]
            at &= at - 1
        at, end = request + 1, len(sums)
        while at < end:
            sums[at] -= tokens
            at += at & -at
        self._total -= tokens
        return since


class TraceStatistics:
    """Statistics of the requests that were added so far.

    A token is *shared* if an earlier prompt began alike up to it: what a cache without a limit serves. The
    *reuse distance* of a shared token is how many other tokens requests used since it was used last, and its
    *reuse interval* how much time went by. The *working set* of a window are the tokens used in it, and the
    *footprint* those of the whole trace, each counted once.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.shared_tokens = 0
        self.waiting = 0
        self.block_tokens = 0
        self.begin_ms = 0.0
        self.now_ms = 0.0
        self.prompts: Counter[int] = Counter()
        self.outputs: Counter[int] = Counter()
        self.shared: Counter[int] = Counter()  # requests by how many tokens they share
        self.distances: Counter[int] = Counter()  # tokens by the power of two that bounds their distance
        self.intervals: Counter[int] = Counter()
        self.turns: Counter[int] = Counter()  # requests by session
        self.kinds: dict[str, KindCounts] = {}
        self.namespaces: set[str | int] = set()
        self.windows = [Window(seconds) for seconds in WIDTHS]
        self.recorded = RecordedHits()
        self.donor: int | None = None  # who used the deepest of the latest request's shared blocks before
        self._gap_squares = 0.0
        self.forest = PrefixForest()
        self._last = array("i")  # node -> the request that used it last
        self._times = array("d")
        self._recency = _RecencyTree()

    @property
    def footprint(self) -> int:
        """The tokens of all prompts, with each prefix counted once."""
        return self.prompt_tokens - self.shared_tokens

    @property
    def seconds(self) -> float:
        """The seconds from the first arrival to the last."""
        return (self.now_ms - self.begin_ms) / 1000

    @property
    def gap_variation(self) -> float:
        """The standard deviation of times between arrivals over their mean; 1 for a Poisson process."""
        gaps = self.requests - 1
        if gaps < 1 or self.now_ms == self.begin_ms:
            return 0.0
        mean = (self.now_ms - self.begin_ms) / gaps
        return math.sqrt(max(0.0, self._gap_squares / gaps - mean * mean)) / mean

    def add(self, request: Request) -> Path:
        """Add a request; return its path in the forest."""
        number, length = self.requests, request.prompt_length
        now = max(self.now_ms, request.arrival_ms)
        if not number:
            self.begin_ms = self.now_ms = now
            self.block_tokens = request.block_tokens
            for window in self.windows:
                window.index = 0
        self._gap_squares += (now - self.now_ms) ** 2
        self.now_ms = now
        path = self.forest.add(request)
        self.donor = self._last[path.shared[-1]] if path.shared else None
        used = list(self._reuse(path, request.block_tokens, now))
        self._look_at_windows(number, now, length - path.hit_tokens, used)
        self.requests += 1
        self.prompt_tokens += length
        self.output_tokens += request.output_length
        self.shared_tokens += path.hit_tokens
        self.recorded.add(request, path.hit_tokens)
        self.waiting += bool(request.wait_for)
        self.prompts[length] += 1
        self.outputs[request.output_length] += 1
        self.shared[path.hit_tokens] += 1
        if request.session is not None:
            self.turns[request.session] += 1
        if request.namespace is not None:
            self.namespaces.add(request.namespace)
        if request.kind is not None:
            self._count_kind(request.kind, request, path.hit_tokens)
        self._times.append(now)
        self._recency.append(length)
        last = self._last
        for node in path.shared:
            last[node] = number
        last.extend(array("i", [number]) * path.added)
        return path

    def last_use(self, node: int) -> int:
        """Return the number of the request that used a node last."""
        return self._last[node]

    def finish(self) -> None:
        """Close the open windows, once, after the last request."""
        for window in self.windows:
            window.close(self.footprint)

    def _reuse(self, path: Path, block_tokens: int, now: float) -> Iterator[tuple[int, int]]:
        """Yield each request that last used shared tokens, with the number of these tokens."""
        last = self._last
        lasts = [last[node] for node in path.shared]
        place, left, above = 0, path.hit_tokens, 0
        while left > 0:
            request = lasts[place]
            # The deeper a node, the longer ago it was used: whoever used it used those above it, too.
            count = lasts.count(request)
            tokens = min(count * block_tokens, left)
            # Those above were used later, too, and were taken away just now.
            since = self._recency.take(request, tokens) + above
            above += tokens
            self.distances[max(0, since - 1).bit_length() if since else 0] += tokens
            self.intervals[_power(now - self._times[request])] += tokens
            yield request, tokens
            place += count
            left -= tokens

    def _look_at_windows(self, number: int, now: float, added: int, used: list[tuple[int, int]]) -> None:
        begin = self.begin_ms
        for window in self.windows:
            index = int((now - begin) // (1000 * window.seconds))
            if index != window.index:
                window.close(self.footprint)
                window.index, window.first = index, number
            window.requests += 1
            window.tokens += added
            first = window.first
            for request, tokens in used:
                if request < first:
                    window.tokens += tokens

    def _count_kind(self, kind: str, request: Request, shared: int) -> None:
        if kind not in self.kinds and len(self.kinds) >= KINDS_MAX:
            kind = OTHER
        counts = self.kinds.setdefault(kind, KindCounts())
        counts.requests += 1
        counts.prompt_tokens += request.prompt_length
        counts.output_tokens += request.output_length
        counts.shared_tokens += shared


def _power(milliseconds: float) -> int:
    """Return the exponent of the least power of two (in seconds) that bounds an interval from above."""
    return max(-10, math.ceil(math.log2(milliseconds / 1000))) if milliseconds > 0 else -10


def percentile(counts: Counter[int], share: float) -> int:
    """Return the least value that a given share of counted values does not exceed."""
    wanted = max(1, math.ceil(share * counts.total()))
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    return 0


def tokens_between(lengths: Counter[int], low: int, high: int) -> int:
    """Return the number of tokens at depths ``low .. high - 1``, in prompts of counted lengths."""
    return sum(count * (min(length, high) - low) for length, count in lengths.items() if length > low)
