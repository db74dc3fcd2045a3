"""The named workloads: reproducible, in order, and each as its docstring says."""

from __future__ import annotations

import itertools

import pytest

from pymllm.workloads.ceiling import HitCeiling
from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import WORKLOADS, agent, chat, make_requests, shared_prompt


def leading_blocks(requests: list[Request], count: int) -> list[tuple[int, ...]]:
    return [request.block_ids[:count] for request in requests]


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
