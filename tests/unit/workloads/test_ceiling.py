"""The ceiling equals a comparison of every prompt with every earlier one, token by token."""

from __future__ import annotations

from itertools import takewhile

import pytest

from pymllm.workloads.ceiling import HitCeiling
from pymllm.workloads.request import Request
from pymllm.workloads.source import RandomSource


def longest_shared_prefix(request: Request, earlier: list[Request], page_size: int) -> int:
    """Compare token lists, the slow and obvious way."""
    prompt = request.prompt().tolist()
    best = 0
    for other in earlier:
        if (type(other.namespace), other.namespace) == (type(request.namespace), request.namespace):
            pairs = zip(prompt, other.prompt().tolist(), strict=False)
            best = max(best, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return min(best, len(prompt) - 1) // page_size * page_size


@pytest.mark.parametrize("page_size", [1, 4])
def test_ceiling_is_the_longest_prefix_shared_with_an_earlier_prompt(page_size: int) -> None:
    """E4: whole pages, within the namespace, and at least one token left to compute."""
    source = RandomSource(11, requests=150, namespaces=(None, "1", 1), max_prompt=20)
    ceiling, earlier, hits = HitCeiling(page_size, held_back=1), [], 0
    while (request := source.next_request()) is not None:
        expected = longest_shared_prefix(request, earlier, page_size)
        assert ceiling.add(request) == expected
        earlier.append(request)
        hits += expected
    assert hits > 0
