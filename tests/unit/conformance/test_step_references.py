"""What refers to what in a program."""

from __future__ import annotations

import dataclasses
from typing import get_args, get_type_hints

import pytest

from pymllm.conformance.reduction import REFERENCES, needed_by, only, references, renumbered, without
from pymllm.history import operations as all_operations
from pymllm.history.operations import (
    OPERATIONS,
    Alloc,
    AllocRows,
    CopyStates,
    Free,
    Hash,
    Insert,
    Key,
    Lock,
    Match,
    Operation,
    Pause,
    Span,
    Unlock,
    WriteLive,
)

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
    Alloc(4),  # 1
    Insert(Key((1, 2, 3, 4)), (Span(1, 0, 4),)),  # 2
    Lock(2),  # 3
    Match(Key((1, 2))),  # 4
    Unlock(3),  # 5
    Alloc(2),  # 6
    Free((Span(6, 0, 2),)),  # 7
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
    assert list(references(Unlock(3, token=0))) == [3]
    assert list(references(Unlock(3, at=1, token=2))) == [3, 1, 2]
    assert list(references(Free((Span(0, 4, 8),)))) == []
    assert list(references(Insert(Key((5,)), None))) == []


def test_what_is_no_reference_keeps_its_number() -> None:
    """Tokens, and rows of the caller's."""
    insert = Insert(Key((2, 5)), (Span(2, 0, 1), Span(0, 2, 5)), state=Span(2, 0, 1))
    assert renumbered(insert, lambda number: number + 1) == Insert(
        Key((2, 5)), (Span(3, 0, 1), Span(0, 2, 5)), state=Span(3, 0, 1)
    )
    live = WriteLive(3, 0, 1, 1)
    assert renumbered(live, lambda number: number + 1) == live
    assert renumbered(Pause(3), lambda number: number + 1) == Pause(4)
    assert renumbered(CopyStates((), (Span(1, 0, 1),)), lambda number: 7) == CopyStates((), (Span(7, 0, 1),))


def test_what_refers_to_a_step_goes_with_it() -> None:
    """A hold needs its node, a release its hold, a free its allocation."""
    assert without(PROGRAM, {2}) == (Alloc(4), Match(Key((1, 2))), Alloc(2), Free((Span(3, 0, 2),)))
    assert without(PROGRAM, {1, 6}) == (Match(Key((1, 2))),)
    assert without(PROGRAM, ()) == tuple(PROGRAM)


def test_what_names_a_later_step_makes_no_sense() -> None:
    """It goes, too, so that what is left can be run."""
    assert without([Hash(2), Match(Key((1,))), Hash(2)], ()) == (Match(Key((1,))), Hash(1))


def test_a_step_is_kept_with_what_it_needs() -> None:
    """And nothing else."""
    assert needed_by(PROGRAM, {5}) == {1, 2, 3, 5}
    assert only(PROGRAM, {5}) == (*PROGRAM[:3], Unlock(3))
    assert only([AllocRows(1), AllocRows(2)], {2}) == (AllocRows(2),)
