"""What refers to what in a program, what takes the place of what, and fewer operations."""

from __future__ import annotations

import dataclasses
from typing import get_args, get_type_hints

import pytest

from pymllm.conformance.reduction import (
    REFERENCES,
    Program,
    Reduction,
    count_tokens,
    drop_families,
    drop_kinds,
    drop_pairs,
    drop_runs,
    keep_end,
    needed_by,
    only,
    references,
    renumbered,
    weigh,
    without,
)
from pymllm.history import operations as all_operations
from pymllm.history import operations as ops
from pymllm.history.operations import OPERATIONS, Key, Operation, Span
from tests.unit.tiny_player import TinyPlayer, found_in, reduction_in, reduction_of

NUMBERS: dict[str, tuple[str, ...]] = {
    "AddRequest": ("tokens", "limit"),
    "Alloc": ("tokens",),
    "AllocBlocks": ("count",),
    "AllocRows": ("count",),
    "DropStates": ("hashes",),
    "Evict": ("tokens", "secondary"),
    "EvictSlots": ("count",),
    "Fault": ("nth",),
    "Insert": ("prev_prefix_len", "swa_evicted_seqlen"),
    "MoveKV": ("layer", "source", "target", "count"),
    "NameStates": ("hashes",),
    "PickToken": ("at",),
    "ReadKV": ("layer",),
    "ReadLive": ("layer",),
    "ReadStates": ("layer",),
    "RegisterBlocks": ("hashes", "parents"),
    "RestoreLive": ("request",),
    "RunStep": ("next_tokens",),
    "SaveLive": ("requests",),
    "ScheduleChunk": ("limit",),
    "SetClock": ("clock",),
    "SliceKey": ("start", "stop"),
    "StoreState": ("layer", "recurrent", "conv", "ramp"),
    "WriteEntries": ("positions", "values"),
    "WriteKV": ("layer", "slots", "keys", "values"),
    "WriteLive": ("request", "layer", "recurrent", "conv", "ramp"),
    "WriteRow": ("start", "stop", "values"),
    "WriteState": ("layer", "recurrent", "conv", "ramp"),
}
"""Fields of operations that hold numbers and name no step. A new one goes here or into `REFERENCES`."""

PROGRAM: list[Operation] = [
    ops.Alloc(4),  # 1
    ops.Insert(Key((1, 2, 3, 4)), (Span(1, 0, 4),)),  # 2
    ops.Lock(2),  # 3
    ops.Match(Key((1, 2))),  # 4
    ops.Unlock(3),  # 5
    ops.Alloc(2),  # 6
    ops.Free((Span(6, 0, 2),)),  # 7
]


def has_integers(hint: object) -> bool:
    return hint is int or any(has_integers(argument) for argument in get_args(hint))


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_every_field_with_a_number_is_known(kind: type) -> None:
    """A field that names a step and is not known as such would point elsewhere in a shorter program."""
    hints = get_type_hints(kind, vars(all_operations))
    found = {name for name, hint in hints.items() if has_integers(hint)}
    assert found == {*NUMBERS.get(kind.__name__, ()), *REFERENCES.get(kind, ())}


def test_fields_with_spans_are_seen_in_every_operation() -> None:
    """One span, a tuple of them, or none at all."""
    for kind in OPERATIONS:
        hints = get_type_hints(kind, vars(all_operations))
        spans = {name for name, hint in hints.items() if "Span" in str(hint)}
        values = {
            field.name: (Span(9, 0, 1),) if "tuple" in str(hints[field.name]) else Span(9, 0, 1)
            for field in dataclasses.fields(kind)
            if field.name in spans
        }
        others = {
            field.name: 0
            for field in dataclasses.fields(kind)
            if field.name not in spans and field.default is dataclasses.MISSING
        }
        assert list(references(kind(**others, **values))) == [9] * len(spans), kind


def test_none_and_zero_name_no_step() -> None:
    """0 is a number's own name, no token at all, or nothing."""
    assert list(references(ops.Unlock(3, token=0))) == [3]
    assert list(references(ops.Unlock(3, at=1, token=2))) == [3, 1, 2]
    assert list(references(ops.Free((Span(0, 4, 8),)))) == []
    assert list(references(ops.Insert(Key((5,)), None))) == []


