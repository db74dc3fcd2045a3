"""Curves in one pass against serial replays of the real cache at each capacity, and their refusals."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.replay import curve as curves
from pymllm.replay.curve import LruCurve
from pymllm.replay.keeping import KEEPINGS, Keeping
from pymllm.replay.serial import SerialConfig, replay_serially
from pymllm.replay.state_curve import StateCurve, StatePoint
from pymllm.traces.trace_file import read_trace
from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import WORKLOADS, make_requests

COUNTS = (
    *("requests", "skipped", "prompt_tokens", "hit_tokens", "ceiling_tokens", "token_hit_rate"),
    *("evict_calls", "evicted_tokens"),
)
STATE_COUNTS = (
    *("requests", "skipped", "prompt_tokens", "hit_tokens"),
    *("evict_calls", "evicted_tokens", "peak_states"),
)
TRACES = Path(os.environ.get("PYMLLM_TRACES", ""))


def curve_of(
    requests: Sequence[Request], capacities: Sequence[int], page_size: int, *, unlimited: bool = True
) -> LruCurve:
    """Read requests with caches of some capacities."""
    curve = LruCurve(capacities, page_size, requests[0].block_tokens, unlimited=unlimited)
    for request in requests:
        curve.add(request)
    return curve


def compare(
    requests: Sequence[Request], capacities: Sequence[int], page_size: int, *, unlimited: bool = True
) -> int:
    """Hold every count at every capacity against a replay, and return how many capacities there were."""
    points = curve_of(requests, capacities, page_size, unlimited=unlimited).points()
    for point in points:
        report = replay_serially(requests, SerialConfig(page_size=page_size, capacity=point.capacity))
        for count in COUNTS:
            expected = getattr(report, count)
            if count == "ceiling_tokens" and not unlimited:
                expected = None
            assert getattr(point, count) == expected, (count, point.capacity, page_size)
    return len(points)


def prompt(*blocks: int, cut: int = 0, namespace: str | int | None = None, tokens: int = 1) -> Request:
    """Make a request of some blocks, the last one cut short."""
    return Request(0, 0.0, len(blocks) * tokens - cut, 1, blocks, tokens, namespace)


def random_case(seed: int) -> tuple[list[Request], list[int], int]:
    """Draw a small trace of branching prompts, capacities from too small to too large, and a page size."""
    draw = random.Random(seed)
    block_tokens, page_size = draw.choice((1, 2, 3, 4, 5, 8)), draw.choice((1, 1, 2, 3, 4, 7))
    prompts: list[tuple[int, ...]] = [()]
    requests = []
    for number in range(draw.randint(5, 60)):
        parent = draw.choice(prompts)
        ids = list(parent[: draw.randint(0, len(parent))])
        fresh = draw.randint(0 if ids else 1, draw.choice((2, 4, 9)))
        ids += [draw.choice((draw.randint(0, 3), 10 * number + place + 4)) for place in range(fresh)]
        prompts.append(tuple(ids))
        length = len(ids) * block_tokens - draw.choice((0, 0, draw.randint(0, block_tokens - 1)))
        namespace = draw.choice((None, None, None, "1", 1))
        requests.append(Request(number, 0.0, length, 1, tuple(ids), block_tokens, namespace))
    longest = max(request.prompt_length for request in requests)
    capacities = [
        draw.randint(page_size, max(page_size, longest * draw.choice((2, 2, 3, 5, 8))))
        for _ in range(draw.randint(1, 8))
    ]
    return requests, capacities, page_size


def few_or_a_thousand(few: int) -> list[Any]:
    """Return parameters of seeds for random traces: some, one at a time, and with ``-m slow`` a thousand."""
    hundreds = [range(begin, begin + 100) for begin in range(1000, 2000, 100)]
    slow = [pytest.param(seeds, marks=pytest.mark.slow, id=f"from-{seeds.start}") for seeds in hundreds]
    return [*(pytest.param([seed], id=str(seed)) for seed in range(few)), *slow]


@pytest.mark.parametrize("seeds", few_or_a_thousand(60))
def test_a_curve_is_what_replays_count(seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """On small random traces, whether what no cache has is forgotten or not, and how often."""
    for seed in seeds:
        monkeypatch.setattr(curves, "_SWEEP_EVERY", (1, 3, 1024)[seed % 3])
        requests, capacities, page_size = random_case(seed)
        for unlimited in (True, False):
            assert compare(requests, capacities, page_size, unlimited=unlimited) >= 1


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=14)


@given(
    prompts=PROMPTS,
    cuts=st.lists(st.integers(0, 2), min_size=14, max_size=14),
    block_tokens=st.integers(1, 3),
    page_size=st.integers(1, 4),
    capacities=st.lists(st.integers(4, 40), min_size=1, max_size=4),
)
def test_a_curve_is_what_replays_count_whatever_is_asked(
    prompts: list[list[int]], cuts: list[int], block_tokens: int, page_size: int, capacities: list[int]
) -> None:
    """Few ids, so that prompts share, split and repeat each other; many are above half of a capacity."""
    requests = [
        prompt(*ids, cut=min(cut, block_tokens - 1), tokens=block_tokens)
        for ids, cut in zip(prompts, cuts, strict=False)
    ]
    assert compare(requests, capacities, page_size) >= 1


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_curve_of_a_named_workload_is_what_replays_count(name: str) -> None:
    """From a capacity that leaves requests out to one that evicts nothing."""
    requests = make_requests(name, 60)
    assert compare(requests, [1024, 4096, 8192, 50_000, 1_000_000], 16) == 5


@pytest.mark.skipif(not TRACES.is_absolute(), reason="PYMLLM_TRACES names no folder with traces")
@pytest.mark.parametrize("name", ["conversation_trace.jsonl", "synthetic_trace.jsonl"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_curve_of_a_recorded_head_is_what_replays_count(name: str, page_size: int) -> None:
    """At capacities that evict, leave out, and hold all."""
    if not (TRACES / name).is_file():
        pytest.skip(f"PYMLLM_TRACES has no {name}")
    requests = read_trace(TRACES / name, requests=300)
    assert compare(requests, [20_000, 100_000, 300_000, 1_000_000, 3_000_000], page_size) == 5


@pytest.mark.parametrize("seed", range(20))
def test_a_larger_cache_hits_no_less(seed: int) -> None:
    """Where both read every prompt: its nodes end wherever the smaller one's do, so it evicts no more."""
    requests, _, page_size = random_case(seed)
    low = 2 * max(request.prompt_length for request in requests) + 2 * page_size
    points = curve_of(requests, range(low, low + 12 * page_size, page_size), page_size).points()
    hits = [point.hit_tokens for point in points]
    assert hits == sorted(hits)
    assert len(hits) == 12


