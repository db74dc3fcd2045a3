"""The hit ceiling against a token-by-token recount."""

from __future__ import annotations

import random

import pytest

from pymllm.workloads.ceiling import HitCeiling
from pymllm.workloads.request import Request


def make_request(
    number: int,
    prompt_length: int,
    block_ids: tuple[int, ...],
    *,
    block_tokens: int = 4,
    namespace: str | None = None,
) -> Request:
    return Request(number, 0.0, prompt_length, 1, block_ids, block_tokens, namespace)


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
        requests.append(make_request(number, length, ids, namespace=draw.choice([None, "a"])))
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


def test_equal_blocks_after_different_ones_share_nothing() -> None:
    """R2: a block counts only below the same leading blocks."""
    ceiling = HitCeiling()
    ceiling.add(make_request(0, 8, (1, 2)))
    assert ceiling.add(make_request(1, 8, (3, 2))) == 0


def test_namespaces_that_look_alike_share_nothing() -> None:
    """K1: None, "1" and 1 are three namespaces."""
    ceiling = HitCeiling()
    for namespace in (None, "1", 1):
        assert ceiling.add(Request(0, 0.0, 4, 1, (1,), 4, namespace)) == 0
    assert ceiling.add(Request(0, 0.0, 4, 1, (1,), 4, 1)) == 4


def test_rate_is_zero_before_the_first_request() -> None:
    """An empty workload has a rate, not a division by zero."""
    assert HitCeiling().hit_rate == 0.0


@pytest.mark.parametrize(("page_size", "held_back", "named"), [(0, 0, "page_size"), (1, -1, "held_back")])
def test_ceiling_refuses_sizes_that_make_no_sense(page_size: int, held_back: int, named: str) -> None:
    """X1: bad sizes are refused by name."""
    with pytest.raises(ValueError, match=named):
        HitCeiling(page_size, held_back=held_back)