def test_what_is_no_reference_keeps_its_number() -> None:
    """Tokens, and rows of the caller's."""
    insert = ops.Insert(Key((2, 5)), (Span(2, 0, 1), Span(0, 2, 5)), state=Span(2, 0, 1))
    assert renumbered(insert, lambda number: number + 1) == ops.Insert(
        Key((2, 5)), (Span(3, 0, 1), Span(0, 2, 5)), state=Span(3, 0, 1)
    )
    live = ops.WriteLive(3, 0, 1, 1)
    assert renumbered(live, lambda number: number + 1) == live
    assert renumbered(ops.Pause(3), lambda number: number + 1) == ops.Pause(4)
    assert renumbered(ops.CopyStates((), (Span(1, 0, 1),)), lambda number: 7) == ops.CopyStates(
        (), (Span(7, 0, 1),)
    )


def test_what_refers_to_a_step_goes_with_it() -> None:
    """A hold needs its node, a release its hold, a free its allocation."""
    assert without(PROGRAM, {2}) == (
        ops.Alloc(4),
        ops.Match(Key((1, 2))),
        ops.Alloc(2),
        ops.Free((Span(3, 0, 2),)),
    )
    assert without(PROGRAM, {1, 6}) == (ops.Match(Key((1, 2))),)
    assert without(PROGRAM, ()) == tuple(PROGRAM)


def test_what_names_a_later_step_makes_no_sense() -> None:
    """It goes, too, so that what is left can be run."""
    assert without([ops.Hash(2), ops.Match(Key((1,))), ops.Hash(2)], ()) == (
        ops.Match(Key((1,))),
        ops.Hash(1),
    )


def test_a_step_is_kept_with_what_it_needs() -> None:
    """And nothing else."""
    assert needed_by(PROGRAM, {5}) == {1, 2, 3, 5}
    assert only(PROGRAM, {5}) == (*PROGRAM[:3], ops.Unlock(3))
    assert only([ops.AllocRows(1), ops.AllocRows(2)], {2}) == (ops.AllocRows(2),)


def program(*operations: Operation, **config: int) -> Program:
    return Program(dict(config), operations)


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (program(ops.Match(Key((9,) * 9))), program(ops.Match(Key(())), ops.Match(Key(())))),
        (program(ops.Alloc(9), ops.Alloc(9)), program(ops.Alloc(1), ops.Free((Span(1, 0, 1),)))),
        (program(ops.Match(Key((7, 7)))), program(ops.Match(Key((1, 1, 1))))),
        (program(ops.AddRequest((7, 7))), program(ops.AddRequest((1, 1, 1)))),
        (program(ops.Match(Key((9,))), slots=1), program(ops.Match(Key((1,))), slots=2)),
        (program(ops.Match(Key((9,)))), program(ops.Match(Key((1,), form="array")))),
        (program(ops.Evict(3)), program(ops.Evict(4))),
    ],
)
def test_what_matters_most_decides(smaller: Program, larger: Program) -> None:
    """Operations, references, tokens, pools, what is unusual, numbers."""
    assert weigh(smaller) < weigh(larger)


def test_only_what_is_smaller_is_played() -> None:
    """And nothing twice."""
    player = TinyPlayer(lambda program: ops.Evict(2) in program.operations)
    start = Program({}, (ops.Evict(2), ops.Evict(3)))
    reduction = Reduction(player, start, found_in(start))
    assert not reduction.attempt((ops.Evict(2), ops.Evict(3)))
    assert not reduction.attempt((ops.Evict(2), ops.Evict(4)))
    assert player.played == []
    assert not reduction.attempt((ops.Evict(3),))
    assert not reduction.attempt((ops.Evict(3),))
    assert len(player.played) == 1
    assert reduction.attempt((ops.Evict(2),))
    assert reduction.operations == (ops.Evict(2),)
    assert [step.operation for step in reduction.found.history.steps] == [ops.Evict(2)]


def test_another_configuration_can_be_tried() -> None:
    """What is not named stays."""
    reduction = reduction_in(
        [ops.Evict(1)], lambda it: it.config["slots"] in (5, 3), {"slots": 5, "pages": 2}
    )
    assert reduction.attempt(reduction.operations, slots=3)
    assert reduction.program.config == {"slots": 3, "pages": 2}
    assert not reduction.attempt(reduction.operations, slots=2)


