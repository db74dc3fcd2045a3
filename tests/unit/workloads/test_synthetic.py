"""The named workloads: reproducible, in order, and each as its docstring says."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from pymllm.workloads.ceiling import HitCeiling
from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import (
    EMPTY_TEXT,
    WORKLOADS,
    Agenda,
    PromptWriter,
    Text,
    adversarial,
    agent,
    chat,
    long_tailed,
    make_requests,
    shared_prompt,
)


def test_extending_fills_the_partial_block_first() -> None:
    """A longer text begins with the shorter one, token by token."""
    writer = PromptWriter("test", 0, block_tokens=4)
    short = writer.extend(EMPTY_TEXT, 6)
    longer = writer.extend(short, 1)
    longest = writer.extend(longer, 6)
    assert (short, longer) == (Text((0, 1), 6), Text((0, 1), 7))
    assert longest == Text((0, 1, 2, 3), 13)
    prompts = [writer.request(0, text, 1).prompt().tolist() for text in (short, longer, longest)]
    assert prompts[2][:7] == prompts[1]
    assert prompts[1][:6] == prompts[0]


def test_two_extensions_part_at_the_end_of_the_block() -> None:
    """Two extensions of a text share its blocks alone, the rest of a partial block included."""
    writer = PromptWriter("test", 0, block_tokens=4)
    trunk = writer.extend(EMPTY_TEXT, 6)
    left, right = writer.extend(trunk, 8), writer.extend(trunk, 8)
    assert set(left.block_ids) & set(right.block_ids) == set(trunk.block_ids)


def test_agenda_goes_by_time_then_by_entry() -> None:
    """X3: what was entered first for one time happens first; entries are never compared."""
    agenda = Agenda[object]("first")
    entries = [object() for _ in range(20)]
    for entry in entries:
        agenda.push(5.0, entry)
    agenda.push(4.0, "early")
    assert [agenda.pop() for _ in range(2)] == [(0.0, "first"), (4.0, "early")]
    assert [agenda.pop()[1] for _ in entries] == entries


def test_long_tailed_numbers_stay_in_bounds() -> None:
    """Mostly small, never 0, never above the most, and both ends are met."""
    draw = random.Random(0)
    numbers = [long_tailed(draw, 10, 40) for _ in range(2000)]
    assert (min(numbers), max(numbers)) == (1, 40)
    assert 5 < sum(numbers) / len(numbers) < 15


def test_there_are_the_four_named_workloads() -> None:
    """The command line's names are these."""
    assert list(WORKLOADS) == ["chat", "agent", "shared-prompt", "adversarial"]
    assert all(workload.name == name for name, workload in WORKLOADS.items())


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_seeds_make_equal_requests(name: str) -> None:
    """X3: a seed is a workload, and a shorter run is the beginning of a longer one."""
    requests = make_requests(name, 120, seed=5)
    assert make_requests(name, 120, seed=5) == requests
    assert make_requests(name, 50, seed=5) == requests[:50]
    assert make_requests(name, 120, seed=6) != requests


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_arrive_in_order(name: str) -> None:
    """Ids count from 0 and time never goes back, whatever branches and pauses there are."""
    requests = make_requests(name, 400)
    assert [request.request_id for request in requests] == list(range(400))
    assert all(a.arrival_ms <= b.arrival_ms for a, b in itertools.pairwise(requests))


@pytest.mark.parametrize("name", WORKLOADS)
def test_forty_requests_need_more_than_the_pool_and_share_much(name: str) -> None:
    """At its own capacity a workload shows hits and evictions alike within 40 requests."""
    requests = make_requests(name, 40)
    ceiling = HitCeiling(held_back=1)
    for request in requests:
        ceiling.add(request)
    outputs = sum(request.output_length for request in requests)
    assert ceiling.hit_rate > 0.3
    assert ceiling.prompt_tokens - ceiling.hit_tokens + outputs > WORKLOADS[name].capacity
    largest = max(request.prompt_length + request.output_length for request in requests)
    assert largest < WORKLOADS[name].capacity


@pytest.mark.parametrize(
    ("name", "requests", "capacity", "words"),
    [
        (
            "chatt",
            1,
            None,
            "no workload is called 'chatt'; there are chat, agent, shared-prompt, adversarial",
        ),
        ("chat", 0, None, "requests and capacity must be at least 1, got 0"),
        ("chat", 1, 0, "requests and capacity must be at least 1, got 1 and 0"),
    ],
)
def test_bad_arguments_are_named(name: str, requests: int, capacity: int | None, words: str) -> None:
    """X1: nothing is generated for what makes no sense."""
    with pytest.raises(ValueError, match=words):
        make_requests(name, requests, capacity=capacity)


def test_chat_turns_extend_the_conversation() -> None:
    """Every prompt begins with a system prompt, and most with a whole earlier prompt."""
    requests = list(itertools.islice(chat(0), 200))
    systems = {request.block_ids[0] for request in requests}
    assert len(systems) == 4
    earlier: set[tuple[int, ...]] = set()
    turns = 0
    for request in requests:
        whole_blocks = [request.block_ids[:count] for count in range(len(request.block_ids))]
        turns += any(prefix in earlier for prefix in whole_blocks)
        earlier.add(request.block_ids[:-1])
    assert turns > 100
    assert all(20 < request.output_length <= 200 for request in requests)


def test_agent_branches_from_one_history() -> None:
    """Some histories are continued by two or three different steps, and some go back to an earlier step."""
    requests = list(itertools.islice(agent(0), 300))
    continued: dict[tuple[int, ...], int] = {}
    earlier: list[tuple[int, ...]] = []
    for request in requests:
        parents = [ids for ids in earlier if len(ids) > 1 and request.block_ids[: len(ids)] == ids]
        if parents:
            parent = max(parents, key=len)
            continued[parent] = continued.get(parent, 0) + 1
        earlier.append(request.block_ids[:-1])
    assert max(continued.values()) >= 3
    assert len({request.block_ids[0] for request in requests}) == 3
    assert all(1500 < request.prompt_length < 16_000 for request in requests)


def test_shared_prompts_are_asked_by_popularity() -> None:
    """The hottest of the 32 prompts is asked many times as often as the coldest, and questions differ."""
    requests = list(itertools.islice(shared_prompt(0), 1000))
    asked = [request.block_ids[0] for request in requests]
    counts = sorted((asked.count(prompt) for prompt in set(asked)), reverse=True)
    assert len(counts) == 32
    assert counts[0] > 10 * counts[-1]
    assert len({request.block_ids[-1] for request in requests}) > 900


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
