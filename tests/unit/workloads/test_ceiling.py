"""The hit ceilings: one against a token-by-token recount, one that knows the future against every choice."""

from __future__ import annotations

import functools
import itertools
import random

import pytest

from pymllm.replay.serial import SerialConfig, replay_serially
from pymllm.workloads.ceiling import HitCeiling, belady_hit_tokens
from pymllm.workloads.request import Request


def make_request(number: int, length: int, blocks: tuple[int, ...], namespace: object = None) -> Request:
    return Request(number, 0.0, length, 1, blocks, 4, namespace)  # type: ignore[arg-type]


def recount(requests: list[Request], page_size: int, held_back: int) -> list[int]:
    """Compare every prompt with every earlier one, token by token."""
    hits = []
    for position, request in enumerate(requests):
        tokens = request.prompt().tolist()
        longest = 0
        for earlier in requests[:position]:
            if earlier.namespace != request.namespace:
                continue
            pairs = zip(tokens, earlier.prompt().tolist(), strict=False)
            same = next(
                (i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), earlier.prompt_length)
            )
            longest = max(longest, same)
        usable = max(min(longest, len(tokens) - held_back), 0)
        hits.append(usable // page_size * page_size)
    return hits


@pytest.mark.parametrize("page_size", [1, 3, 4, 6])
@pytest.mark.parametrize("held_back", [0, 1])
def test_ceiling_equals_a_recount_by_tokens(page_size: int, held_back: int) -> None:
    """R2, E4: an unlimited cache hits the longest prefix of any earlier prompt, in whole pages."""
    draw = random.Random(7)
    requests = []
    for number in range(200):
        length = draw.randint(1, 17)
        ids = tuple(draw.randrange(2) for _ in range(-(-length // 4)))
        requests.append(make_request(number, length, ids, draw.choice([None, "a"])))
    ceiling = HitCeiling(page_size, held_back=held_back)
    hits = [ceiling.add(request) for request in requests]
    assert hits == recount(requests, page_size, held_back)
    assert sum(hits) > 0
    assert ceiling.hit_tokens == sum(hits)
    assert ceiling.hit_rate == sum(hits) / sum(request.prompt_length for request in requests)


def test_partial_block_grows_with_the_longest_prompt() -> None:
    """R2: a block seen with two tokens, then with four, is hit with as many as were seen."""
    ceiling = HitCeiling()
    assert ceiling.add(make_request(0, 2, (5,))) == 0
    assert ceiling.add(make_request(1, 7, (5, 6))) == 2
    assert ceiling.add(make_request(2, 3, (5,))) == 3
    assert ceiling.add(make_request(3, 8, (5, 6))) == 7


def test_namespaces_that_look_alike_share_nothing() -> None:
    """K1: None, "1" and 1 are three namespaces."""
    ceiling = HitCeiling()
    for namespace in (None, "1", 1):
        assert ceiling.add(make_request(0, 4, (1,), namespace)) == 0
    assert ceiling.add(make_request(0, 4, (1,), 1)) == 4


@pytest.mark.parametrize(("page_size", "held_back", "named"), [(0, 0, "page_size"), (1, -1, "held_back")])
def test_ceiling_refuses_sizes_that_make_no_sense(page_size: int, held_back: int, named: str) -> None:
    """X1: bad sizes are refused by name."""
    with pytest.raises(ValueError, match=named):
        HitCeiling(page_size, held_back=held_back)


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