def test_requests_with_a_label_are_counted_apart() -> None:
    """Their counts add up; an eviction is of no one request."""
    requests, capacities, page_size = random_case(7)
    curve = LruCurve(capacities, page_size, requests[0].block_tokens)
    for number, request in enumerate(requests):
        curve.add(request, ("odd", "even")[number % 2])
    assert curve.labels == ["even", "odd"]
    for whole, odd, even in zip(curve.points(), curve.points("odd"), curve.points("even"), strict=True):
        for count in ("requests", "skipped", "prompt_tokens", "hit_tokens", "ceiling_tokens"):
            assert getattr(whole, count) == getattr(odd, count) + getattr(even, count)
        assert odd.evicted_tokens is even.evict_calls is None


def test_what_no_cache_has_is_forgotten() -> None:
    """Memory holds what the largest cache does, however long the trace is; with a ceiling all of it."""
    segments = []
    for unlimited in (False, True):
        curve = LruCurve([64, 128], 1, 4, unlimited=unlimited)
        for number in range(5000):
            curve.add(prompt(0, 4 * number + 1, 4 * number + 2, tokens=4))
        (root,) = curve._roots.values()
        assert root.children is not None
        (shared,) = root.children.values()
        segments.append(len(shared.children or {}))
    assert segments[0] < 1200
    assert segments[1] == 5000


def test_capacities_are_whole_pages_in_order() -> None:
    """Equal ones count once."""
    assert LruCurve([100, 33, 96, 47], 16).capacities == [32, 96]
    assert [point.capacity for point in LruCurve([100, 33], 16).points()] == [32, 96]


