"""Prompts in the making: what the synthetic workloads are written with.

Here lives how a prompt grows out of blocks that nobody else has, and in which order things happen.
What a workload is like does not live here.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass
from typing import Generic, TypeVar

from pymllm.workloads.request import Request

__all__ = ["EMPTY_TEXT", "Agenda", "PromptWriter", "Text", "long_tailed"]

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Text:
    """What a prompt says: its blocks, the last of which may be partial.

    Parameters
    ----------
    block_ids : tuple of int
        As in `Request`.
    length : int
        Tokens.
    """

    block_ids: tuple[int, ...]
    length: int


EMPTY_TEXT = Text((), 0)
"""Where every text begins."""


class PromptWriter:
    """Writes texts of fresh blocks, and requests whose ids count from 0.

    Parameters
    ----------
    name : str
        The workload's name; mixed with the seed, so that two workloads of one seed are not in step.
    seed : int
        Equal names and seeds make equal texts.
    block_tokens : int
        Tokens per block.

    Attributes
    ----------
    draw : random.Random
        The workload's only source of chance.
    """

    def __init__(self, name: str, seed: int, *, block_tokens: int = 16) -> None:
        self.draw = random.Random(f"{name} {seed}")
        self._block_tokens = block_tokens
        self._next_block = 0
        self._request_ids = itertools.count()

    def extend(self, text: Text, tokens: int) -> Text:
        """Append tokens: what is left of a partial block first, then blocks never used before.

        Parameters
        ----------
        text : Text
            Left as it is, so that several texts may go on from one.
        tokens : int
            How many to append; 0 or more.

        Returns
        -------
        Text
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
        """Send a text as the next request.

        Parameters
        ----------
        arrival_ms : float
            Virtual milliseconds, rounded to whole microseconds.
        text : Text
            The prompt; not empty.
        output_length : int
            Tokens to produce.
        namespace : str or int or None
            Prompts of different namespaces share nothing.

        Returns
        -------
        Request
            With the next id.
        """
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
    """What happens when: taken out in order of time and, at one time, in order of entry.

    Parameters
    ----------
    first : object
        Happens at time 0.
    """

    def __init__(self, first: _Entry) -> None:
        self._count = itertools.count()
        self._heap: list[tuple[float, int, _Entry]] = []
        self.push(0.0, first)

    def push(self, when: float, entry: _Entry) -> None:
        """Enter something for a time, in virtual milliseconds."""
        heapq.heappush(self._heap, (when, next(self._count), entry))

    def pop(self) -> tuple[float, _Entry]:
        """Take out what happens next, with its time; the agenda must not be empty."""
        when, _, entry = heapq.heappop(self._heap)
        return when, entry


def long_tailed(draw: random.Random, mean: int, most: int) -> int:
    """Draw mostly small numbers, 1 at the least, and now and then one far above the mean.

    Parameters
    ----------
    draw : random.Random
        Advanced by one number.
    mean : int
        About the mean, as long as ``most`` lies far above it.
    most : int
        No result exceeds this.

    Returns
    -------
    int
        In ``1 .. most``.
    """
    return 1 + min(int(draw.expovariate(1 / mean)), most - 1)
