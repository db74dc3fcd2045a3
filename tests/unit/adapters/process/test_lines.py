"""A message as a line."""

from __future__ import annotations

import json

import pytest

from pymllm.adapters.process.lines import make_line, read_line


@pytest.mark.parametrize("text", ["plain", 'quote " and \\', "line\nend", "\u00e9\u4e2d\U0001f40d", "\ud800"])
def test_a_message_survives_the_line(text: str) -> None:
    """Whatever a namespace is called, half of a surrogate pair included; and it is one line."""
    line = make_line({"say": "op", "key": text})
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line) == {"say": "op", "key": text}


def test_fields_stand_in_their_order() -> None:
    """What a reader wants to see first comes first."""
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
