"""Curves of a sample against those of all blocks, and how large a trace is."""

from __future__ import annotations

import pytest

from pymllm.replay import sampling
from pymllm.replay.curve import LruCurve
from pymllm.replay.sampling import SampledCurve, TraceExtent, hash_places, least_capacity
from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import make_requests

CAPACITIES = [8_192, 16_384, 32_768, 65_536, 262_144]


def requests_of(name: str, count: int = 600) -> list[Request]:
    return make_requests(name, count, seed=3)


@pytest.mark.parametrize("name", ["chat", "agent", "shared-prompt"])
def test_a_sample_tells_the_hit_rate_within_its_error(name: str) -> None:
    """Requests and prompt tokens are exact, hit rates within the bounds, which are not the whole range."""
    requests = requests_of(name)
    block_tokens = requests[0].block_tokens
    exact, sampled = (
        LruCurve(CAPACITIES, 1, block_tokens),
        SampledCurve(CAPACITIES, 1, block_tokens, rate=0.2),
    )
    for request in requests:
        exact.add(request)
        sampled.add(request)
    for right, estimate in zip(exact.points(), sampled.points(), strict=True):
        for count in ("capacity", "requests", "skipped", "prompt_tokens"):
            assert getattr(estimate, count) == getattr(right, count)
        assert estimate.low <= right.token_hit_rate <= estimate.high
        assert estimate.high - estimate.low < 0.5
        assert estimate.hit_tokens == round(estimate.token_hit_rate * estimate.prompt_tokens)


def test_a_sample_of_all_blocks_is_the_curve_itself() -> None:
    """Nothing is adjusted then."""
    requests = requests_of("agent", 200)
    block_tokens = requests[0].block_tokens
    exact, sampled = (
        LruCurve(CAPACITIES, 1, block_tokens),
        SampledCurve(CAPACITIES, 1, block_tokens, rate=1.0),
    )
    for request in requests:
        exact.add(request)
        sampled.add(request)
    assert [it.hit_tokens for it in sampled.points()] == [it.hit_tokens for it in exact.points()]


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5])
def test_a_share_that_is_none_is_refused(rate: float) -> None:
    """With the bounds."""
    with pytest.raises(ValueError, match="rate must be above 0 and at most 1"):
        SampledCurve([1 << 20], 1, 512, rate=rate)


def test_a_capacity_without_room_for_a_block_is_refused() -> None:
    """The least one is named, and is accepted."""
    least = least_capacity(0.01, 16, 512)
    assert least == 409_600
    with pytest.raises(
        ValueError, match=r"capacity 409599 is too small for a sample of 0\.01: at least 409600"
    ):
        SampledCurve([least - 1], 16, 512, rate=0.01)
    assert len(SampledCurve([least], 16, 512, rate=0.01).points()) == 1


def test_a_block_has_one_hash_behind_one_prefix() -> None:
    """Whatever follows; another prefix, another namespace or another seed is another one."""

    def hashes(*ids: int, namespace: str | int | None = None, seed: int = 0) -> list[int]:
        found: list[int] = hash_places(Request(0, 0.0, len(ids), 1, ids, 1, namespace), seed).tolist()
        return found

    assert hashes(1, 2, 3)[:2] == hashes(1, 2)
    others = [
        hashes(1, 2), hashes(2, 2), hashes(1, 2, namespace="1"), hashes(1, 2, namespace=1),
        hashes(2, 1), hashes(1, 2, seed=1),
    ]  # fmt: skip
    assert len({found[-1] for found in others}) == len(others)


@pytest.mark.parametrize("is_sampled", [False, True])
def test_an_extent_is_the_size_of_a_trace(is_sampled: bool) -> None:
    """Requests, the longest prompt, and the tokens of all prefixes, to whole blocks."""
    extent = TraceExtent(is_sampled=is_sampled)
    for ids in ((1, 2), (1, 3), (1, 2), (2, 2, 2)):
        extent.add(Request(0, 0.0, len(ids) * 4 - 1, 1, ids, 4))
    assert (extent.requests, extent.longest_prompt, extent.block_tokens) == (4, 11, 4)
    assert extent.footprint == 6 * 4


def test_the_size_of_a_large_trace_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """From as many blocks as fit."""
    monkeypatch.setattr(sampling, "_MOST_PLACES", 500)
    extent = TraceExtent(is_sampled=True)
    for number in range(4000):
        extent.add(Request(0, 0.0, 1, 1, (number,), 1))
    assert extent.footprint == pytest.approx(4000, rel=0.15)


def test_chosen_capacities_read_every_request_and_end_where_nothing_is_evicted() -> None:
    """By equal factors, in whole pages."""
    requests = requests_of("chat", 150)
    extent = TraceExtent()
    for request in requests:
        extent.add(request)
    chosen = extent.choose_capacities(8, 16)
    assert len(chosen) == 8
    assert chosen == sorted(chosen)
    assert not any(capacity % 16 for capacity in chosen)
    curve = LruCurve(chosen, 16, requests[0].block_tokens)
    for request in requests:
        curve.add(request)
    points = curve.points()
    assert points[0].skipped == points[-1].evicted_tokens == 0
    assert points[0].evicted_tokens
