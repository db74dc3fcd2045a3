"""Operations and outcomes as a program is told them, and tells them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from jsonschema import Draft202012Validator

from pymllm.adapters.process.wire import (
    nodes_and_holds_of,
    operations_schema,
    read_outcome,
    spans_of,
    steps_of,
    write_operation,
)
from pymllm.adapters.registry import OWN, load_adapter, make_adapter
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.machines import load_machine, machines_for
from pymllm.errors import ProgramError
from pymllm.history.files import History
from pymllm.history.operations import (
    Alloc,
    Free,
    FreeRow,
    Hash,
    Insert,
    Key,
    Lock,
    Match,
    MoveSWA,
    Operation,
    Span,
    Unlock,
)
from pymllm.history.outcomes import Done, Effect, Outcome, Slots, outcome_from_plain, outcome_to_plain


def numbers(spans: Sequence[Span]) -> list[int]:
    """The numbers that spans stand for, where step 10 gave 100, 101 and so on."""
    return [10 * span.step + place for span in spans for place in range(span.start, span.stop)]


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (Alloc(4), {"op": "alloc", "tokens": 4}),
        (Free((Span(10, 0, 2), Span(0, 7, 8))), {"op": "free", "slots": [100, 101, 7]}),
        (FreeRow(Span(10, 3, 4)), {"op": "free_row", "row": 103}),
        (MoveSWA((Span(0, 1, 2),), ()), {"op": "move_swa", "source": [1], "target": []}),
        (Match(Key((1, (2, 3)), "a", "tensor64")), {"op": "match", "key": {"tokens": [1, [2, 3]],
                                                                           "extra_key": "a"}}),
        (
            Insert(Key((1,)), (Span(10, 0, 1),), 1, form="int32", state=Span(10, 5, 6)),
            {"op": "insert", "key": {"tokens": [1]}, "slots": [100], "prev_prefix_len": 1, "state": 105},
        ),
        (Insert(Key(())), {"op": "insert", "key": {"tokens": []}}),
        (Unlock(3, at=2, token=0), {"op": "unlock", "lock": 3, "at": 2, "token": 0}),
    ],
)  # fmt: skip
def test_slots_are_told_as_numbers_and_defaults_not_at_all(
    operation: Operation, plain: dict[str, object]
) -> None:
    """Nodes and holds stay steps; how an argument lies in memory is not said."""
    assert json.loads(json.dumps(write_operation(operation, numbers))) == plain


def test_one_number_is_exactly_one() -> None:
    """X1: a row is not two."""
    with pytest.raises(ProgramError, match="names 2 numbers where exactly one is meant"):
        write_operation(FreeRow(Span(10, 0, 2)), numbers)


def test_an_operation_names_steps_in_three_ways() -> None:
    """By spans, for a node, and for a hold."""
    insert = Insert(Key((1,)), (Span(4, 0, 1), Span(0, 3, 4)), state=Span(5, 0, 1))
    assert spans_of(insert) == [Span(4, 0, 1), Span(0, 3, 4), Span(5, 0, 1)]
    assert list(steps_of(insert)) == [4, 0, 5]
    assert spans_of(Insert(Key((1,)))) == []
    assert nodes_and_holds_of(Lock(3)) == nodes_and_holds_of(Hash(3)) == ((3,), ())
    assert nodes_and_holds_of(Unlock(3)) == ((), (3,))
    assert nodes_and_holds_of(Unlock(3, at=1, token=2)) == ((1,), (3, 2))
    assert nodes_and_holds_of(Unlock(3, token=0)) == ((), (3,))
    assert nodes_and_holds_of(Alloc(3)) == ((), ())


@pytest.fixture(scope="module")
def histories() -> list[History]:
    """What machines of every kind do with an adapter of ours."""
    found = []
    for entry in OWN:
        adapter = load_adapter(entry)
        config = dict(adapter.CONFIGURATIONS[-1])
        machine = load_machine(machines_for(adapter.KIND, make_adapter(entry.name, config).capabilities)[0])
        found.append(drive(make_machine(machine, entry.name, config), 3, 15).examiner.history)
    return found


def test_every_operation_that_is_written_keeps_to_the_schema(histories: list[History]) -> None:
    """Of every kind."""
    validator = Draft202012Validator(operations_schema())
    written = [
        json.loads(json.dumps(write_operation(step.operation, lambda spans: [5] * len(spans))))
        for history in histories
        for step in history.steps
    ]
    assert len(written) > len(OWN)
    assert [plain for plain in written if not validator.is_valid(plain)] == []
    assert not validator.is_valid({**written[0], "no_such_field": 1})


def test_every_outcome_is_read_as_a_history_reads_it(histories: list[History]) -> None:
    """The quick reader and the obvious one agree."""
    count = 0
    for step in (step for history in histories for step in history.steps):
        assert step.outcome is not None
        plain = json.loads(json.dumps(outcome_to_plain(step.outcome)))
        assert read_outcome(plain) == outcome_from_plain(plain) == step.outcome
        count += 1
    assert count > 100


def test_an_outcome_needs_no_effects_and_no_sizes() -> None:
    """Where there are none; empty ones are the same."""
    for more in ({}, {"effects": []}, {"sizes": {}}, {"effects": [], "sizes": {}}):
        assert read_outcome({"result": {"is": "done"}, **more}) == Outcome(Done())
    told = {
        "result": {"is": "slots", "slots": [3]},
        "effects": [{"call": "free", "slots": [1]}],
        "sizes": {"a": 1},
    }
    assert read_outcome(told) == Outcome(Slots((3,)), (Effect("free", (1,)),), {"a": 1})


@pytest.mark.parametrize(
    "plain",
    [
        7,
        [],
        {},
        {"result": None},
        {"result": {}},
        {"result": {"is": "done"}, "sizes": None},
        {"result": {"is": "done"}, "effects": {}},
        {"result": {"is": "done"}, "effects": [{"slots": [1]}]},
        {"result": {"is": "done"}, "effects": [{"call": "free", "slots": [1.5]}]},
        {"result": {"is": "done"}, "sizes": []},
        {"result": {"is": "done"}, "sizes": {"a": True}},
        {"result": {"is": "done"}, "more": 1},
        {"result": {"is": "done", "more": 1}},
        {"result": {"is": "what"}},
        {"result": {"is": ["done"]}},
        {"result": {"is": "slots", "slots": {"1": 2}}},
        {"result": {"is": "inserted", "prefix_len": 0, "adopted": [[0]]}},
        {"result": {"is": "inserted", "prefix_len": 0, "adopted": [7]}},
        {"result": {"is": "inserted", "prefix_len": 0, "adopted": 7}},
        {"result": {"is": "hashes", "digests": "ab"}},
        {"result": {"is": "locked", "token": 1.5}},
    ],
)
def test_what_is_no_outcome_is_refused_with_words(plain: object) -> None:
    """X1: by the obvious reader, which knows them."""
    with pytest.raises(ValueError, match=r".") as quick:
        read_outcome(plain)
    with pytest.raises(ValueError, match=r".") as obvious:
        outcome_from_plain(plain)
    assert str(quick.value) == str(obvious.value)
