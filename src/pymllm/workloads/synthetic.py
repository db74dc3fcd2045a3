"""Named workloads that need no file: each is a seed away, and each stresses something of its own.

A generator yields requests for ever, in order of arrival; the first n of a longer run are the n of a
shorter one. Equal seeds give equal requests: nothing but the standard library's seeded generator
decides, neither wall time nor hashing. Prompts are lists of block ids as in a recorded trace; what a
request outputs is unique to it, so the answer that a later turn quotes is prompt text of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pymllm.workloads.adversarial import adversarial
from pymllm.workloads.prompt_writer import EMPTY_TEXT, Agenda, PromptWriter, Text, long_tailed
from pymllm.workloads.request import Request

__all__ = ["WORKLOADS", "Workload", "adversarial", "agent", "chat", "make_requests", "shared_prompt"]

# Output tokens arrive about this fast where the engine's default of 50 ms per iteration is kept.
_DECODE_MS = 50.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A named generator and the pool size at which it shows hits and evictions alike.

    Parameters
    ----------
    name : str
        What users type.
    summary : str
        What it stresses, in one line.
    capacity : int
        KV slots in tokens that suit it: small enough that memory is short.
    generate : callable
        ``(seed, capacity) -> iterator of Request``, endless.
    """

    name: str
    summary: str
    capacity: int
    generate: Callable[[int, int], Iterator[Request]]


def make_requests(name: str, requests: int, *, seed: int = 0, capacity: int | None = None) -> list[Request]:
    """Make the first requests of a named workload.

    Parameters
    ----------
    name : str
        A key of `WORKLOADS`.
    requests : int
        How many, at least 1.
    seed : int
        Equal seeds give equal requests.
    capacity : int, optional
        Slots of the pool it will meet, in tokens; the workload's own if ``None``. Only ``adversarial``
        looks at it.

    Returns
    -------
    list of Request
        In order of arrival; ``request_id`` counts from 0.

    Raises
    ------
    ValueError
        No workload has that name, or a number is below 1.
    """
    if name not in WORKLOADS:
        raise ValueError(f"no workload is called {name!r}; there are {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    slots = workload.capacity if capacity is None else capacity
    if requests < 1 or slots < 1:
        raise ValueError(f"requests and capacity must be at least 1, got {requests} and {slots}")
    return list(itertools.islice(workload.generate(seed, slots), requests))


def chat(seed: int) -> Iterator[Request]:
    """Talk: many conversations at once, each prompt the whole conversation so far plus a new message.

    Stresses growing prefixes (every turn extends a path that an earlier turn cached), conversations
    that come back after a pause in which their tail may have been evicted, and four system prompts
    that everybody shares and nobody should lose.

    Parameters
    ----------
    seed : int
        Equal seeds give equal requests.

    Yields
    ------
    Request
        Prompts of some 150 to 5,000 tokens, outputs of 20 to 200, in blocks of 16.
    """
    writer = PromptWriter("chat", seed)
    draw = writer.draw
    assistants = [writer.extend(EMPTY_TEXT, draw.randint(150, 900)) for _ in range(4)]
    # An entry is a turn about to be sent: when, and the conversation before it (None: a new one).
    turns = Agenda[Text | None](None)
    while True:
        now, text = turns.pop()
        if text is None:
            turns.push(now + draw.expovariate(1 / 5000), None)
            text = draw.choice(assistants)
        text = writer.extend(text, long_tailed(draw, 150, 1000))
        answer = min(20 + long_tailed(draw, 50, 180), 200)
        yield writer.request(now, text, answer)
        if draw.random() < 0.8 and text.length < 4000:
            pause = 2000 + draw.expovariate(1 / 10_000)
            turns.push(now + answer * _DECODE_MS + pause, writer.extend(text, answer))


def agent(seed: int) -> Iterator[Request]:
    """Work with tools: quick loops over a long shared prompt, with branches and retries.

    Stresses deep paths that grow in small steps with no pause, several live requests that hold the
    same path (sub-agents branch from one history), splits where branches part, and dead ends: a
    retry goes back a few steps, so that the abandoned tail is cached but never asked for again.

    Parameters
    ----------
    seed : int
        Equal seeds give equal requests.

    Yields
    ------
    Request
        Prompts of some 2,000 to 12,000 tokens, outputs of 10 to 80, in blocks of 16.
    """
    writer = PromptWriter("agent", seed)
    draw = writer.draw
    roles = [writer.extend(EMPTY_TEXT, draw.randint(1500, 3000)) for _ in range(3)]
    # An entry is a step about to be taken: when, and the task's history, newest last (None: a new task).
    steps = Agenda[tuple[Text, ...] | None](None)
    while True:
        now, history = steps.pop()
        if history is None:
            steps.push(now + draw.expovariate(1 / 4000), None)
            history = (writer.extend(draw.choice(roles), draw.randint(50, 500)),)
        text = history[-1]
        call = draw.randint(10, 80)
        yield writer.request(now, text, call)
        # On average a step has slightly less than one successor, so the number of live tasks stays bounded.
        if draw.random() < 0.2 or text.length > 11_000:
            continue
        if draw.random() < 0.12:
            history = history[: draw.randint(1, len(history))]
        branches = draw.choice((2, 3)) if draw.random() < 0.1 else 1
        for _ in range(branches):
            result = call + long_tailed(draw, 300, 3000)
            wait = call * _DECODE_MS + draw.uniform(100, 1500)
            steps.push(now + wait, (*history, writer.extend(history[-1], result)))


def shared_prompt(seed: int) -> Iterator[Request]:
    """Serve many users of few system prompts, some of which are asked far more often (Zipf).

    Stresses wide fan-out below one node, many small leaves that are never asked for again beside
    few long paths that are, and an eviction order that must keep the hot prompts and let the cold go.

    Parameters
    ----------
    seed : int
        Equal seeds give equal requests.

    Yields
    ------
    Request
        One of 32 system prompts of 400 to 2,000 tokens plus a question of 10 to 200, outputs of
        10 to 100, in blocks of 16.
    """
    writer = PromptWriter("shared-prompt", seed)
    draw = writer.draw
    prompts = [writer.extend(EMPTY_TEXT, draw.randint(400, 2000)) for _ in range(32)]
    popularity = list(itertools.accumulate(1 / rank for rank in range(1, len(prompts) + 1)))
    now = 0.0
    while True:
        [prompt] = draw.choices(prompts, cum_weights=popularity)
        question = writer.extend(prompt, draw.randint(10, 200))
        yield writer.request(now, question, draw.randint(10, 100))
        now += draw.expovariate(1 / 400)


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        workload.name: workload
        for workload in (
            Workload(
                "chat",
                "growing conversations that come back after a pause",
                8_192,
                lambda seed, capacity: chat(seed),
            ),
            Workload(
                "agent",
                "tool loops over long shared prompts, with branches and retries",
                16_384,
                lambda seed, capacity: agent(seed),
            ),
            Workload(
                "shared-prompt",
                "many users of few system prompts, some far more popular",
                16_384,
                lambda seed, capacity: shared_prompt(seed),
            ),
            Workload(
                "adversarial",
                "prompts made to meet the edges of pages, nodes and the pool",
                1_024,
                adversarial,
            ),
        )
    }
)
"""Every named workload, by its name."""