def test_an_empty_program_weighs_nothing() -> None:
    """Nothing is smaller."""
    assert weigh(program()) == (0, 0, 0, 0, 0, 0)
    assert reduction_of([], lambda them: True).attempt(()) is False


def test_tokens_of_a_history_are_counted() -> None:
    """Those of keys, and of prompts."""
    history = found_in(program(ops.Match(Key((1, 2))), ops.AddRequest((1,)), ops.Evict(4))).history
    assert count_tokens(history) == 3


END = ops.Match(Key((9,)))


def test_the_end_alone_is_tried_with_what_it_needs() -> None:
    """Far away as that may be."""
    operations = [ops.Alloc(3), *[ops.Match(Key((n,))) for n in range(40)], ops.Free((Span(1, 0, 3),)), END]
    reduction = reduction_of(
        operations, lambda them: END in them and any(isinstance(it, ops.Free) for it in them)
    )
    keep_end(reduction)
    assert len(reduction.operations) == 5
    assert reduction.operations[0] == ops.Alloc(3)
    assert reduction.operations[-2:] == (ops.Free((Span(1, 0, 3),)), END)


def test_longer_ends_are_tried_where_short_ones_do_not_do() -> None:
    """Up to the whole program, which stays as it is."""
    operations: list[Operation] = [ops.Evict(5), *[ops.Match(Key((n,))) for n in range(40)]]
    reduction = reduction_of(operations, lambda them: ops.Evict(5) in them)
    keep_end(reduction)
    assert len(reduction.operations) == 41


def test_whole_families_go_with_what_refers_to_them() -> None:
    """Keys that begin alike, in one namespace."""
    operations = [
        ops.Match(Key((1, 2))),
        ops.Lock(1),
        ops.Match(Key((2, 2))),
        ops.Match(Key((1, 3))),
        ops.Match(Key((1, 3), "a")),
        ops.Unlock(2),
    ]
    reduction = reduction_of(operations, lambda them: any(it == ops.Match(Key((2, 2))) for it in them))
    drop_families(reduction)
    assert reduction.operations == (ops.Match(Key((2, 2))),)


def test_kinds_go_as_a_whole_or_but_for_the_last() -> None:
    """A counter that fails late hangs on one kind of operation."""
    operations: list[Operation] = [*[ops.Inspect(), ops.Evict(1), ops.Match(Key((1,)))] * 5]
    reduction = reduction_of(operations, lambda them: them.count(ops.Evict(1)) == 5 and ops.Inspect() in them)
    drop_kinds(reduction)
    assert sorted(map(repr, reduction.operations)) == sorted(map(repr, [*[ops.Evict(1)] * 5, ops.Inspect()]))


def test_runs_go_down_to_single_steps() -> None:
    """What is left cannot lose any step."""
    wanted = [ops.Evict(3), ops.Evict(11), ops.Evict(29)]
    operations: list[Operation] = [ops.Evict(n) for n in range(30)]
    reduction = reduction_of(operations, lambda them: set(wanted) <= set(them))
    drop_runs(reduction)
    assert list(reduction.operations) == wanted


def test_pairs_go_that_need_each_other() -> None:
    """Neither of the two goes alone."""
    operations: list[Operation] = [ops.Evict(1), ops.Evict(2), ops.Evict(3), ops.Evict(2)]
    reduction = reduction_of(
        operations, lambda them: them.count(ops.Evict(2)) in (0, 2) and ops.Evict(3) in them
    )
    drop_runs(reduction)
    assert list(reduction.operations) == [ops.Evict(2), ops.Evict(3), ops.Evict(2)]
    drop_pairs(reduction)
    assert list(reduction.operations) == [ops.Evict(3)]


def test_pairs_of_long_programs_are_too_many() -> None:
    """Nothing is played."""
    operations: list[Operation] = [ops.Evict(n) for n in range(30)]
    reduction = reduction_of(operations, lambda them: True)
    drop_pairs(reduction)
    assert len(reduction.operations) == 30


def test_a_hold_goes_with_its_insert() -> None:
    """And the other way round: nothing refers to what is gone."""
    operations = [ops.Alloc(1), ops.Insert(Key((1,)), (Span(1, 0, 1),)), ops.Lock(2), ops.Unlock(3), END]
    reduction = reduction_of(operations, lambda them: END in them)
    drop_runs(reduction)
    assert reduction.operations == (END,)
