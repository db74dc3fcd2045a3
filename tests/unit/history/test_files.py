"""Histories: written, read, and refused with the line that is wrong."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pymllm.errors import TraceError
from pymllm.history.files import (
    Header,
    History,
    Step,
    dump_history,
    history_schema,
    load_history,
    read_history,
    write_history,
)
from pymllm.history.operations import Alloc, Free, Span
from pymllm.history.outcomes import Done, Outcome, Slots

HEAD = '{"format": "pymllm-history", "schema": 1, "adapter": "x", "kind": "prefix", "config": {}}'
HEADER = Header("token-slots", "slots", {"page_size": 4, "window": None}, ("pool",), 7, {"torch": "2.13"})
STEPS = [
    Step(1, Alloc(4), Outcome(Slots((4, 5, 6, 7)), (), {"available_size": 8})),
    Step(3, Free((Span(1, 0, 4),)), Outcome(Done())),
    Step(4, Alloc(4)),
]
LINES = list(dump_history(History(HEADER, STEPS)))


def test_a_history_survives_the_way_through_a_file(tmp_path: Path) -> None:
    """Header, gaps between the steps and steps that were not run included."""
    path = tmp_path / "found.jsonl"
    write_history(History(HEADER, list(STEPS)), path)
    again = load_history(path)
    assert (again.header, again.steps) == (HEADER, STEPS)
    assert len(again) == 3
    assert path.read_text(encoding="utf-8").splitlines() == LINES


def test_a_history_that_cannot_be_written_leaves_none_and_no_half(tmp_path: Path) -> None:
    """On a full disk; what was there stays, such as the long program of which this is the shorter one."""
    path = tmp_path / "found.jsonl"
    write_history(History(HEADER, list(STEPS)), path)
    with full_disk(10_000), pytest.raises(OSError, match="too large"):
        write_history(History(HEADER, [Step(number, Alloc(4)) for number in range(1, 1000)]), path)
    assert load_history(path).steps == STEPS
    assert os.listdir(tmp_path) == ["found.jsonl"]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_empty_lines_do_not_count() -> None:
    """A file may end in one, or be edited by hand."""
    assert read_history(["", LINES[0], " ", LINES[1]], "x").steps == STEPS[:1]


def spoiled(line: int, **changes: object) -> list[str]:
    """Return the lines of a good history, one of them with other fields."""
    lines = list(LINES)
    lines[line] = json.dumps({**json.loads(lines[line]), **changes})
    return lines


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "x: empty; a history begins with its header"),
        (["["], "x:1: not JSON: Expecting value at column 2"),
        (["[" * 100_000], "x:1: "),
        ([LINES[1]], "x:1: a history begins with a header"),
        (["[]"], "x:1: a history begins with a header"),
        (spoiled(0, schema=2), "x:1: schema is 2; this version reads 1"),
        (spoiled(0, kind="queue"), "x:1: kind is 'queue'; it must be one of slots, rows"),
        (spoiled(0, seed="7"), "x:1: header.seed is '7'; it must be an integer or null"),
        (spoiled(2, step=1), "x:3: step is 1; it must be an integer above 1"),
        (spoiled(1, step=True), "x:2: step is True; it must be an integer"),
        (spoiled(1, op={"op": "fly"}), "x:2: op: op is 'fly'"),
        (spoiled(1, more=1), "x:2: step: unknown field 'more'; it has step, op, outcome"),
        ([LINES[0], "4"], "x:2: value is 4; it must be an object"),
        (spoiled(1, outcome={}), "x:2: outcome: field 'result' is missing"),
    ],
)
def test_a_bad_line_is_named(lines: list[str], says: str) -> None:
    """X1: the error has the file, the line and what was expected."""
    with pytest.raises(TraceError) as caught:
        read_history(lines, "x")
    assert str(caught.value).startswith(says)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """X1: a binary file is no history."""
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8 text"):
        load_history(path)


def test_the_schema_names_format_version_and_kinds() -> None:
    """A reader in another language can tell whether it understands a file."""
    published = Path(__file__).parents[3] / "docs" / "schemas" / "history.schema.json"
    assert history_schema() == json.loads(published.read_text(encoding="utf-8"))
    header, step = history_schema()["oneOf"]
    assert header["properties"]["schema"] == {"const": 1}
    assert "slots" in header["properties"]["kind"]["enum"]
    assert step["required"] == ["step", "op"]
    assert set(step["properties"]) == {"step", "op", "outcome"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([HEAD.replace("{}", '{"slots": 1000000000000}')], "slots is 1,000,000,000,000; at most it is"),
        ([HEAD, '{"step": 1, "op": {"op": "reset"}, "op": {"op": "reset"}}'], "an object names 'op' twice"),
        ([HEAD, '{"step": 1, "op": ' + "[" * 5_000], "more than 64 lists and objects stand inside"),
        ([HEAD, '{"step": ' + "9" * 5_000 + ', "op": {"op": "reset"}}'], "does not fit into 128 bits"),
        ([HEAD, '{"step": 1, "op": {"op": "evict", "tokens": NaN}}'], "NaN is no number that JSON has"),
        (
            [HEAD, '{"step": 1, "op": {"op": "' + "x" * 10_000 + '"}}'],
            r"op is 'xx.*\.\.\.; it must be",
        ),
        (
            [HEAD, '{"step": 1, "op": {"op": "reset", "' + "x" * 10_000 + '": 1}}'],
            r"field 'x*\.\.\.; it",
        ),
    ],
)
def test_a_line_of_a_broken_hand_is_refused_in_few_words(lines: list[str], words: str) -> None:
    """X1: with the line, and in our own words."""
    with pytest.raises(TraceError, match=words) as caught:
        read_history(lines, "it")
    assert caught.value.line == len(lines)
    assert len(str(caught.value)) < 1_500
