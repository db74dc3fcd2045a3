"""Variations of a step's outcome, and whether the judge accepts each."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.claims import REFUSALS
from pymllm.history.files import Header, Step
from pymllm.history.outcomes import Effect, Evicted, Outcome
from pymllm.oracle.judge import make_judge
from pymllm.oracle.laws.every_class import ANSWERED

FAR = 1 << 20
"""A number to add to another so that no object has the sum."""

_PAGES_CHOSEN = 10


class Asker:
    """A program in which one step's outcome can be varied, with the judge's verdict on each variation."""

    def __init__(self, header: Header, steps: Sequence[Step]) -> None:
        self._header = header
        self._steps = steps

    def accepts(self) -> bool:
        """Tell whether the judge accepts the whole program."""
        try:
            self._judge_before(len(self._steps))
        except (InvariantViolation, ProgramError):
            return False
        return True

    def refuses(self) -> bool:
        """Tell whether the judge finds a broken law in the program."""
        try:
            self._judge_before(len(self._steps))
        except InvariantViolation:
            return True
        except ProgramError:
            return False
        return False

    def lets_pass(self, place: int, outcome: Outcome) -> bool:
        """Tell whether the judge accepts an outcome of the step at a position."""
        judge, step = self._judge_before(place), self._steps[place]
        try:
            judge.judge(step.number, step.operation, outcome)
        except InvariantViolation as violation:
            return violation.law == ANSWERED  # what a variation leaves untold is no other outcome
        return True

    def _judge_before(self, place: int) -> Any:
        judge = make_judge(self._header, coverage=False)
        for step in self._steps[:place]:
            assert step.outcome is not None
            judge.judge(step.number, step.operation, step.outcome)
        return judge


def split_claims(capabilities: Collection[str]) -> frozenset[str]:
    """Return capabilities with `refusals` replaced by the six claims that it includes."""
    known = frozenset(capabilities)
    return known - {"refusals"} | set(REFUSALS) if "refusals" in known else known


def least_needs(header: Header, sound: Sequence[Step], wrong: Sequence[Step]) -> frozenset[str]:
    """Remove each claim that the judge needs neither to accept a right run nor to reject a wrong one."""
    needs = split_claims(header.capabilities)
    for claim in sorted(needs):
        fewer = msgspec.structs.replace(header, capabilities=tuple(sorted(needs - {claim})))
        if Asker(fewer, sound).accepts() and Asker(fewer, wrong).refuses():
            needs = needs - {claim}
    return needs


# -- values ------------------------------------------------------------------------------------------------


def vary(value: Any) -> Iterator[Any]:
    """Yield other values of the same type as a value."""
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, value + 4, 0, value + FAR)
        case str():
            yield value + "?"
        case None:
            yield from (0, 1, "a")
        case list():
            yield from _vary_list(value)
        case dict():
            for name, item in value.items():
                for other in vary(item):
                    yield {**value, name: other}


def _vary_list(value: list[Any]) -> Iterator[list[Any]]:
    if not value:
        yield from ([0], [1], ["?"], [[0, 1]])
        return
    yield value[:-1]
    yield value[1:]
    yield [*value, value[-1]]
    yield value[::-1]
    for place, item in enumerate(value):
        for other in vary(item):
            yield [*value[:place], other, *value[place + 1 :]]


def pages_of(numbers: Sequence[int], page: int) -> list[list[int]]:
    """Return numbers divided into pages, the last of which may be partial."""
    return [list(numbers[at : at + page]) for at in range(0, len(numbers), page)]


def joined(pages: Iterable[Sequence[int]], count: int) -> list[int]:
    """Return pages joined in another order, completing a partial page that is no longer last."""
    pages = list(pages)
    longest = max(map(len, pages))
    whole = [list(range(page[0], page[0] + longest)) for page in pages]
    return list(itertools.chain.from_iterable(whole))[:count]


# -- effects -----------------------------------------------------------------------------------------------


def regrouped(effects: Sequence[Effect]) -> Iterator[tuple[Effect, ...]]:
    """Yield effects in another order, with their slots divided differently into calls."""
    yield tuple(reversed(effects))
    names = list(dict.fromkeys(it.call for it in effects))
    frees = [it for it in effects if it.call != "callback"]
    backs = [it for it in effects if it.call == "callback"]
    joined = [
        Effect(name, tuple(slot for it in frees if it.call == name for slot in it.slots))
        for name in names
        if name != "callback"
    ]
    single = [Effect(it.call, (slot,)) for it in frees for slot in it.slots]
    turned = [msgspec.structs.replace(it, slots=it.slots[::-1]) for it in frees]
    for some in (joined, single, turned):
        for other in ((*some, *backs), (*backs, *some)):
            if other != tuple(effects):
                yield other


def ways_to_evict(
    outcome: Outcome, slots: Iterable[int], page_size: int, *, has_pool: bool, has_window: bool
) -> Iterator[tuple[tuple[int, int, int], tuple[Effect, ...]]]:
    """Yield possible evictions: tokens, tokens of the window, and states, with the freed slots."""
    sizes, result = outcome.sizes, outcome.result
    assert isinstance(result, Evicted)
    states = range(1 + (result.states + 2 if "mamba_evictable_size" in sizes else 0))
    if not has_pool:
        full = range(1 + result.full + sizes.get("total_size", _PAGES_CHOSEN))
        halves = range(1 + (result.swa + len(full) if has_window else 0))
        for counts in itertools.product(full, halves, states):
            yield counts, ()
        return
    pages = sorted({it // page_size for it in slots})
    ways = ("kept", "gone", "half gone", "gone with its half") if has_window else ("kept", "gone")
    for fate in itertools.product(ways, repeat=len(pages)):
        told: dict[str, list[int]] = {"free": [], "free_swa": []}
        swa = 0
        for page, way in zip(pages, fate, strict=True):
            own = range(page * page_size, (page + 1) * page_size)
            told["free"] += own if way.startswith("gone") else ()
            told["free_swa"] += own if way == "half gone" else ()
            swa += page_size * (way in ("half gone", "gone with its half"))
        freed = tuple(Effect(name, tuple(slots)) for name, slots in told.items() if slots)
        bare = tuple(it for it in freed if it.call == "free")
        for count in states:
            yield (len(told["free"]), swa, count), freed
            if bare != freed:
                yield (len(told["free"]), swa, count), bare
