"""Wrong prefix caches with a window: the smallest program that shows each fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters import faulty_windows
from pymllm.adapters.faulty import Faulty
from pymllm.history.operations import (
    Alloc,
    Evict,
    FreeSWA,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Operation,
    Span,
)

KEY = Key((1, 2, 3, 4, 5, 6))  # the window is 4 tokens


def insert(length: int, step: int = 0, start: int = 100, evicted: int = 0) -> Insert:
    """Caches the first tokens with slots of a step, or with mere numbers where there is no pool."""
    return Insert(Key(KEY.tokens[:length]), (Span(step, start, start + length),), 0, evicted)


def match(length: int) -> Match:
    return Match(Key(KEY.tokens[:length]))


PROGRAMS: list[tuple[type[Faulty], tuple[Operation, ...]]] = [
    (faulty_windows.DeadWindows, (insert(5, evicted=1), match(1))),
    (faulty_windows.StaleMatches, (insert(2), match(1), Inspect())),
    (faulty_windows.ShortHolds, (insert(4), Lock(1))),
    (faulty_windows.LowBoundaries, (insert(6), Lock(1), match(3), Inspect())),
    (faulty_windows.TwiceProtected, (insert(1), Lock(1), Lock(1))),
    (
        faulty_windows.DeadLeaves,
        (Alloc(5), FreeSWA((Span(1, 0, 1),)), insert(5, 1, 0, evicted=1), Evict(1)),
    ),
    (faulty_windows.LivingTombstones, (insert(1), insert(2, start=200), Evict(0, 1), Inspect())),
    (
        faulty_windows.OneWindowMore,
        (Alloc(2), insert(1, 1, 0), Insert(Key((9,)), (Span(1, 1, 2),)), Evict(0, 1)),
    ),
    (faulty_windows.NoProtection, (Insert(Key((1,)), (Span(0, 100, 101),), prev_prefix_len=1),)),
]


@pytest.mark.parametrize(
    ("faulty", "program"), PROGRAMS, ids=lambda value: getattr(value, "__name__", "program")
)
def test_the_fault_breaks_its_law(
    assert_caught: Callable[..., None], faulty: type[Faulty], program: tuple[Operation, ...]
) -> None:
    """S1 to S7, R8: the last step breaks the law, and the sound sibling keeps it."""
    assert_caught(faulty, *program)


def test_every_class_is_shown() -> None:
    """No fault without a program."""
    assert sorted(faulty.__name__ for faulty, _ in PROGRAMS) == sorted(faulty_windows.__all__)
