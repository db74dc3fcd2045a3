"""The file of a campaign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.conformance.soak.ledger import Ledger, merge_ledgers, read_ledger
from pymllm.errors import TraceError
from tests.unit.conformance.soak.test_records import HEADER, RECORD


def write(path: Path, *records: object, tail: str = "") -> Path:
    with Ledger(path) as ledger:
        for record in records:
            ledger.add(record)  # type: ignore[arg-type]  # headers and runs
    if tail:
        with open(path, "a", encoding="utf-8") as file:
            file.write(tail)
    return path


def test_what_is_added_is_read_in_order(tmp_path: Path) -> None:
    """Also by another process, while it is written."""
    path = tmp_path / "new" / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.add(HEADER)
        ledger.add(RECORD)
        assert list(read_ledger(path)) == [HEADER, RECORD]


@pytest.mark.parametrize("tail", ["{", '{"number": 4, "vers', "x" * 200_000])
def test_a_line_that_was_not_finished_is_left_out_and_written_over(tmp_path: Path, tail: str) -> None:
    """Whatever ended the campaign."""
    path = write(tmp_path / "ledger.jsonl", HEADER, RECORD, tail=tail)
    assert list(read_ledger(path)) == [HEADER, RECORD]
    write(path, replace(RECORD, number=4))
    assert list(read_ledger(path)) == [HEADER, RECORD, replace(RECORD, number=4)]


def test_a_file_with_half_a_line_only_begins_anew(tmp_path: Path) -> None:
    """There is nothing to keep."""
    path = tmp_path / "ledger.jsonl"
    path.write_text("{", encoding="utf-8")
    assert list(read_ledger(write(path, HEADER))) == [HEADER]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("{", "empty"),
        ("\n\n", "empty"),
        ("nothing\n", ":1: Expecting value"),
        ('{"number": "one"}\n', "must be an integer"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """Which line, and why."""
    path = tmp_path / "ledger.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=why):
        list(read_ledger(path))


def test_runs_without_a_campaign_are_refused(tmp_path: Path) -> None:
    """Nobody knows what they were to reach."""
    with pytest.raises(TraceError, match="begins with the header"):
        list(read_ledger(write(tmp_path / "ledger.jsonl", RECORD)))


def test_merging_keeps_each_run_once(tmp_path: Path) -> None:
    """Of two lines of a run the one with more walks; in one order, whatever order they came in."""
    other = replace(RECORD, seed=10)
    walked = replace(RECORD, audited={"P1": 50}, number=8)
    first = write(tmp_path / "a.jsonl", HEADER, RECORD, other)
    second = write(tmp_path / "b.jsonl", HEADER, replace(HEADER, seed=8), walked)
    merged = merge_ledgers([first, second])
    assert merged == ([HEADER, replace(HEADER, seed=8)], [other, walked], [])
    both = tmp_path / "both.jsonl"
    both.write_text(first.read_text("utf-8") + second.read_text("utf-8"), encoding="utf-8")
    assert merge_ledgers([both]) == merged
    assert merge_ledgers([first, second, both]) == merged
    assert merge_ledgers([second, first])[1] == merged[1]


def test_a_run_that_did_something_else_is_a_conflict(tmp_path: Path) -> None:
    """X3: the same run plays the same, wherever it is played."""
    path = write(tmp_path / "a.jsonl", HEADER, RECORD, replace(RECORD, digest="other"))
    _, runs, (conflict,) = merge_ledgers([path])
    assert runs == [RECORD]
    assert "seed 9 of rows" in str(conflict)
    assert "'abc'" in str(conflict)
    assert "'other'" in str(conflict)
