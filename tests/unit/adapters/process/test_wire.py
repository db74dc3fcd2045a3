"""Operations and outcomes as a program is told them, and tells them, and messages as lines."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from jsonschema import Draft202012Validator

from pymllm.adapters.process.messages import Told, read_answer
from pymllm.adapters.process.wire import make_line, operations_schema, read_line, write_operation
from pymllm.adapters.registry import OWN, load_adapter, make_adapter
from pymllm.errors import ProgramError
from pymllm.history import operations as ops
from pymllm.history.files import History
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.registry import load_machine, machines_for


def numbers(spans: Sequence[ops.Span]) -> list[int]:
    """The numbers that spans stand for, where step 10 gave 100, 101 and so on."""
    return [10 * span.step + place for span in spans for place in range(span.start, span.stop)]


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (ops.Alloc(4), {"op": "alloc", "tokens": 4}),
        (ops.Free((ops.Span(10, 0, 2), ops.Span(0, 7, 8))), {"op": "free", "slots": [100, 101, 7]}),
        (ops.FreeRow(ops.Span(10, 3, 4)), {"op": "free_row", "row": 103}),
        (ops.MoveSWA((ops.Span(0, 1, 2),), ()), {"op": "move_swa", "source": [1], "target": []}),
        (ops.Match(ops.Key((1, (2, 3)), "a", "tensor64")), {"op": "match", "key": {"tokens": [1, [2, 3]],
                                                                           "extra_key": "a"}}),
        (
            ops.Insert(ops.Key((1,)), (ops.Span(10, 0, 1),), 1, form="int32", state=ops.Span(10, 5, 6)),
            {"op": "insert", "key": {"tokens": [1]}, "slots": [100], "prev_prefix_len": 1, "state": 105},
        ),
        (ops.Insert(ops.Key(())), {"op": "insert", "key": {"tokens": []}}),
        (ops.Unlock(3, at=2, token=0), {"op": "unlock", "lock": 3, "at": 2, "token": 0}),
    ],
)  # fmt: skip
def test_slots_are_told_as_numbers_and_defaults_not_at_all(
    operation: ops.Operation, plain: dict[str, object]
) -> None:
    """Nodes and holds stay steps; how an argument lies in memory is not said."""
    assert json.loads(json.dumps(write_operation(operation, numbers))) == plain


def test_one_number_is_exactly_one() -> None:
    """X1: a row is not two."""
    with pytest.raises(ProgramError, match="names 2 numbers where exactly one is meant"):
        write_operation(ops.FreeRow(ops.Span(10, 0, 2)), numbers)


@pytest.fixture(scope="module")
def histories() -> list[History]:
    """Return a history of each adapter of ours, played by its machine."""
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


def test_every_outcome_is_read_as_a_history_has_it(histories: list[History]) -> None:
    """Of every kind."""
    told = [
        Told(step.number, step.outcome) for history in histories for step in history.steps if step.outcome
    ]
    assert [read_answer(make_line(each)) for each in told] == told
    assert len(told) > 100


@pytest.mark.parametrize("text", ["plain", 'quote " and \\', "line\nend", "\u00e9\u4e2d\U0001f40d", "\ud800"])
def test_a_message_survives_the_line(text: str) -> None:
    """Whatever a namespace is called, half of a surrogate pair included; and it is one line."""
    line = make_line({"say": "op", "key": text})
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line) == {"say": "op", "key": text}


def test_fields_stand_in_their_order() -> None:
    """The fields of a line stand in their given order."""
    assert make_line({"say": "a", "b": (1, 2), "a": None}) == b'{"say":"a","b":[1,2],"a":null}\n'


def test_a_number_of_any_size_is_read() -> None:
    """A wrong slot may be any integer."""
    assert read_line(b"[18446744073709551616, -9223372036854775809]") == [2**64, -(2**63) - 1]


@pytest.mark.parametrize("line", [b"", b"so what?", b'{"a": 1} {"b": 2}', b'"\xff"', b"{'a': 1}"])
def test_a_line_that_is_no_json_is_named(line: bytes) -> None:
    """X1: with how it begins."""
    with pytest.raises(ValueError, match="is not JSON") as caught:
        read_line(line)
    assert repr(line)[1:] in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a": 1, "a": 2}', "an object names 'a' twice"),
        (b'{"a": [{"b": 1, "b" : 2}]}', "an object names 'b' twice"),
        (b'{"a": ' + b"9" * 200 + b"}", "does not fit into 128 bits"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "more than 64 lists and objects"),
        (b"[" * 100_000, "more than 64 lists and objects"),
    ],
)
def test_a_line_of_a_broken_hand_is_refused(line: bytes, words: str) -> None:
    """X1: as a file of the same would be."""
    with pytest.raises(ValueError, match=words):
        read_line(line)


@pytest.mark.parametrize(
    "plain",
    [{"a": "12:30"}, {"a": [[1, 2], [3]], "b": {"c": {"d": [{"e": 0}]}}}, {"a": [1, {"b": 2}]}, 7, []],
)
def test_a_line_that_only_looks_strange_is_read(plain: object) -> None:
    """A colon in a string is no field."""
    assert read_line(json.dumps(plain).encode()) == plain
