"""Named workloads generated from a seed, each of which stresses a different behaviour of caches.

A generator yields requests for ever, in order of arrival; the first n of a longer run are the n of a shorter
one. Nothing but the standard library's seeded generator decides. What a request outputs is unique to it, so
the answer that a later turn quotes is prompt text of its own.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from pymllm.workloads.request import Request

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a prompt: its blocks as in `Request`, perhaps a partial last one, and its length."""

    block_ids: tuple[int, ...]
    length: int


EMPTY_TEXT = Text((), 0)
"""The empty text, from which every text is extended."""


class PromptWriter:
    """A writer of texts from new blocks, and of requests with ids from 0; all chance is in ``draw``.

    The workload's name is mixed with the seed, so that two workloads of one seed are not in step.
    """

    def __init__(self, name: str, seed: int, *, block_tokens: int = 16) -> None:
        self.draw = random.Random(f"{name} {seed}")
        self._block_tokens = block_tokens
        self._next_block = 0
        self._request_ids = itertools.count()

    def extend(self, text: Text, tokens: int) -> Text:
        """Append tokens: first those that complete a partial block, then new blocks.

        Two extensions of one text share its rest of a partial block, and nothing after that.
        """
        length = text.length + tokens
        fresh = -(-length // self._block_tokens) - len(text.block_ids)
        blocks = range(self._next_block, self._next_block + fresh)
        self._next_block += fresh
        return Text((*text.block_ids, *blocks), length)

    def request(
        self, arrival_ms: float, text: Text, output_length: int, namespace: str | int | None = None
    ) -> Request:
        """Return the next request with a non-empty text; its arrival is rounded to microseconds."""
        return Request(
            request_id=next(self._request_ids),
            arrival_ms=round(arrival_ms, 3),
            prompt_length=text.length,
            output_length=output_length,
            block_ids=text.block_ids,
            block_tokens=self._block_tokens,
            namespace=namespace,
        )


class Agenda(Generic[_Entry]):
    """A queue of events, removed in order of time and then of entry; ``first`` happens at 0."""

    def __init__(self, first: _Entry) -> None:
        self._count = itertools.count()
        self._heap: list[tuple[float, int, _Entry]] = []
        self.push(0.0, first)

    def push(self, when: float, entry: _Entry) -> None:
        """Add an event at a time, in virtual milliseconds."""
        heapq.heappush(self._heap, (when, next(self._count), entry))

    def pop(self) -> tuple[float, _Entry]:
        """Remove and return the next event with its time; the agenda must not be empty."""
        when, _, entry = heapq.heappop(self._heap)
        return when, entry


def long_tailed(draw: random.Random, mean: int, most: int) -> int:
    """Draw from ``1 .. most``: mostly small numbers, a few far above the mean, which is ``about``."""
    return 1 + min(int(draw.expovariate(1 / mean)), most - 1)


_Prompt = tuple[Text, str | int | None]

_PAGES = (16, 64)
_NEAR = (-1, 0, 1)
_LOOKALIKES = (None, "1", 1, "a")


def adversarial(seed: int, capacity: int) -> Iterator[Request]:
    """Generate prompts that hit the edges of pages, of nodes and of the pool.

    Six attacks take turns at random, several of them at one instant, so that equal prompts run side
    by side and memory runs out inside a request:

    - prompts that part one token before, at, and after a multiple of 16 or 64;
    - twins that differ in their last token, in the first token of their last page, or not at all;
    - prompts with equal first pages and nothing else in common, and the other way round;
    - the same tokens in namespaces that look alike (``None``, ``"1"``, ``1``, ``"a"``);
    - a cycle of prompts that together are just larger than the pool of ``capacity`` slots, where
      least-recent eviction always throws out what is needed next;
    - prompts of one token, and now and then one that can never fit.

    Prompts are in blocks of one token, outputs of 1 to 60 tokens.
    """
    writer = PromptWriter("adversarial", seed, block_tokens=1)
    attacks = _Attacks(writer, capacity)
    draw = writer.draw
    now = 0.0
    while True:
        attack = draw.choice(attacks.all)
        for text, namespace in attack():
            output = draw.choice((1, 1, 2, 15, 16, 17, draw.randint(1, 60)))
            yield writer.request(now, text, output, namespace)
        now += draw.choice((0.0, 0.0, 40.0, 500.0, 3000.0))


class _Attacks:
    """The six attacks of `adversarial`; each call makes the prompts that arrive together."""

    def __init__(self, writer: PromptWriter, capacity: int) -> None:
        self._writer = writer
        self._draw = writer.draw
        self._trunk = writer.extend(EMPTY_TEXT, 5 * max(_PAGES))
        # One piece in sixteen too many: what comes next in the cycle is what was thrown out last.
        pieces = [writer.extend(EMPTY_TEXT, max(capacity // 16, 1)) for _ in range(17)]
        self._cycle = itertools.cycle(pieces)
        self._single = [writer.extend(EMPTY_TEXT, 1) for _ in range(3)]
        self._giant = writer.extend(EMPTY_TEXT, capacity + 1)
        self.all: tuple[Callable[[], list[_Prompt]], ...] = (
            self.part_at_edges,
            self.twins,
            self.equal_fronts,
            self.namespaces,
            self.cycle,
            self.extremes,
        )

    def part_at_edges(self) -> list[_Prompt]:
        """Send prompts that leave the trunk near a page edge, with a tail of about a page."""
        tail = self._draw.choice(_PAGES) + self._draw.choice(_NEAR)
        return [(self._writer.extend(self._trunk_until(self._near_edge()), tail), None)]

    def twins(self) -> list[_Prompt]:
        """Send the trunk's beginning twice, the second time perhaps with one other token in its last page."""
        length = self._near_edge()
        head = self._trunk_until(length)
        last_page = (length - 1) // min(_PAGES) * min(_PAGES)
        place = self._draw.choice((length - 1, last_page, None))
        twin = head if place is None else self._with_fresh_token(head, place)
        return [(head, None), (twin, None)]

    def equal_fronts(self) -> list[_Prompt]:
        """Send prompts that share only the first page, or everything except the first token."""
        length = self._near_edge()
        if self._draw.random() < 0.5:
            return [(self._with_fresh_token(self._trunk_until(length), 0), None)]
        front = self._trunk_until(self._draw.choice(_PAGES))
        return [(self._writer.extend(front, self._draw.randint(1, length)), None) for _ in range(3)]

    def namespaces(self) -> list[_Prompt]:
        """Send equal tokens in three namespaces with similar names."""
        head = self._trunk_until(self._near_edge())
        return [(head, namespace) for namespace in self._draw.sample(_LOOKALIKES, 3)]

    def cycle(self) -> list[_Prompt]:
        """Send the next prompt of a cycle just larger than the pool."""
        return [(next(self._cycle), None)]

    def extremes(self) -> list[_Prompt]:
        """Send a prompt of one token or, one time in twenty, a prompt larger than the pool."""
        return [(self._giant if self._draw.random() < 0.05 else self._draw.choice(self._single), None)]

    def _near_edge(self) -> int:
        return self._draw.choice(_PAGES) * self._draw.randint(1, 4) + self._draw.choice(_NEAR)

    def _trunk_until(self, length: int) -> Text:
        return Text(self._trunk.block_ids[:length], length)

    def _with_fresh_token(self, text: Text, place: int) -> Text:
        [token] = self._writer.extend(EMPTY_TEXT, 1).block_ids
        return Text((*text.block_ids[:place], token, *text.block_ids[place + 1 :]), text.length)


# Output tokens arrive about this fast where the engine's default of 50 ms per iteration is kept.
_DECODE_MS = 50.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A named endless generator of requests, with the pool size that shows both hits and evictions."""

    name: str
    summary: str
    capacity: int
    generate: Callable[[int, int], Iterator[Request]]


def make_requests(name: str, requests: int, *, seed: int = 0, capacity: int | None = None) -> list[Request]:
    """Return the first requests of a named workload, in order of arrival, with ids from 0.

    ``capacity`` are the slots of the pool that they will meet, the workload's own if ``None``; only
    ``adversarial`` looks.
    """
    if name not in WORKLOADS:
        raise ValueError(f"no workload is called {name!r}; there are {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    slots = workload.capacity if capacity is None else capacity
    if requests < 1 or slots < 1:
        raise ValueError(f"requests and capacity must be at least 1, got {requests} and {slots}")
    return list(itertools.islice(workload.generate(seed, slots), requests))


def chat(seed: int) -> Iterator[Request]:
    """Generate many parallel conversations, in which each prompt is the conversation so far plus a message.

    Stresses growing prefixes (every turn extends a path that an earlier turn cached), conversations
    that come back after a pause in which their tail may have been evicted, and four system prompts
    that everybody shares and nobody should lose. Prompts are some 150 to 5,000 tokens, outputs 20 to 200.
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
    """Generate agents with tools: quick loops over a long shared prompt, with branches and retries.

    Stresses deep paths that grow in small steps with no pause, several live requests that hold the same path
    (sub-agents branch from one history), splits where branches part, and dead ends: a retry goes back a few
    steps, so that the abandoned tail is cached but never asked for again. Prompts are some 2,000 to 12,000
    tokens, outputs 10 to 80.
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
    """Generate requests of many users with few system prompts of very unequal popularity (Zipf).

    Stresses wide fan-out below one node, many small leaves that are never asked for again beside few long
    paths that are, and an eviction order that must keep the hot prompts and let the cold go. A prompt is one
    of 32 system prompts of 400 to 2,000 tokens plus a question of 10 to 200, outputs are 10 to 100.
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


_CHAT = "growing conversations that come back after a pause"
_AGENT = "tool loops over long shared prompts, with branches and retries"
_SHARED = "many users of few system prompts, some far more popular"
_ADVERSARIAL = "prompts made to meet the edges of pages, nodes and the pool"

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        workload.name: workload
        for workload in (
            Workload("chat", _CHAT, 8_192, lambda seed, _: chat(seed)),
            Workload("agent", _AGENT, 16_384, lambda seed, _: agent(seed)),
            Workload("shared-prompt", _SHARED, 16_384, lambda seed, _: shared_prompt(seed)),
            Workload("adversarial", _ADVERSARIAL, 1_024, adversarial),
        )
    }
)
"""The named workloads, by name."""
