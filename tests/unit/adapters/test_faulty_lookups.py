"""Prefix caches with wrong matches and inserts: the smallest program that shows each fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters import faulty_lookups
from pymllm.adapters.faulty import Faulty
from pymllm.history.operations import Alloc, Insert, Inspect, Key, Match, Operation, Span

ONE, TWO = Key((7,)), Key((7, 8))


def insert(key: Key, step: int = 0, start: int = 100, short: int = 0) -> Insert:
    """Caches a key with slots of a step, or with mere numbers where there is no pool."""
    return Insert(key, (Span(step, start, start + len(key.tokens) - short),))


def own(key: Key, step: int, start: int = 0) -> Insert:
    return insert(key, step, start)


PROGRAMS: list[tuple[type[Faulty], tuple[Operation, ...]]] = [
    (faulty_lookups.ShortMatches, (insert(ONE), Match(ONE))),
    (faulty_lookups.BottomUpSlots, (Alloc(2), own(TWO, 1), Match(ONE), Match(TWO))),
    (faulty_lookups.SilentHits, (insert(TWO), Match(TWO), Match(ONE), Inspect())),
    (faulty_lookups.SplitViews, (insert(TWO), Match(ONE), Inspect())),
    (faulty_lookups.SharedPages, (Alloc(2), own(TWO, 1), Match(ONE), Inspect())),
    (faulty_lookups.FreedDuplicates, (Alloc(2), own(ONE, 1), own(ONE, 1, 1))),
    (faulty_lookups.OverstatedAdoption, (insert(ONE), insert(TWO, 0, 200))),
    (faulty_lookups.ZeroPrefix, (insert(ONE), insert(ONE, 0, 200))),
    (faulty_lookups.ShortValues, (insert(TWO, short=1),)),
    (faulty_lookups.EarlyRefusal, (insert(TWO, short=1),)),
    (faulty_lookups.EmptyNodes, (insert(ONE), insert(ONE, 0, 200), Inspect())),
]


@pytest.mark.parametrize(
    ("faulty", "program"), PROGRAMS, ids=lambda value: getattr(value, "__name__", "program")
)
def test_the_fault_breaks_its_law(
    assert_caught: Callable[..., None], faulty: type[Faulty], program: tuple[Operation, ...]
) -> None:
    """R1 to R4, R9, R10, X1, X5, E1: the last step breaks the law, and the sound sibling keeps it."""
    assert_caught(faulty, *program)


def test_every_class_is_shown() -> None:
    """No fault without a program."""
    assert sorted(faulty.__name__ for faulty, _ in PROGRAMS) == sorted(faulty_lookups.__all__)
