"""The ceiling that knows the future: no cache hits more, and the best choice by hand as much."""

from __future__ import annotations

import functools
import itertools
import random

import pytest

from pymllm.workloads.ceiling import HitCeiling, belady_hit_tokens
from pymllm.workloads.request import Request
from pymllm.workloads.serial import SerialConfig, replay_serially


def make_request(number: int, length: int, blocks: tuple[int, ...], namespace: str | None = None) -> Request:
    return Request(number, 0.0, length, 1, blocks, 4, namespace)


def drawn(seed: int, count: int, longest: int = 16) -> list[Request]:
    source = random.Random(seed)
    requests = []
    for number in range(count):
        length = source.randint(1, longest)
        blocks = tuple(source.randrange(2) for _ in range(-(-length // 4)))
        requests.append(make_request(number, length, blocks, source.choice([None, None, "b"])))
    return requests


def best_by_trial(requests: list[Request], page_size: int, room: int) -> int:
    """Try every set of pages that may be kept after each request; a page is a prefix of tokens."""
    used = []
    for request in requests:
        tokens = (request.namespace, *request.prompt().tolist())
        ends = range(page_size, len(tokens), page_size)
        used.append([tokens[: end + 1] for end in ends])

    @functools.cache
    def best(number: int, kept: frozenset[object]) -> int:
        if number == len(used):
            return 0
        there = kept | set(used[number])
        most = min(room, len(there))
        return len(kept & set(used[number])) + max(
            best(number + 1, frozenset(chosen)) for chosen in itertools.combinations(there, most)
        )

    return best(0, frozenset()) * page_size


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_no_choice_of_pages_hits_more_and_one_hits_as_much(seed: int, page_size: int) -> None:
    """Belady's rule is the best of all sets that could have been kept."""
    requests = drawn(seed, 6, longest=6 if page_size == 1 else 9)
    for pages in (0, 1, 3):
        capacity = pages * page_size + page_size - 1
        assert belady_hit_tokens(requests, page_size, capacity) == best_by_trial(requests, page_size, pages)


@pytest.mark.parametrize("page_size", [1, 2, 5])
def test_a_real_cache_stays_between_nothing_and_the_ceilings(page_size: int) -> None:
    """R5, R8: least recent first is one of the policies, and an unlimited cache is the last of them."""
    requests = drawn(5, 300)
    unlimited = HitCeiling(page_size)
    for request in requests:
        unlimited.add(request)
    hits = []
    for capacity in (40, 80, 160, 100_000):
        report = replay_serially(requests, SerialConfig(page_size=page_size, capacity=capacity))
        assert report.skipped == 0
        hits.append(belady_hit_tokens(requests, page_size, report.config.capacity))
        assert 0 < report.hit_tokens <= hits[-1] <= unlimited.hit_tokens
    assert hits == sorted(hits)
    assert hits[-1] == unlimited.hit_tokens


@pytest.mark.parametrize(("page_size", "capacity"), [(0, 1), (1, -1)])
def test_sizes_out_of_range_are_refused(page_size: int, capacity: int) -> None:
    """The message has both."""
    with pytest.raises(ValueError, match="page_size must be at least 1 and capacity at least 0"):
        belady_hit_tokens([], page_size, capacity)