@pytest.mark.parametrize(
    ("capacities", "page_size", "block_tokens", "said"),
    [
        ([], 1, 512, "give at least one capacity, and each of at least a page of 1 tokens"),
        ([100, 15], 16, 512, "give at least one capacity, and each of at least a page of 16 tokens"),
        ([100], 0, 512, "page_size and block_tokens must be at least 1, got 0 and 512"),
        ([100], 1, 0, "page_size and block_tokens must be at least 1, got 1 and 0"),
    ],
)
def test_sizes_that_are_none_are_refused(
    capacities: list[int], page_size: int, block_tokens: int, said: str
) -> None:
    """Before anything is read."""
    with pytest.raises(ValueError, match=said):
        LruCurve(capacities, page_size, block_tokens)


def test_blocks_of_another_length_are_refused() -> None:
    """Their ids would name other tokens."""
    with pytest.raises(ValueError, match="request 0 is in blocks of 2 tokens; this curve is of blocks of 4"):
        LruCurve([100], 1, 4).add(prompt(1, tokens=2))


def state_points_of(
    requests: Sequence[Request], capacities: Sequence[int], page_size: int, keeping: Keeping
) -> list[StatePoint]:
    """Read requests with caches of some capacities."""
    curve = StateCurve(capacities, page_size, requests[0].block_tokens, keeping=keeping)
    for request in requests:
        curve.add(request)
    return curve.state_points()


def compare_states(
    requests: Sequence[Request], capacities: Sequence[int], page_size: int, keeping: Keeping
) -> int:
    """Hold every count at every capacity against a replay, and return how many capacities there were."""
    points = state_points_of(requests, capacities, page_size, keeping)
    for point in points:
        config = SerialConfig("mamba", page_size, point.capacity, keeping=keeping)
        report = replay_serially(requests, config)
        for count in STATE_COUNTS:
            assert getattr(point, count) == getattr(report, count), (count, point.capacity, page_size)
    return len(points)


@pytest.mark.parametrize("keeping", KEEPINGS)
@pytest.mark.parametrize("seeds", few_or_a_thousand(20))
def test_a_curve_of_states_is_what_replays_count(
    seeds: Sequence[int], keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On small random traces, however often what no cache has is forgotten."""
    for seed in seeds:
        monkeypatch.setattr(curves, "_SWEEP_EVERY", (1, 3, 1024)[seed % 3])
        assert compare_states(*random_case(seed), keeping) >= 1


@pytest.mark.parametrize("keeping", KEEPINGS)
def test_a_curve_of_states_of_a_named_workload_is_what_replays_count(keeping: Keeping) -> None:
    """At capacities that evict, leave out, and hold all."""
    assert compare_states(make_requests("agent", 40), [4096, 20_000, 1_000_000], 64, keeping) == 3


@pytest.mark.parametrize(
    ("keeping", "hits", "states"), [("every", 28, 5), ("last", 12, 3), ("branch", 20, 4)]
)
def test_a_state_is_where_its_kind_says(keeping: Keeping, hits: int, states: int) -> None:
    """Prompts of three blocks of 4 tokens, one a page, that share two of them; the last one comes again.

    Of ``every`` the second and third hit 8 tokens, the fourth 12; of ``last`` the fourth alone; of ``branch``
    the second leaves a state where it leaves the first, and the third hits it.
    """
    requests = [prompt(*ids, tokens=4) for ids in ((1, 2, 3), (1, 2, 4), (1, 2, 5), (1, 2, 5))]
    (point,) = state_points_of(requests, [1000], 4, keeping)
    assert (point.hit_tokens, point.peak_states) == (hits, states)


@pytest.mark.parametrize(("cache", "keeping"), [("mamba", None), ("radix", "last")])
def test_a_replay_keeps_states_where_there_are_some(cache: str, keeping: Keeping | None) -> None:
    """And is told where, before anything is read."""
    with pytest.raises(
        ValueError, match=f"cache '{cache}' with keeping {keeping!r}: a cache of states needs"
    ):
        replay_serially([], SerialConfig(cache, keeping=keeping))
