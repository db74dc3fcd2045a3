"""Tests of the statistics of a trace, against the slow way of counting them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pymllm.documents.traces import facts_of
from pymllm.traces import statistics
from pymllm.traces.forest import PrefixForest
from pymllm.traces.statistics import TraceStatistics, percentile, tokens_between
from pymllm.workloads.ceiling import HitCeiling
from pymllm.workloads.request import Request
from tests.unit.traces.trace_words import random_trace, renumbered

Places = set[tuple[object, ...]]


def statistics_of(requests: Sequence[Request]) -> TraceStatistics:
    found = TraceStatistics()
    for request in requests:
        found.add(request)
    found.finish()
    return found


def places_of(request: Request) -> list[tuple[object, ...]]:
    """Each token of a prompt: the namespace, the blocks up to its own, and its place in that."""
    size = request.block_tokens
    return [
        (request.namespace, request.block_ids[: at // size + 1], at % size)
        for at in range(request.prompt_length)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_shared_tokens_are_those_of_an_unlimited_cache(seed: int) -> None:
    """To the token, with partial blocks and namespaces."""
    requests = renumbered(random_trace(seed, namespaces=(None, "a")))
    ceiling, found = HitCeiling(), TraceStatistics()
    for request in requests:
        assert found.add(request).hit_tokens == ceiling.add(request)
    assert found.shared_tokens == ceiling.hit_tokens
    assert found.footprint == len({place for request in requests for place in places_of(request)})


@pytest.mark.parametrize("seed", range(20))
def test_reuse_distances_are_what_others_used_since(seed: int) -> None:
    """Tokens of requests after the last use, each once, where nobody's prompt ends within a block."""
    requests = [
        replace(it, prompt_length=len(it.block_ids) * it.block_tokens)
        for it in renumbered(random_trace(seed, namespaces=(None, "a")))
    ]
    found = statistics_of(requests)
    last: dict[tuple[object, ...], int] = {}
    distances: Counter[int] = Counter()
    intervals: Counter[int] = Counter()
    for number, request in enumerate(requests):
        for place in places_of(request):
            if place in last:
                used = sum(by > last[place] for by in last.values())
                distances[0 if not used else (used - 1).bit_length()] += 1
                apart = (request.arrival_ms - requests[last[place]].arrival_ms) / 1000
                intervals[next(power for power in range(-10, 60) if 2.0**power >= apart)] += 1
        last |= dict.fromkeys(places_of(request), number)
    assert found.distances == distances
    assert found.intervals == intervals


@pytest.mark.parametrize("seed", range(10))
def test_working_sets_are_what_was_used_in_a_window(seed: int) -> None:
    """For every width; windows in which nothing came are no windows."""
    requests = renumbered(random_trace(seed))
    begin = requests[0].arrival_ms
    for window in statistics_of(requests).windows:
        used: dict[int, Places] = {}
        for request in requests:
            index = int((request.arrival_ms - begin) // (1000 * window.seconds))
            used.setdefault(index, set()).update(places_of(request))
        sizes = [len(places) for places in used.values()]
        assert (window.count, window.total, window.most) == (len(sizes), sum(sizes), max(sizes))
        assert window.points is not None
        assert [tokens for _, _, tokens, _ in window.points] == sizes
        assert sum(count for _, count, _, _ in window.points) == len(requests)
        assert window.points[-1][3] == len(set().union(*used.values()))


def test_a_width_with_too_many_windows_is_told_in_sum_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of days has coarser points."""
    monkeypatch.setattr(statistics, "POINTS_MAX", 3)
    requests = [Request(n, n * 15_000.0, 4, 1, (n,), 4) for n in range(9)]
    found = statistics_of(requests)
    assert [it.points is None for it in found.windows] == [True, True, False, False, False, False, False]
    assert found.windows[1].count == 9
    facts = facts_of(found)
    assert (facts.point_seconds, [point.tokens for point in facts.points]) == (60.0, [16, 16, 4])
    assert [it.window_seconds for it in facts.working_sets] == [1.0, 10.0, 60.0, 600.0]


def test_depths_and_percentiles_are_counted_exactly() -> None:
    """From how many prompts have which length."""
    lengths = Counter({3: 2, 10: 1})
    assert [tokens_between(lengths, low, high) for low, high in ((0, 2), (2, 8), (8, 99))] == [6, 8, 2]
    assert [percentile(lengths, share) for share in (0.01, 0.66, 0.67, 1.0)] == [3, 3, 10, 10]


@pytest.mark.parametrize("seed", range(5))
def test_facts_add_up(seed: int) -> None:
    """Facts in parts add up to the facts of the whole trace."""
    requests = renumbered(random_trace(seed, namespaces=(None, "a", "b")))
    facts = facts_of(statistics_of(requests))
    assert sum(row.tokens for row in facts.by_depth) == facts.prompt_tokens
    for rows in (facts.by_reuse_distance, facts.by_reuse_interval):
        assert sum(row.tokens for row in rows) == facts.shared_tokens
    assert sum(row.shared_tokens for row in facts.by_depth) == facts.shared_tokens
    assert facts.waiting == sum(bool(it.wait_for) for it in requests)
    assert facts.namespaces == 2
    assert facts.sessions == len({it.session for it in requests} - {None})
    assert facts.turns is not None
    assert sum(row.requests for row in facts.kinds) == sum(it.kind is not None for it in requests)
    assert facts.seconds == (requests[-1].arrival_ms - requests[0].arrival_ms) / 1000


def test_arrivals_vary_as_much_as_their_gaps_do() -> None:
    """0 where they come evenly, and where there are none."""
    even = [Request(n, n * 10.0, 4, 1, (n,), 4) for n in range(9)]
    assert statistics_of(even).gap_variation == pytest.approx(0.0)
    assert statistics_of(even[:1]).gap_variation == 0.0
    burst = [replace(it, arrival_ms=0.0 if it.request_id < 8 else 80.0) for it in even]
    assert statistics_of(burst).gap_variation == pytest.approx(7**0.5)


def test_kinds_beyond_the_most_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file cannot make a table as long as it likes."""
    monkeypatch.setattr(statistics, "KINDS_MAX", 2)
    requests = [Request(n, 0.0, 4, 1, (n,), 4, kind=f"k{n}") for n in range(5)]
    assert {kind: it.requests for kind, it in statistics_of(requests).kinds.items()} == {
        "k0": 1,
        "k1": 1,
        statistics.OTHER: 3,
    }


def test_equal_blocks_behind_different_ones_are_different_nodes() -> None:
    """And behind equal ones the same, whichever came first."""
    forest = PrefixForest()
    rows = [(0, 1, 2), (3, 1, 2), (0, 1, 2), (3, 1, 4), (1, 1, 1), (1, 1, 1)]
    paths = [forest.add(Request(n, 0.0, 12, 1, ids, 4)) for n, ids in enumerate(rows)]
    assert [len(path.shared) for path in paths] == [0, 0, 3, 2, 0, 3]
    assert len(forest) == 3 + 3 + 1 + 3
