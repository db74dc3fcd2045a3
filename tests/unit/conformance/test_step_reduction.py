"""Fewer operations."""

from __future__ import annotations

from pymllm.conformance.reduction import drop_families, drop_kinds, drop_pairs, drop_runs, keep_end
from pymllm.history.operations import (
    Alloc,
    Evict,
    Free,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Operation,
    Span,
    Unlock,
)
from tests.unit.tiny_player import reduction_of

END = Match(Key((9,)))


def test_the_end_alone_is_tried_with_what_it_needs() -> None:
    """Far away as that may be."""
    operations = [Alloc(3), *[Match(Key((n,))) for n in range(40)], Free((Span(1, 0, 3),)), END]
    reduction = reduction_of(
        operations, lambda them: END in them and any(isinstance(it, Free) for it in them)
    )
    keep_end(reduction)
    assert len(reduction.operations) == 5
    assert reduction.operations[0] == Alloc(3)
    assert reduction.operations[-2:] == (Free((Span(1, 0, 3),)), END)


def test_longer_ends_are_tried_where_short_ones_do_not_do() -> None:
    """Up to the whole program, which stays as it is."""
    operations: list[Operation] = [Evict(5), *[Match(Key((n,))) for n in range(40)]]
    reduction = reduction_of(operations, lambda them: Evict(5) in them)
    keep_end(reduction)
    assert len(reduction.operations) == 41


def test_whole_families_go_with_what_refers_to_them() -> None:
    """Keys that begin alike, in one namespace."""
    operations = [
        Match(Key((1, 2))),
        Lock(1),
        Match(Key((2, 2))),
        Match(Key((1, 3))),
        Match(Key((1, 3), "a")),
        Unlock(2),
    ]
    reduction = reduction_of(operations, lambda them: any(it == Match(Key((2, 2))) for it in them))
    drop_families(reduction)
    assert reduction.operations == (Match(Key((2, 2))),)


def test_kinds_go_as_a_whole_or_but_for_the_last() -> None:
    """A counter that fails late hangs on one kind of operation."""
    operations: list[Operation] = [*[Inspect(), Evict(1), Match(Key((1,)))] * 5]
    reduction = reduction_of(operations, lambda them: them.count(Evict(1)) == 5 and Inspect() in them)
    drop_kinds(reduction)
    assert sorted(map(repr, reduction.operations)) == sorted(map(repr, [*[Evict(1)] * 5, Inspect()]))


def test_runs_go_down_to_single_steps() -> None:
    """What is left cannot lose any step."""
    wanted = [Evict(3), Evict(11), Evict(29)]
    operations: list[Operation] = [Evict(n) for n in range(30)]
    reduction = reduction_of(operations, lambda them: set(wanted) <= set(them))
    drop_runs(reduction)
    assert list(reduction.operations) == wanted


def test_pairs_go_that_need_each_other() -> None:
    """Neither of the two goes alone."""
    operations: list[Operation] = [Evict(1), Evict(2), Evict(3), Evict(2)]
    reduction = reduction_of(operations, lambda them: them.count(Evict(2)) in (0, 2) and Evict(3) in them)
    drop_runs(reduction)
    assert list(reduction.operations) == [Evict(2), Evict(3), Evict(2)]
    drop_pairs(reduction)
    assert list(reduction.operations) == [Evict(3)]


def test_pairs_of_long_programs_are_too_many() -> None:
    """Nothing is played."""
    operations: list[Operation] = [Evict(n) for n in range(30)]
    reduction = reduction_of(operations, lambda them: True)
    drop_pairs(reduction)
    assert len(reduction.operations) == 30


def test_a_hold_goes_with_its_insert() -> None:
    """And the other way round: nothing refers to what is gone."""
    operations = [Alloc(1), Insert(Key((1,)), (Span(1, 0, 1),)), Lock(2), Unlock(3), END]
    reduction = reduction_of(operations, lambda them: END in them)
    drop_runs(reduction)
    assert reduction.operations == (END,)
