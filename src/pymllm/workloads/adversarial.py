"""The workload that looks for trouble: prompts made to meet the edges of pages, nodes and the pool."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from pymllm.workloads.prompt_writer import EMPTY_TEXT, PromptWriter, Text
from pymllm.workloads.request import Request

__all__ = ["adversarial"]

_Prompt = tuple[Text, str | int | None]

_PAGES = (16, 64)
_NEAR = (-1, 0, 1)
_LOOKALIKES = (None, "1", 1, "a")


def adversarial(seed: int, capacity: int) -> Iterator[Request]:
    """Attack: prompts made to meet the edges of pages, of nodes and of the pool.

    Six attacks take turns at random, several of them at one instant, so that equal prompts run side
    by side and memory runs out inside a request:

    - prompts that part one token before, at, and after a multiple of 16 or 64;
    - twins that differ in their last token, in the first token of their last page, or not at all;
    - prompts with equal first pages and nothing else in common, and the other way round;
    - the same tokens in namespaces that look alike (``None``, ``"1"``, ``1``, ``"a"``);
    - a cycle of prompts that together are just larger than the pool, where least-recent eviction
      always throws out what is needed next;
    - prompts of one token, and now and then one that can never fit.

    Parameters
    ----------
    seed : int
        Equal seeds give equal requests.
    capacity : int
        Slots of the pool in tokens; the cycle is sized by it.

    Yields
    ------
    Request
        In blocks of one token; outputs of 1 to 60 tokens.
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
        """Leave the trunk beside a page edge, with a tail of about a page."""
        tail = self._draw.choice(_PAGES) + self._draw.choice(_NEAR)
        return [(self._writer.extend(self._trunk_until(self._near_edge()), tail), None)]

    def twins(self) -> list[_Prompt]:
        """Send the trunk's head twice, the second time with one token changed in its last page, or none."""
        length = self._near_edge()
        head = self._trunk_until(length)
        last_page = (length - 1) // min(_PAGES) * min(_PAGES)
        place = self._draw.choice((length - 1, last_page, None))
        twin = head if place is None else self._with_fresh_token(head, place)
        return [(head, None), (twin, None)]

    def equal_fronts(self) -> list[_Prompt]:
        """Share the first page only, or everything but the first token."""
        length = self._near_edge()
        if self._draw.random() < 0.5:
            return [(self._with_fresh_token(self._trunk_until(length), 0), None)]
        front = self._trunk_until(self._draw.choice(_PAGES))
        return [(self._writer.extend(front, self._draw.randint(1, length)), None) for _ in range(3)]

    def namespaces(self) -> list[_Prompt]:
        """Send equal tokens to three namespaces that look alike."""
        head = self._trunk_until(self._near_edge())
        return [(head, namespace) for namespace in self._draw.sample(_LOOKALIKES, 3)]

    def cycle(self) -> list[_Prompt]:
        """Send the next prompt of a cycle just larger than the pool."""
        return [(next(self._cycle), None)]

    def extremes(self) -> list[_Prompt]:
        """Send one token, or one time in twenty more than the pool holds."""
        return [(self._giant if self._draw.random() < 0.05 else self._draw.choice(self._single), None)]

    def _near_edge(self) -> int:
        return self._draw.choice(_PAGES) * self._draw.randint(1, 4) + self._draw.choice(_NEAR)

    def _trunk_until(self, length: int) -> Text:
        return Text(self._trunk.block_ids[:length], length)

    def _with_fresh_token(self, text: Text, place: int) -> Text:
        [token] = self._writer.extend(EMPTY_TEXT, 1).block_ids
        return Text((*text.block_ids[:place], token, *text.block_ids[place + 1 :]), text.length)
