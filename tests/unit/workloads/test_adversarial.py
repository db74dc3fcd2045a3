"""The adversarial workload carries out each attack that it promises."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import adversarial

CAPACITY = 1024


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return list(itertools.islice(adversarial(0, CAPACITY), 600))


@pytest.fixture(scope="module")
def shared_lengths(requests: list[Request]) -> set[int]:
    """Lengths at which two prompts of one namespace part, or one ends inside the other."""
    prompts = [request.prompt() for request in requests if request.prompt_length < CAPACITY]
    lengths = set()
    for first, second in itertools.combinations(prompts, 2):
        common = min(len(first), len(second))
        differ = np.flatnonzero(first[:common] != second[:common])
        lengths.add(int(differ[0]) if len(differ) else common)
    return lengths


@pytest.mark.parametrize("edge", [16, 32, 48, 64, 128, 192, 256])
def test_prompts_part_beside_every_page_edge(shared_lengths: set[int], edge: int) -> None:
    """R2: one token before, at, and after multiples of 16 and 64."""
    assert {edge - 1, edge, edge + 1} <= shared_lengths


def test_twins_arrive_together(requests: list[Request]) -> None:
    """R4: equal prompts run side by side, and others differ in the last token alone."""
    pairs = [(a, b) for a, b in itertools.pairwise(requests) if a.arrival_ms == b.arrival_ms]
    assert any(a.block_ids == b.block_ids and a.namespace == b.namespace for a, b in pairs)
    assert any(
        a.block_ids[:-1] == b.block_ids[:-1] and a.block_ids[-1] != b.block_ids[-1] and a.prompt_length > 1
        for a, b in pairs
    )


def test_first_tokens_differ_where_the_rest_is_equal(requests: list[Request]) -> None:
    """K1: a prompt that differs in its first token only shares nothing."""
    firsts: dict[tuple[int, ...], set[int]] = {}
    for request in requests:
        firsts.setdefault(request.block_ids[1:], set()).add(request.block_ids[0])
    assert any(len(tail) > 14 and len(tokens) > 1 for tail, tokens in firsts.items())


def test_equal_tokens_meet_in_namespaces_that_look_alike(requests: list[Request]) -> None:
    """K1: None, "1", 1 and "a" each get a prompt that another one gets too."""
    seen: dict[tuple[int, ...], set[object]] = {}
    for request in requests:
        seen.setdefault(request.block_ids, set()).add(request.namespace)
    assert {None, "1", 1, "a"} in seen.values()


def test_the_cycle_is_just_larger_than_the_pool(requests: list[Request]) -> None:
    """R5: least-recent eviction always throws out what the cycle needs next."""
    piece = CAPACITY // 16
    pieces = [r.block_ids for r in requests if r.prompt_length == piece and r.block_ids[0] >= 320]
    distinct = list(dict.fromkeys(pieces))
    assert len(distinct) == 17
    assert CAPACITY < 17 * piece < 1.1 * CAPACITY
    assert pieces == [distinct[n % 17] for n in range(len(pieces))]


def test_extremes_are_one_token_and_one_too_many(requests: list[Request]) -> None:
    """E4: the smallest prompt there is, and one that can never fit."""
    lengths = {request.prompt_length for request in requests}
    assert {1, CAPACITY + 1} <= lengths
    assert any(request.prompt_length == request.output_length == 1 for request in requests)
