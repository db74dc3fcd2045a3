"""The search for the smallest program that still shows a violation on the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import msgspec

from pymllm.probing.judge import judge
from pymllm.probing.programs import TOKENS
from pymllm.probing.records import Ask, Burst, Cold, Drop, History, Operation, Reset, Step, asks_of

Program: TypeAlias = tuple[Operation, ...]
Play: TypeAlias = Callable[[Program], Sequence[Step]]
"""A function that plays a program on a server as good as new, and returns its steps."""

_TRIES = 250
_PLAYS = 3
_RELATED = 8
"""The number of equal first tokens from which two prompts are related rather than alike by chance."""
_BETWEEN = 8
"""The number of latest requests that are tried, one at a time, between the two most similar ones."""


@dataclass(slots=True)
class Shrinker:
    """A shrinker that tries smaller programs until none breaks the law, or its tries or time are used up.

    ``history`` has the head that each try is judged with, its tolerance fixed. ``tell`` is told the number
    of tries.
    """

    history: History
    law: str
    play: Play
    seconds: float
    tell: Callable[[int], None] | None = None
    tries: int = 0
    smallest: History | None = None
    _end: float = 0.0

    def shrink(self, step: int) -> History | None:
        """Return the history of the smallest program found; ``None`` if no program breaks the law again.

        The violation was at ``step``, counted from 1: later steps are left out.
        """
        self._end = time.monotonic() + self.seconds
        steps = self.history.steps[:step]
        program = as_sent(steps)
        # Most often two or three requests are enough, or the requests before, and the last one cold.
        short = (*(it for it in program[:-1] if not isinstance(it, Cold)), program[-1])
        starts = (*_few(program), short, program)
        # What shows in company depends on when requests arrive, so it may need several plays.
        if not any(self._shows(it) for _ in range(_PLAYS) for it in starts):
            return None
        before = None
        while before != self._program() and not self.is_over:
            before = self._program()
            for candidates in (_with_fewer_steps, _with_simpler_steps, _with_shorter_prompts):
                self._pass(candidates)
        return self.smallest

    def confirm(self, play: Play) -> bool:
        """Tell whether the smallest program, played as it is, breaks the law within a few plays."""
        self.play = play
        return self.smallest is not None and any(self._shows(self._program()) for _ in range(_PLAYS))

    def _pass(self, candidates: Callable[[Program], Iterator[Program]]) -> None:
        """Try candidates until none breaks the law; after one that does, continue from the same place."""
        before = None
        while before != self._program() and not self.is_over:
            before = self._program()
            self._sweep(candidates)

    def _sweep(self, candidates: Callable[[Program], Iterator[Program]]) -> None:
        skip = 0
        while not self.is_over:
            tried = 0
            for candidate in candidates(self._program()):
                tried += 1
                if tried <= skip:
                    continue
                if self.is_over or self._shows(candidate):
                    break
            else:
                return
            skip = tried - 1

    def _program(self) -> Program:
        assert self.smallest is not None
        return self.smallest.program

    @property
    def is_over(self) -> bool:
        """Whether tries or time are used up, so that a smaller program may exist."""
        return self.tries >= _TRIES or time.monotonic() > self._end

    def _shows(self, program: Program) -> bool:
        program = _tidied(program)
        if not program:
            return False
        self.tries += 1
        if self.tell is not None:
            self.tell(self.tries)
        history = History(self.history.head, tuple(self.play(program)))
        violation = judge(history).violation
        if violation is None or violation.law != self.law:
            return False
        self.smallest = History(history.head, history.steps[: violation.step])
        return True


def as_sent(steps: Sequence[Step]) -> Program:
    """Return a program with each prompt written out as it was sent, without references."""
    operations = list[Operation]()
    for step in steps:
        operation = step.operation
        if isinstance(operation, Drop):
            ask = msgspec.structs.replace(operation.ask, tokens=step.dropped, after=None)
            operations.append(Drop(ask, operation.bytes))
        elif asks := asks_of(operation):
            sent = tuple(
                msgspec.structs.replace(ask, tokens=answer.prompt, after=None)
                for ask, answer in zip(asks, step.answers, strict=True)
            )
            operations.append(Burst(sent) if isinstance(operation, Burst) else sent[0])
        else:
            operations.append(operation)
    return tuple(operations)


def _tidied(program: Program) -> Program:
    """Remove the cold repetitions of requests that are no longer made."""
    known: set[int] = set()
    kept = list[Operation]()
    for operation in program:
        known |= {ask.id for ask in asks_of(operation)}
        if isinstance(operation, Cold):
            of = tuple(id for id in operation.of if id in known)
            if of:
                kept.append(Cold(of))
        else:
            kept.append(operation)
    return tuple(kept)


def _few(program: Program) -> Iterator[Program]:
    """Yield the last cold request, preceded by the request with which it has most in common.

    Then behind all that it has a beginning in common with. Then with one more between the two, the latest
    first, which may take the memory of the other: one of the same burst, too.
    """
    last = program[-1]
    asks = {ask.id: ask for it in program for ask in asks_of(it)}
    ids = last.of[:1] if isinstance(last, Cold) else tuple(ask.id for ask in asks_of(last))[:1]
    for id in ids:
        *before, one = [ask for ask in asks.values() if ask.id <= id]
        if before:
            other = max(before, key=lambda it: common_length(it.tokens, one.tokens))
            behind = (one, last) if isinstance(last, Cold) else (one,)
            yield (other, *behind)
            if any(isinstance(it, Reset) for it in program):
                yield (other, Reset(), *behind)
            related = [ask for ask in before if common_length(ask.tokens, one.tokens) >= _RELATED]
            if len(related) > 1:
                yield (*related, *behind)
            between = [ask for ask in before if ask is not other][-_BETWEEN:]
            yield from ((other, ask, *behind) for ask in reversed(between))


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of first tokens in which two prompts agree."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))


def _with_fewer_steps(program: Program) -> Iterator[Program]:
    """Yield the program without some consecutive steps, longest runs first."""
    size = len(program) // 2
    while size:
        for at in range(0, len(program), size):
            yield (*program[:at], *program[at + size :])
        size //= 2


def _with_simpler_steps(program: Program) -> Iterator[Program]:
    """Yield the program with a simpler step: a burst split, a stream read to its end, a single namespace."""
    for at, operation in enumerate(program):
        before, behind = program[:at], program[at + 1 :]
        if isinstance(operation, Burst):
            yield (*before, *operation.asks, *behind)
            for left_out in range(len(operation.asks)):
                rest = (*operation.asks[:left_out], *operation.asks[left_out + 1 :])
                yield (*before, Burst(rest) if len(rest) > 1 else rest[0], *behind)
        elif isinstance(operation, Drop):
            yield (*before, operation.ask, *behind)
        elif isinstance(operation, Cold) and len(operation.of) > 1:
            for left_out in range(len(operation.of)):
                yield (*before, Cold((*operation.of[:left_out], *operation.of[left_out + 1 :])), *behind)
    if any(ask.salt for ask in _all_asks(program)):
        yield _changed(program, lambda ask: msgspec.structs.replace(ask, salt=""))


def _with_shorter_prompts(program: Program) -> Iterator[Program]:
    """Yield the program with fewer tokens: equal places cut from all prompts, then single ends."""
    longest = max((len(ask.tokens) for ask in _all_asks(program)), default=0)
    most = max((ask.max_tokens for ask in _all_asks(program)), default=0)
    for tokens in (1, 2, 4):
        if tokens < most:
            yield _changed(program, lambda ask, n=tokens: msgspec.structs.replace(ask, max_tokens=n))  # type: ignore[misc]
    size = 64
    while size:
        for at in range(0, longest, size):
            cut = slice(at, at + size)
            if all(len(ask.tokens) > size or len(ask.tokens) <= at for ask in _all_asks(program)):
                yield _changed(program, lambda ask, it=cut: _without(ask, it))  # type: ignore[misc]
        size //= 4
    for ask in _all_asks(program):
        for kept in (len(ask.tokens) // 2, len(ask.tokens) * 3 // 4, len(ask.tokens) - 1):
            if 0 < kept < len(ask.tokens):
                yield _changed(
                    program,
                    lambda it, id=ask.id, n=kept: _without(it, slice(n, None)) if it.id == id else it,  # type: ignore[misc]
                )


def with_other_tokens(program: Program, random: Random) -> Program:
    """Replace the tokens of all prompts consistently, so that no cache has them yet."""
    ids = [*TOKENS]
    others = dict(zip(ids, random.sample(ids, len(ids)), strict=True))

    def change(ask: Ask) -> Ask:
        return msgspec.structs.replace(ask, tokens=tuple(others.get(token, token) for token in ask.tokens))

    return _changed(program, change)


def _without(ask: Ask, places: slice) -> Ask:
    left = [*ask.tokens]
    del left[places]
    return msgspec.structs.replace(ask, tokens=tuple(left))


def _all_asks(program: Program) -> Iterator[Ask]:
    for operation in program:
        yield from (operation.ask,) if isinstance(operation, Drop) else asks_of(operation)


def _changed(program: Program, change: Callable[[Ask], Ask]) -> Program:
    changed = list[Operation]()
    for operation in program:
        if isinstance(operation, Ask):
            changed.append(change(operation))
        elif isinstance(operation, Burst):
            changed.append(Burst(tuple(map(change, operation.asks))))
        elif isinstance(operation, Drop):
            changed.append(Drop(change(operation.ask), operation.bytes))
        else:
            changed.append(operation)
    return tuple(changed)
