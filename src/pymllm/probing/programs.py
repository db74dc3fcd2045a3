"""Random programs of requests, from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from pymllm.probing.records import Ask, Burst, Cold, Drop, Look, Operation, Reset, asks_of

TOKENS = range(32, 127)
"""Token ids for prompts: printable ASCII where ids are bytes, common tokens of most vocabularies."""

_PAGES = (16, 32, 64)
"""Usual page sizes, at whose multiples prompts are cut, since servers do not report theirs."""
_CUT_OUT = 8
"""The number of tokens cut from the middle of a prompt."""
_CROSSED = 0.2
"""The share of prompts that continue, from a page's end on, as another prompt of the namespace."""
_SALTS = ("", "", "a", "b")
_ROUND = 15
"""The number of requests in a row before their cold repetition."""
_RESETS = 0.4
"""The share of rounds that begin with a reset, after which an earlier request comes first."""
_MEASURED, _TIMES = 3, 3
"""The number of prompts whose spread is measured, and of lone requests for each."""
_FURTHER = 4
"""The number of tokens by which the measurement extends an answer."""


class Generator:
    """A generator of a probe's program: a measurement first, then an endless series of rounds.

    Parameters
    ----------
    seed : int
        Equal seeds give equal programs.
    longest : int
        Most tokens of a prompt.
    max_tokens : int
        Tokens of an answer.
    has_salts, can_reset : bool
        Whether the server has namespaces, and whether its cache can be emptied.
    """

    def __init__(self, seed: int, *, longest: int, max_tokens: int, has_salts: bool, can_reset: bool) -> None:
        self._random = Random(seed)
        self._longest = longest
        self._max_tokens = max_tokens
        self._has_salts = has_salts
        self._can_reset = can_reset
        self._made = 0
        self._pool = [self._draw(longest) for _ in range(4)]
        # Documents with a common beginning, such as a system prompt.
        self._pool += [(*document[: longest // 2], *self._draw(longest // 2)) for document in self._pool[:2]]
        self._known: list[Ask] = []

    def measure(self) -> tuple[Operation, ...]:
        """Return the operations that measure the spread: prompts cold, alone, in parallel, and just cached.

        What was just cached is the beginning of a prompt, a prompt with its answer, and a whole prompt.
        """
        asks, further, whole = list[Ask](), list[Ask](), list[Ask]()
        for at in range(_MEASURED):
            prompt = self._draw(self._longest - 8 * at)
            kept = prompt[: max(0, len(prompt) - self._max_tokens - _FURTHER)]
            if kept:
                begun = Ask(self._name(), kept, self._max_tokens)
                further.append(Ask(self._name(), prompt[:_FURTHER], self._max_tokens, after=begun.id))
                asks += begun, further[-1]
            asks.append(Ask(self._name(), prompt, self._max_tokens))
            whole.append(Ask(self._name(), prompt, self._max_tokens))
            asks.append(whole[-1])
        alone = [Cold((ask.id,)) for _ in range(_TIMES) for ask in whole]
        alone += [Cold((ask.id,)) for ask in further]
        return (Look(), *asks, *alone, Cold(tuple(ask.id for ask in whole)), Look())

    def round(self, requests: int) -> tuple[Operation, ...]:
        """Draw a number of requests, and repeat each of them cold; those of a burst also in parallel."""
        asked, operations = 0, list[Operation]()
        most = min(requests, _ROUND)
        if self._known and self._can_reset and self._random.random() < _RESETS:
            before = self._random.choice([ask for ask in self._known if ask.after is None])
            again = Ask(self._name(), before.tokens, self._max_tokens, before.salt)
            self._known.append(again)
            operations += Reset(), again
            asked += 1
        while asked < most:
            operation = self._draw_operation(most - asked)
            operations.append(operation)
            asked += len(asks_of(operation)) or 1
        made = [asks_of(operation) for operation in operations]
        colds: list[Operation] = [Cold((ask.id,)) for asks in made for ask in asks]
        colds += [Cold(tuple(ask.id for ask in asks)) for asks in made if len(asks) > 1]
        return (*operations, Look(), *colds, Look())

    def rounds(self, requests: int | None) -> Iterator[tuple[Operation, ...]]:
        """Yield rounds with so many requests in total; endless if no number is given."""
        left = requests
        while left is None or left > 0:
            operations = self.round(_ROUND if left is None else left)
            if left is not None:
                left -= requests_of(operations)
            yield operations

    def _draw_operation(self, most: int) -> Operation:
        kind = self._random.random()
        if kind < 0.12:
            ask = self._draw_ask(self._known)
            self._known.remove(ask)  # without an answer, nothing continues it
            return Drop(ask, self._random.choice((0, 0, 1, 100, 600)))
        if kind < 0.35 and most > 1:
            count = self._random.randint(2, min(4, most))
            known = [*self._known]
            return Burst(tuple(self._draw_ask(known) for _ in range(count)))
        return self._draw_ask(self._known)

    def _draw_ask(self, known: Sequence[Ask]) -> Ask:
        salt = self._random.choice(_SALTS) if self._has_salts else ""
        after: int | None = None
        tokens: tuple[int, ...] = ()
        if known and self._random.random() < 0.25:
            before = self._random.choice(known[-8:])
            # Its prompt may be a continuation, too: chains stay below the longest by being refused here.
            if self._length(before) + self._max_tokens + 8 <= self._longest:
                after, salt = before.id, before.salt
                tokens = self._draw(self._random.randint(1, 8))
        crossed = self._cross([ask for ask in known if ask.salt == salt]) if after is None else ()
        if crossed:
            tokens = crossed
        elif after is None:
            document = self._random.choice(self._pool)
            kept = document[: self._cut()]
            own = self._random.choice((0, 0, 1, 5, 17, 40))
            tail = self._draw(min(own, self._longest - len(kept)))
            # The document with a piece cut out, where as much of it is left: a chat that lost its middle.
            later = document[len(kept) + _CUT_OUT :][: len(tail)]
            tokens = (*kept, *(later if len(later) == len(tail) > _CUT_OUT else tail))
        ask = Ask(self._name(), tokens, self._max_tokens, salt, after)
        self._known.append(ask)
        return ask

    def _cross(self, known: Sequence[Ask]) -> tuple[int, ...]:
        """Return, in some draws, the beginning of one prompt followed by an earlier prompt, or nothing.

        They meet at the end of a page, and a page of the earlier prompt follows whole. So a server that knows
        pages by their own tokens, by their place, or by the length and the last tokens of a prompt has both
        parts, and not the prompt.
        """
        if self._random.random() >= _CROSSED:
            return ()
        page = self._random.choice(_PAGES)
        whole = [ask.tokens for ask in known if ask.after is None and len(ask.tokens) >= page]
        pairs = [
            (one[:page], other[page:])
            for one in whole
            for other in whole
            if len(other) > 2 * page and one[:page] != other[:page]
        ]
        if not pairs:
            return ()
        begun, rest = self._random.choice(pairs)
        return (*begun, *rest)

    def _cut(self) -> int:
        """Draw the length of a prefix: at a page's end, just before or after it, or anywhere."""
        page = self._random.choice(_PAGES)
        at = page * self._random.randint(1, max(1, self._longest // page)) + self._random.choice((-1, 0, 1))
        if self._random.random() < 0.2:
            at = self._random.randint(1, self._longest)
        return max(1, min(at, self._longest))

    def _length(self, ask: Ask) -> int:
        if ask.after is None:
            return len(ask.tokens)
        before = next(it for it in self._known if it.id == ask.after)
        return self._length(before) + before.max_tokens + len(ask.tokens)

    def _draw(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.choices(TOKENS, k=count))

    def _name(self) -> int:
        self._made += 1
        return self._made


def requests_of(operations: tuple[Operation, ...]) -> int:
    """Return the number of requests in a program, including dropped ones but without cold repetitions."""
    return sum(len(asks_of(it)) + isinstance(it, Drop) for it in operations)
