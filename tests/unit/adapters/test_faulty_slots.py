"""Wrong slot allocators: the smallest program that shows each fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters import faulty_slots
from pymllm.adapters.faulty import Faulty
from pymllm.history.operations import Alloc, BeginGroup, Clear, Free, Operation, Span

FIRST = Free((Span(1, 0, 1),))

PROGRAMS: list[tuple[type[Faulty], tuple[Operation, ...]]] = [
    (faulty_slots.SlotZero, (Alloc(1),)),
    (faulty_slots.BackwardSlots, (Alloc(2),)),
    (faulty_slots.EagerReuse, (Alloc(1), FIRST, Alloc(1))),
    (faulty_slots.MergingFailure, (Alloc(1), FIRST, Alloc(13), Alloc(1))),
    (faulty_slots.DoubleFree, (Alloc(1), FIRST, FIRST)),
    (faulty_slots.HalfHeardFrees, (Alloc(2), Free((Span(1, 1, 2),)))),
    (faulty_slots.NestedGroups, (BeginGroup(), BeginGroup())),
    (faulty_slots.UnsortedClear, (Alloc(1), Clear(), Alloc(1))),
    (faulty_slots.ForgottenRing, (Alloc(3), Free((Span(1, 2, 3),)), Clear(), Alloc(3))),
    (faulty_slots.ForgottenHalves, (Alloc(1), FIRST)),
    (faulty_slots.SharedHalves, (Alloc(2),)),
]


@pytest.mark.parametrize(
    ("faulty", "program"), PROGRAMS, ids=lambda value: getattr(value, "__name__", "program")
)
def test_the_fault_breaks_its_law(
    assert_caught: Callable[..., None], faulty: type[Faulty], program: tuple[Operation, ...]
) -> None:
    """A1 to A7, X4, X7: the last step breaks the law, and the sound sibling keeps it."""
    assert_caught(faulty, *program)


def test_every_class_is_shown() -> None:
    """No fault without a program."""
    assert sorted(faulty.__name__ for faulty, _ in PROGRAMS) == sorted(faulty_slots.__all__)
