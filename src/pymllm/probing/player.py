"""The player of a probe's program: carries out operations and returns a history."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from pymllm.probing.clients import Client
from pymllm.probing.records import (
    Answer,
    Ask,
    Burst,
    Cold,
    Drop,
    Figures,
    Look,
    Operation,
    Reset,
    Step,
    Way,
)

if TYPE_CHECKING:
    from pymllm.probing.heard import Heard  # which needs pyzmq

REST_SECONDS = 10.0
"""Seconds within which a server must become idle."""

_BETWEEN_LOOKS = 0.05


class Player:
    """A player that carries out operations one by one, and keeps their outcomes.

    ``cold`` is asked what ``other`` wants cold, or the server itself. Namespaces get texts that no other
    play has used, so that a server never needs a restart between two plays where it keeps namespaces apart.
    ``tell`` is called with the number of requests that were answered so far. ``heard``: the events of the
    server's cache, which are waited for after each step.
    """

    def __init__(
        self,
        client: Client,
        way: Way,
        other: Client | None = None,
        tell: Callable[[int], None] | None = None,
        heard: Heard | None = None,
    ) -> None:
        self._heard = heard
        self._client = client
        self._way = way
        self._other = other
        self._tell = tell
        self._nonce = secrets.token_hex(6)
        self._asked: dict[int, tuple[tuple[int, ...], Ask]] = {}
        self._answers: dict[int, Answer] = {}
        self._made = 0
        self._requests = 0
        self._is_shared = False  # others were at work at the first look, so that V6 and V7 are unknown
        self._has_looked = False
        self.steps: list[Step] = []

    def play(self, operations: Iterable[Operation]) -> None:
        """Play operations; steps done before a failure stay in `steps`."""
        with ThreadPoolExecutor(64) as threads:
            for operation in operations:
                self.steps.append(self._hear(self._step(operation, threads)))
                if self._tell is not None:
                    self._tell(self._requests)

    def _hear(self, step: Step) -> Step:
        """Add the events that a step caused."""
        if self._heard is None:
            return step
        rests = not isinstance(step.operation, Drop) or self._rest().rests  # it may go on for a while
        messages = self._heard.take()
        return msgspec.structs.replace(step, messages=messages, is_noisy=not (rests and self._heard.is_quiet))

    def _step(self, operation: Operation, threads: ThreadPoolExecutor) -> Step:
        if isinstance(operation, Ask | Burst):
            asks = operation.asks if isinstance(operation, Burst) else (operation,)
            prompts = [self._prompt(ask) for ask in asks]
            answers = tuple(threads.map(self._ask, asks, prompts))
            for ask, prompt, answer in zip(asks, prompts, answers, strict=True):
                self._asked[ask.id] = prompt, ask
                self._answers[ask.id] = answer
            self._requests += len(asks)
            return self._answered(operation, answers, tuple(self._salt(ask.salt) for ask in asks))
        if isinstance(operation, Cold):
            if "reset" in (self._way, *(self._other.ways[:1] if self._other is not None else ())):
                self._cold_client.reset()
            salts = tuple(self._fresh() for _ in operation.of)
            answers = tuple(threads.map(self._ask_cold, operation.of, salts))
            self._requests += len(answers)
            return self._answered(operation, answers, salts)
        if isinstance(operation, Drop):
            prompt = self._prompt(operation.ask)
            self._client.drop(
                prompt, operation.ask.max_tokens, self._salt(operation.ask.salt), operation.bytes
            )
            self._requests += 1
            return Step(operation=operation, dropped=prompt)
        if isinstance(operation, Reset):
            self._client.reset()
            return Step(operation=operation)
        return self._look(operation)

    def _answered(self, operation: Operation, answers: tuple[Answer, ...], salts: tuple[str, ...]) -> Step:
        return Step(operation=operation, answers=answers, salts=() if self._heard is None else salts)

    def _prompt(self, ask: Ask) -> tuple[int, ...]:
        if ask.after is None:
            return ask.tokens
        before, answer = self._asked[ask.after][0], self._answers[ask.after]
        return (*before, *(answer.tokens or ()), *ask.tokens)

    def _ask(self, ask: Ask, prompt: tuple[int, ...]) -> Answer:
        return self._client.ask(prompt, ask.max_tokens, self._salt(ask.salt))

    @property
    def _cold_client(self) -> Client:
        return self._client if self._other is None else self._other

    def _ask_cold(self, id: int, salt: str) -> Answer:
        prompt, ask = self._asked[id]
        return self._cold_client.ask(prompt, ask.max_tokens, salt, is_cold=True)

    def _salt(self, salt: str) -> str:
        return f"probe-{self._nonce}-{salt}"

    def _fresh(self) -> str:
        self._made += 1
        return f"probe-{self._nonce}-cold-{secrets.token_hex(4)}"

    def _look(self, look: Look) -> Step:
        figures = self._rest()
        self._is_shared |= not (self._has_looked or figures.rests)
        self._has_looked = True
        return Step(operation=look, figures=figures)

    def _rest(self) -> Figures:
        """Wait until the server is idle, unless others use it, and return its metrics."""
        until = time.monotonic() + (0.0 if self._is_shared else REST_SECONDS)
        figures = self._client.figures()
        while not figures.rests and time.monotonic() < until:
            time.sleep(_BETWEEN_LOOKS)
            figures = self._client.figures()
        return figures
