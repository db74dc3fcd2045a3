"""The results of ``pymllm trace``, as documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pymllm.documents.replays import RecordedRow
from pymllm.instrument.documents import Document, Row

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from pymllm.traces.statistics import TraceStatistics, Window


class SpreadRow(Row, frozen=True):
    """The spread of some integers."""

    mean: float
    median: int
    p90: int
    p99: int
    most: int


class DepthRow(Row, frozen=True):
    """The prompt tokens in a range of depths, and how many of them earlier prompts shared."""

    from_tokens: int
    to_tokens: int
    tokens: int
    shared_tokens: int


class ReuseRow(Row, frozen=True):
    """The shared tokens whose reuse distance in tokens, or interval in seconds, is within a bound."""

    at_most: float
    tokens: int


class WorkingSetRow(Row, frozen=True):
    """The number of different tokens used in windows of one width, without empty windows."""

    window_seconds: float
    windows: int
    mean_tokens: float
    most_tokens: int


class PointRow(Row, frozen=True):
    """A time window: its requests, its working set, and the trace's footprint up to its end."""

    seconds: float
    requests: int
    tokens: int
    footprint_tokens: int


class KindRow(Row, frozen=True):
    """The requests of one kind in a trace."""

    kind: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int


class TraceFacts(Row, frozen=True, kw_only=True):
    """The statistics of a trace, null where the trace lacks data."""

    block_tokens: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int
    footprint_tokens: int
    blocks: int
    sessions: int | None
    namespaces: int
    waiting: int
    seconds: float
    requests_per_second: float
    gap_variation: float
    prompt: SpreadRow
    output: SpreadRow
    turns: SpreadRow | None
    by_depth: tuple[DepthRow, ...]
    by_reuse_distance: tuple[ReuseRow, ...]
    by_reuse_interval: tuple[ReuseRow, ...]
    working_sets: tuple[WorkingSetRow, ...]
    point_seconds: float
    points: tuple[PointRow, ...]
    kinds: tuple[KindRow, ...]
    recorded: RecordedRow | None = None

    @property
    def shared_rate(self) -> float:
        """The fraction of prompt tokens that are shared."""
        return self.shared_tokens / self.prompt_tokens


class TraceInspectDocument(Document, frozen=True, kw_only=True, tag="pymllm.trace-inspect"):
    """The document that ``pymllm trace inspect --json`` prints. Lengths are tokens, times seconds."""

    name: str
    format: str
    facts: TraceFacts


class ApartRow(Row, frozen=True):
    """The distance of two distributions: the largest difference of cumulative shares, and its bound."""

    what: str
    apart: float
    at_most: float


class TraceSynthesizeDocument(Document, frozen=True, kw_only=True, tag="pymllm.trace-synthesize"):
    """The document that ``pymllm trace synthesize --json`` prints: both traces, and how far apart."""

    name: str
    format: str
    seed: int
    output: str
    fitted_requests: int
    trace: TraceFacts
    synthetic: TraceFacts
    apart: tuple[ApartRow, ...] = ()


def facts_of(found: TraceStatistics) -> TraceFacts:
    """Return the statistics of all requests of a trace as a record."""
    from pymllm.traces.statistics import tokens_between  # this needs NumPy

    depths = []
    low, high = 0, max(found.block_tokens, 64)
    while low < max(found.prompts):
        tokens, shared = (tokens_between(counts, low, high) for counts in (found.prompts, found.shared))
        depths.append(DepthRow(low, high, tokens, shared))
        low, high = high, 2 * high
    finest = next((it for it in found.windows if it.points is not None), found.windows[-1])
    return TraceFacts(
        block_tokens=found.block_tokens,
        requests=found.requests,
        prompt_tokens=found.prompt_tokens,
        output_tokens=found.output_tokens,
        shared_tokens=found.shared_tokens,
        footprint_tokens=found.footprint,
        blocks=len(found.forest),
        sessions=len(found.turns) or None,
        namespaces=len(found.namespaces),
        waiting=found.waiting,
        seconds=found.seconds,
        requests_per_second=(found.requests - 1) / found.seconds if found.seconds else 0.0,
        gap_variation=found.gap_variation,
        prompt=_spread(found.prompts),
        output=_spread(found.outputs),
        turns=_spread(_turns(found)) if found.turns else None,
        by_depth=tuple(depths),
        by_reuse_distance=_reuse(found.distances),
        by_reuse_interval=_reuse(found.intervals),
        working_sets=tuple(_working_set(window) for window in _windows(found)),
        point_seconds=finest.seconds,
        points=tuple(
            PointRow(index * finest.seconds, requests, tokens, footprint)
            for index, requests, tokens, footprint in finest.points or ()
        ),
        kinds=tuple(
            KindRow(kind, it.requests, it.prompt_tokens, it.output_tokens, it.shared_tokens)
            for kind, it in sorted(found.kinds.items(), key=lambda pair: -pair[1].requests)
        ),
        recorded=(
            msgspec.convert(found.recorded, RecordedRow, from_attributes=True)
            if found.recorded.requests
            else None
        ),
    )


def differences_of(trace: TraceStatistics, synthetic: TraceStatistics) -> tuple[ApartRow, ...]:
    """Return how far a synthetic trace is from its original, in reuse and in lengths of sessions."""
    found = [
        _apart("reuse distance of shared tokens", trace.distances, synthetic.distances, lambda it: 2.0**it),
        _apart("reuse interval of shared tokens", trace.intervals, synthetic.intervals, lambda it: 2.0**it),
    ]
    if trace.turns and synthetic.turns:
        found.append(_apart("requests of a session", _turns(trace), _turns(synthetic), float))
    return tuple(it for it in found if it is not None)


def _apart(
    what: str, one: Counter[int], other: Counter[int], bound: Callable[[int], float]
) -> ApartRow | None:
    """Return the largest difference of two cumulative distributions, and the value where it is."""
    if not one or not other:
        return None
    shares, within = [one.total(), other.total()], [0, 0]
    best, where = 0.0, min(one.keys() | other.keys())
    for value in sorted(one.keys() | other.keys()):
        within = [within[0] + one[value], within[1] + other[value]]
        apart = abs(within[0] / shares[0] - within[1] / shares[1])
        if apart > best:
            best, where = apart, value
    return ApartRow(what, best, bound(where))


def _spread(counts: Counter[int]) -> SpreadRow:
    from pymllm.traces.statistics import percentile

    mean = sum(value * count for value, count in counts.items()) / counts.total()
    median, p90, p99 = (percentile(counts, share) for share in (0.5, 0.9, 0.99))
    return SpreadRow(mean, median, p90, p99, max(counts))


def _turns(found: TraceStatistics) -> Counter[int]:
    return type(found.turns)(found.turns.values())


def _reuse(counts: Counter[int]) -> tuple[ReuseRow, ...]:
    return tuple(ReuseRow(2.0**power, tokens) for power, tokens in sorted(counts.items()))


def _windows(found: TraceStatistics) -> list[Window]:
    """Return the windows up to the first that contains the whole trace."""
    wide = next((place for place, it in enumerate(found.windows) if it.seconds > found.seconds), None)
    return found.windows if wide is None else found.windows[: wide + 1]


def _working_set(window: Window) -> WorkingSetRow:
    return WorkingSetRow(window.seconds, window.count, window.total / window.count, window.most)
