"""Fewer slots."""

from __future__ import annotations

import pytest

from pymllm.conformance.record_reduction import cut_spans, shrink_allocations, untangle_inserts
from pymllm.history.operations import (
    Alloc,
    AllocBlocks,
    Free,
    Insert,
    Key,
    Match,
    ReleaseBlocks,
    Span,
)
from tests.unit.tiny_player import reduction_of


@pytest.mark.parametrize(
    ("start", "stop", "left"),
    [
        (0, 0, (Span(1, 0, 4), Span(2, 1, 3))),
        (1, 3, (Span(1, 0, 1), Span(1, 3, 4), Span(2, 1, 3))),
        (3, 5, (Span(1, 0, 3), Span(2, 2, 3))),
        (0, 4, (Span(2, 1, 3),)),
        (0, 9, ()),
    ],
)
def test_places_are_cut_over_all_spans(start: int, stop: int, left: tuple[Span, ...]) -> None:
    """As from a row of the numbers themselves."""
    assert cut_spans((Span(1, 0, 4), Span(2, 1, 3)), start, stop) == left


def test_what_meets_again_is_one_span() -> None:
    """Two neighbours of one step."""
    assert cut_spans((Span(1, 0, 2), Span(3, 0, 1), Span(1, 2, 4)), 2, 3) == (Span(1, 0, 4),)


def test_an_allocation_gives_what_is_named_and_no_more() -> None:
    """Whole pages; spans follow."""
    operations = [Alloc(12), Insert(Key((1,) * 4), (Span(1, 4, 8),)), Free((Span(1, 10, 12),))]
    reduction = reduction_of(operations, lambda them: len(them) == 3, {"page_size": 4})
    shrink_allocations(reduction)
    assert reduction.operations == (
        Alloc(8),
        Insert(Key((1,) * 4), (Span(1, 0, 4),)),
        Free((Span(1, 6, 8),)),
    )


def test_blocks_are_allocated_likewise() -> None:
    """One by one, whatever a page is."""
    reduction = reduction_of(
        [AllocBlocks(9), ReleaseBlocks((Span(1, 7, 8), Span(1, 2, 3)))], lambda them: len(them) == 2
    )
    shrink_allocations(reduction)
    assert reduction.operations == (AllocBlocks(2), ReleaseBlocks((Span(1, 1, 2), Span(1, 0, 1))))


def test_inserts_take_their_slots_from_one_allocation() -> None:
    """What a match gave is no longer needed."""
    operations = [
        Alloc(2),
        Match(Key((1, 2))),
        Alloc(1),
        Insert(Key((1, 2, 3)), (Span(2, 0, 2), Span(3, 0, 1))),
        Insert(Key((1, 2)), (Span(1, 0, 2),)),
    ]
    reduction = reduction_of(operations, lambda them: len(them) == 5)
    untangle_inserts(reduction)
    assert reduction.operations[2:] == (
        Alloc(3),
        Insert(Key((1, 2, 3)), (Span(3, 0, 3),)),
        Insert(Key((1, 2)), (Span(1, 0, 2),)),
    )


def test_one_insert_is_untangled_where_all_cannot_be() -> None:
    """The others keep what they have."""
    tangled = Insert(Key((1, 2)), (Span(1, 0, 1), Span(2, 0, 1)))
    operations = [Alloc(1), Alloc(1), tangled, tangled]
    reduction = reduction_of(operations, lambda them: len(them) == 4 and them[2] == tangled)
    untangle_inserts(reduction)
    assert reduction.operations[2] == tangled
    assert reduction.operations[3] == Insert(Key((1, 2)), (Span(2, 0, 2),))
