"""Wrong prefix caches with states: the smallest program that shows each fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters import faulty_mamba
from pymllm.adapters.faulty import Faulty
from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Evict,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Operation,
    ReadStates,
    Span,
    Unlock,
    WriteState,
)


def insert(tokens: tuple[int, ...], start: int = 0, state: int | None = None) -> Insert:
    """Caches tokens with slots of the first step, and perhaps the state in the track slot of another."""
    track_slot = None if state is None else Span(state, 0, 1)
    return Insert(Key(tokens), (Span(1, start, start + len(tokens)),), state=track_slot)


PROGRAMS: list[tuple[type[Faulty], tuple[Operation, ...]]] = [
    (
        faulty_mamba.InheritedStates,
        (Alloc(2), AllocTrack(), AllocTrack(), insert((1,), state=2), insert((1, 2), state=3)),
    ),
    (faulty_mamba.StatelessMatches, (Alloc(1), insert((1,)), Match(Key((1,))))),
    (
        faulty_mamba.CopiedStates,
        (Alloc(2), AllocTrack(), insert((1, 2), state=2), insert((1,)), Inspect()),
    ),
    (
        faulty_mamba.StolenLocks,
        (Alloc(2), AllocTrack(), insert((1,), state=2), insert((1, 2)), Lock(3), Lock(4), Unlock(6)),
    ),
    (
        faulty_mamba.StatesAsTokens,
        (
            *(Alloc(3), AllocTrack(), AllocTrack()),
            *(insert((1, 1), state=2), insert((2,), 2, state=3)),
            Evict(0, 2),
        ),
    ),
    (faulty_mamba.TokensAsStates, (Alloc(2), AllocTrack(), insert((1, 2), state=2))),
    (
        faulty_mamba.FreedStates,
        (Alloc(1), AllocTrack(), AllocTrack(), insert((1,), state=2), insert((1,), state=3)),
    ),
    (
        faulty_mamba.UntouchedLists,
        (Alloc(2), insert((1,)), insert((2,), 1), insert((1,)), Inspect()),
    ),
    (
        faulty_mamba.OverwrittenStates,
        (
            *(Alloc(2), AllocTrack(), AllocTrack()),
            *(WriteState(0, Span(2, 0, 1), 1, 2), WriteState(0, Span(3, 0, 1), 3, 4)),
            *(insert((1,), state=2), insert((1, 2), state=3), ReadStates(0)),
        ),
    ),
    (
        faulty_mamba.WipedStates,
        (
            *(Alloc(1), AllocTrack(), WriteState(0, Span(2, 0, 1), 1, 2), insert((1,), state=2)),
            *(Lock(4), Unlock(5), ReadStates(0)),
        ),
    ),
]


@pytest.mark.parametrize(
    ("faulty", "program"), PROGRAMS, ids=lambda value: getattr(value, "__name__", "program")
)
def test_the_fault_breaks_its_law(
    assert_caught: Callable[..., None], faulty: type[Faulty], program: tuple[Operation, ...]
) -> None:
    """Each of M1 to M8, and E1: the last step of the program is refused, and the sound sibling takes it."""
    assert_caught(faulty, *program)


def test_every_fault_of_this_module_has_a_program() -> None:
    """No wrong implementation stands here untried."""
    assert {faulty.__name__ for faulty, _ in PROGRAMS} == set(faulty_mamba.__all__)
