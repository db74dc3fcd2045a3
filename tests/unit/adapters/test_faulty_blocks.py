"""Wrong block allocators: the smallest program that shows each fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters import faulty_blocks
from pymllm.adapters.faulty import Faulty
from pymllm.history.operations import (
    AllocBlocks,
    AllocSlots,
    DropStates,
    EvictSlots,
    Fault,
    Inspect,
    NameStates,
    Operation,
    ReadLive,
    ReadStates,
    RegisterBlocks,
    ReleaseBlocks,
    Reset,
    RestoreLive,
    RetainBlocks,
    SaveLive,
    SetClock,
    Span,
    StampBlocks,
    StoreState,
    WriteLive,
)

ONE, TWO = Span(1, 0, 1), Span(1, 1, 2)
NOBODYS = Span(0, 99, 100)

CHAIN: tuple[Operation, ...] = (AllocBlocks(2), RegisterBlocks((Span(1, 0, 2),), (11, 22)))
CACHED: tuple[Operation, ...] = (*CHAIN, ReleaseBlocks((Span(1, 0, 2),)))
WITH_STATE: tuple[Operation, ...] = (AllocBlocks(2), AllocSlots((ONE,)))
THREE: tuple[Operation, ...] = (
    AllocBlocks(4),
    RegisterBlocks((Span(1, 0, 4),), (11, 22, 33, 44)),
    AllocSlots((Span(1, 0, 3),)),
    SetClock(1),
    StampBlocks((ONE,)),
    ReleaseBlocks((Span(1, 0, 4),)),
)

PROGRAMS: list[tuple[type[Faulty], tuple[Operation, ...]]] = [
    (faulty_blocks.OldestBlocks, (*CACHED, AllocBlocks(7))),
    (faulty_blocks.ReleasesOnce, (AllocBlocks(1), RetainBlocks((ONE,)), ReleaseBlocks((ONE, ONE)))),
    (
        faulty_blocks.LastRegistrations,
        (*CHAIN, AllocBlocks(1), RegisterBlocks((Span(3, 0, 1),), (11,)), Inspect()),
    ),
    (
        faulty_blocks.ForeignParents,
        (*CHAIN, AllocBlocks(2), RegisterBlocks((Span(3, 0, 2),), (11, 33)), Inspect()),
    ),
    (faulty_blocks.StaleIndex, (*CHAIN, Reset(), Inspect())),
    (faulty_blocks.PartialReleases, (AllocBlocks(1), ReleaseBlocks((ONE, NOBODYS)))),
    (faulty_blocks.FailingEvictions, (*CACHED, AllocBlocks(9))),
    (faulty_blocks.EarlyObserver, (AllocBlocks(1), ReleaseBlocks((ONE,)))),
    (faulty_blocks.OpenObserver, (AllocBlocks(1), Fault("reenter"), ReleaseBlocks((ONE,)))),
    (faulty_blocks.UnsettledErrors, (AllocBlocks(1), Fault("callback"), ReleaseBlocks((ONE,)))),
    (faulty_blocks.LoudReset, (AllocBlocks(1), Reset())),
    (faulty_blocks.UnheardBlocks, (AllocBlocks(1), ReleaseBlocks((ONE,)))),
    (faulty_blocks.StaleSlots, (*WITH_STATE, DropStates((ONE,)), Inspect())),
    (
        faulty_blocks.KeptNames,
        (*CHAIN, AllocSlots((ONE,)), NameStates((ONE,), (11,)), DropStates((ONE,)), Inspect()),
    ),
    (
        faulty_blocks.ForeignNames,
        (
            *(*CHAIN, AllocSlots((ONE,)), NameStates((ONE,), (11,))),
            *(DropStates((TWO,), "deregistered", (11,)), Inspect()),
        ),
    ),
    (faulty_blocks.EvictedBatch, (*THREE, AllocSlots((TWO, Span(1, 3, 4))))),
    (faulty_blocks.LeakingBatches, (AllocBlocks(4), AllocSlots((Span(1, 0, 4),)))),
    (faulty_blocks.YoungestSlots, (*THREE, EvictSlots(1))),
    (
        faulty_blocks.OneLayerSaves,
        (*WITH_STATE, WriteLive(0, 1, 5, 6), SaveLive((Span(2, 0, 1),), (0,)), ReadStates(1)),
    ),
    (
        faulty_blocks.RequestsAsRows,
        (*WITH_STATE, StoreState(ONE, 0, 5, 6), RestoreLive(0, ONE), ReadLive(0)),
    ),
    (
        faulty_blocks.WipedLive,
        (AllocBlocks(1), WriteLive(0, 0, 5, 6), RestoreLive(0, ONE), ReadLive(0)),
    ),
    (faulty_blocks.StaleStates, (*WITH_STATE, StoreState(ONE, 0, 5, 6), Reset(), ReadStates(0))),
]


@pytest.mark.parametrize(
    ("faulty", "program"), PROGRAMS, ids=lambda value: getattr(value, "__name__", "program")
)
def test_the_fault_breaks_its_law(
    assert_caught: Callable[..., None], faulty: type[Faulty], program: tuple[Operation, ...]
) -> None:
    """C1 to C7, C9, X1, X2, X4, X6, X7: the last step breaks the law, and the sound sibling keeps it."""
    assert_caught(faulty, *program)


@pytest.mark.parametrize(
    ("faulty", "program"),
    [
        (faulty_blocks.EarlyObserver, (AllocBlocks(1), Fault("callback"), ReleaseBlocks((ONE,)))),
        (faulty_blocks.RequestsAsRows, (*WITH_STATE, RestoreLive(3, ONE))),
        (faulty_blocks.RequestsAsRows, (AllocBlocks(1), RestoreLive(0, ONE))),
    ],
)
def test_the_rest_of_it_is_as_it_should_be(faulty: type[Faulty], program: tuple[Operation, ...]) -> None:
    """One fault each: errors pass through, and misuse is refused."""
    sound = [_last_result(faulty.SOUND, faulty, program), _last_result("faulty", faulty, program)]
    assert sound[0] == sound[1]


def _last_result(name: str, faulty: type[Faulty], program: tuple[Operation, ...]) -> object:
    config = dict(faulty.CONFIGURATIONS[0])  # type: ignore[attr-defined]
    adapter = (faulty_blocks.Blocks if name == faulty.SOUND else faulty)(name, config)
    outcomes = [adapter.apply(step, operation) for step, operation in enumerate(program, 1)]
    return getattr(outcomes[-1].result, "error", outcomes[-1].result)


def test_every_class_is_shown() -> None:
    """No fault without a program."""
    assert sorted(faulty.__name__ for faulty, _ in PROGRAMS) == sorted(faulty_blocks.__all__)
