"""The file of a campaign."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from pymllm.conformance.soak.ledger import Ledger, merge_ledgers, read_ledger
from pymllm.errors import TraceError, UsageError
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


def test_a_ledger_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """Two campaigns in one folder would be neither; when the first has ended there is room for another."""
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.add(HEADER)
        with pytest.raises(UsageError, match=r"another campaign is being played there"):
            Ledger(path)
        ledger.add(RECORD)
    write(path, replace(RECORD, number=4))
    assert list(read_ledger(path)) == [HEADER, RECORD, replace(RECORD, number=4)]


def test_a_file_system_without_locks_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some of those are that machines share."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert list(read_ledger(write(tmp_path / "ledger.jsonl", HEADER))) == [HEADER]


def test_a_new_campaign_does_not_begin_in_the_ledger_of_another(tmp_path: Path) -> None:
    """Not even where that came while the new one looked at its adapters."""
    path = write(tmp_path / "ledger.jsonl", HEADER)
    with pytest.raises(UsageError, match=r"there is a campaign already"):
        Ledger(path, is_new=True)
    assert list(read_ledger(path)) == [HEADER]


def test_a_line_that_is_taken_in_pieces_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is nearly full takes as much as there is room for, and says nothing."""
    write_all = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write_all(file, data[:100]))
    path = write(tmp_path / "ledger.jsonl", HEADER, RECORD)
    assert list(read_ledger(path)) == [HEADER, RECORD]


def test_a_line_that_cannot_be_written_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the system does not: it knows of descriptors."""

    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = write(tmp_path / "ledger.jsonl", HEADER)
    with Ledger(path) as ledger:
        monkeypatch.setattr(os, "write", refuse)
        with pytest.raises(OSError, match="No space left") as caught:
            ledger.add(RECORD)
    assert caught.value.filename == str(path)


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
        ("nothing\n", ":1: not JSON: Expecting value at column 1"),
        ('{"number": "one"}\n', "Expected `int`, got `str` - at `[$].number`"),
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
