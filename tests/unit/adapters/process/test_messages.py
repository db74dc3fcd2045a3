"""Every message of the protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.adapters.process.messages import (
    LINE_LIMIT,
    PROTOCOL,
    Advance,
    Advanced,
    Audit,
    Audited,
    Broken,
    Bye,
    Error,
    Hello,
    Program,
    Request,
    Start,
    Started,
    Told,
    protocol_schema,
    read_answer,
    word_for,
)
from pymllm.adapters.process.wire import make_line
from pymllm.history.outcomes import Done, Effect, Outcome, Slots

CONFIG: dict[str, int | str | bool | None] = {"page_size": 4, "window": None}
HELLO = {
    "say": "hello",
    "protocol": 1,
    "name": "a",
    "version": "1",
    "language": "C",
    "kind": "prefix",
    "capabilities": ["pool"],
    "configurations": [CONFIG],
}


@pytest.mark.parametrize(
    ("request_", "plain"),
    [
        (
            Hello((PROTOCOL,), "pymllm", LINE_LIMIT),
            {"say": "hello", "protocol": [1], "driver": "pymllm", "line_limit": 2**20},
        ),
        (
            Start({"page_size": 4, "window": None}, 0),
            {"say": "start", "config": {"page_size": 4, "window": None}, "seed": 0},
        ),
        (Advance(1), {"say": "advance", "ticks": 1}),
        (Advance(2, flush=False), {"say": "advance", "ticks": 2, "flush": False}),
        (Audit(), {"say": "audit"}),
        (Bye(), {"say": "bye"}),
    ],
)
def test_what_is_said_to_a_program_keeps_to_the_schema(request_: Request, plain: dict[str, Any]) -> None:
    """And is as the page has it."""
    assert json.loads(make_line(request_)) == plain
    Draft202012Validator(protocol_schema()).validate(plain)


@pytest.mark.parametrize(
    ("plain", "answer"),
    [
        (
            HELLO,
            Program(1, "a", "1", "C", "prefix", ("pool",), (CONFIG,)),
        ),
        (
            {**HELLO, "clock": True, "audits": True, "source": "me"},
            Program(1, "a", "1", "C", "prefix", ("pool",), (CONFIG,), True, True, "me"),
        ),
        ({"say": "started"}, Started()),
        ({"say": "started", "capabilities": []}, Started(())),
        ({"say": "advanced", "clock": 7}, Advanced(7)),
        ({"say": "audited"}, Audited()),
        (
            {"say": "audited", "laws": ["R9"], "broken": {"law": "R9", "message": "m", "expected": "1"}},
            Audited(("R9",), Broken("R9", "m", "1")),
        ),
        ({"say": "error", "message": "no"}, Error("no")),
        ({"say": "outcome", "step": 3, "outcome": {"result": {"is": "done"}}}, Told(3, Outcome(Done()))),
    ],
)  # fmt: skip
def test_what_a_program_says_is_read(plain: dict[str, Any], answer: object) -> None:
    """Whatever the schema allows."""
    assert read_answer(json.dumps(plain).encode()) == answer
    Draft202012Validator(protocol_schema()).validate(plain)
    assert word_for(type(answer)) == plain["say"]


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ([], "must be an object"),
        ({}, "say is None"),
        ({"say": "x" * 99}, "it must be one of hello, started"),
        ({"say": ["started"]}, "it must be one of"),
        ({"say": "started", "more": 1}, "unknown field 'more'"),
        ({"say": "advanced"}, "field 'clock' is missing"),
        ({"say": "advanced", "clock": "7"}, "must be an integer"),
        ({"say": "error"}, "field 'message' is missing"),
        ({"say": "audited", "broken": {}}, "broken"),
        ({"say": "outcome", "step": "1", "outcome": {}}, "outcome.step is '1'; it must be an integer"),
        ({"say": "outcome", "step": 1}, "field 'outcome' is missing"),
        ({"say": "outcome", "step": 1, "outcome": {"result": {"is": "done"}}, "more": 1}, "field 'more'"),
        ({"say": "outcome", "step": 1, "outcome": {"result": {"is": "number"}}}, "field 'value' is missing"),
        ({**HELLO, "kind": "teapot"}, "kind is 'teapot'; it must be one of slots"),
        ({**HELLO, "configurations": []}, "it must have 1 to 256"),
        ({**HELLO, "configurations": [{"page_size": 1.5}]}, "hello.configurations"),
        ({**HELLO, "driver": "me"}, "hello: unknown field 'driver'"),
    ],
)
def test_what_is_no_message_is_refused_by_reader_and_schema(plain: Any, words: str) -> None:
    """X1: with words of what is wrong."""
    with pytest.raises(ValueError, match=words):
        read_answer(json.dumps(plain).encode())
    with pytest.raises(ValidationError):
        Draft202012Validator(protocol_schema()).validate(plain)


def test_the_schema_names_each_message_by_who_says_it() -> None:
    """The advice of the check leads there."""
    schema = protocol_schema()
    Draft202012Validator.check_schema(schema)
    assert sorted(schema["$defs"]) == sorted(
        [
            *(f"to-program-{word}" for word in ("hello", "start", "op", "advance", "audit", "bye")),
            *(f"from-program-{word}" for word in ("hello", "started", "outcome")),
            *(f"from-program-{word}" for word in ("advanced", "audited", "error")),
        ]
    )


def told(outcome: object) -> bytes:
    return json.dumps({"say": "outcome", "step": 1, "outcome": outcome}).encode()


def test_an_outcome_needs_no_effects_and_no_sizes() -> None:
    """Where there are none; empty ones are the same."""
    more: dict[str, object]
    for more in ({}, {"effects": []}, {"sizes": {}}, {"effects": [], "sizes": {}}):
        assert read_answer(told({"result": {"is": "done"}, **more})) == Told(1, Outcome(Done()))
    plain = {"result": {"is": "slots", "slots": [3]}, "effects": [{"call": "free", "slots": [1]}]}
    expected = Outcome(Slots((3,)), (Effect("free", (1,)),), {"a": 1})
    assert read_answer(told({**plain, "sizes": {"a": 1}})) == Told(1, expected)


@pytest.mark.parametrize(
    ("plain", "place"),
    [
        (7, " is 7"),
        ([], ""),
        ({}, ": field 'result'"),
        ({"result": None}, ".result is None"),
        ({"result": {}}, ".result: is is None; it must be one of done, failed"),
        ({"result": {"is": "done"}, "sizes": None}, ".sizes is None"),
        ({"result": {"is": "done"}, "effects": {}}, ".effects is {}"),
        ({"result": {"is": "done"}, "effects": [{"slots": [1]}]}, r".effects\[0\]: field 'call' is missing"),
        ({"result": {"is": "done"}, "effects": [{"call": "free", "slots": [1.5]}]}, r".*slots\[0\] is 1\.5"),
        ({"result": {"is": "done"}, "sizes": []}, ".sizes"),
        ({"result": {"is": "done"}, "sizes": {"a": True}}, ".sizes.a is True; it must be an integer"),
        ({"result": {"is": "done"}, "more": 1}, ": unknown field 'more'; it has result, effects, sizes"),
        ({"result": {"is": "done", "more": 1}}, ".result.done: unknown field 'more'"),
        ({"result": {"is": "what"}}, ".result: is is 'what'"),
        ({"result": {"is": ["done"]}}, r".result: is is \['done'\]"),
        (
            {"result": {"is": "slots", "slots": {"1": 2}}},
            ".result.slots.slots is {'1': 2}; it must be",
        ),
        (
            {"result": {"is": "inserted", "prefix_len": 0, "adopted": [[0]]}},
            r".*adopted\[0\] is \[0\]; .* 2",
        ),
        ({"result": {"is": "inserted", "prefix_len": 0, "adopted": [7]}}, r".*adopted\[0\] is 7"),
        ({"result": {"is": "inserted", "prefix_len": 0, "adopted": 7}}, ".*adopted is 7"),
        ({"result": {"is": "hashes", "digests": "ab"}}, ".result.hashes.digests is 'ab'"),
        ({"result": {"is": "locked", "token": 1.5}}, ".result.locked.token is 1.5"),
    ],
)
def test_what_is_no_outcome_is_refused_with_its_place(plain: object, place: str) -> None:
    """X1: and by the schema."""
    with pytest.raises(ValueError, match=rf"^outcome\.outcome{place}"):
        read_answer(told(plain))
    with pytest.raises(ValidationError):
        Draft202012Validator(protocol_schema()).validate(json.loads(told(plain)))
