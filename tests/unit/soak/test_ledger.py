"""Ledgers: their lines, and files that only grow."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from pymllm.documents.campaigns import Failure
from pymllm.errors import TraceError, UsageError
from pymllm.soak.ledger import (
    CampaignHeader,
    Ledger,
    Memory,
    Place,
    RunRecord,
    Shares,
    ledger_schema,
    read_ledger,
    read_line,
    write_line,
)

PLACE = Place("rows", "rows", {"max_reqs": 3}, "RowMachine", "tiny", ("pool",))
HEADER = CampaignHeader("1+a", {"python": "3"}, 7, 1000, 100, 64, (PLACE,))
RECORD = RunRecord(
    **{"number": 3, "version": "1+a", "adapter": "rows", "kind": "rows", "config": {"max_reqs": 3}},
    **{"machine": "RowMachine", "size": "tiny", "seed": 9, "limit": 100, "acts": 60, "operations": 101},
    **{"off": ("clear",), "exercised": {"P1": 4}, "reached": {"a row is freed": 2}, "sizes": {"size": 3}},
    **{"digest": "abc", "failure": Failure("P2", "row 1", "0", "1", 44), "audited": {"P1": 2}},
    **{"seconds": 1.5, "cpu": 1.25, "shares": Shares(0.5, 0.25), "memory": Memory("x/1", 101, 5, 4, 3)},
)  # type: ignore[arg-type]  # one line for each few fields


@pytest.mark.parametrize("record", [HEADER, RECORD])
def test_a_line_is_read_as_it_was_written(record: CampaignHeader | RunRecord) -> None:
    """And keeps to its schema."""
    line = write_line(record)
    assert "\n" not in line
    assert read_line(line) == record
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(ledger_schema()).validate(json.loads(line))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[]", "a line of a ledger is an object"),
        ('{"number": 1}', "missing required field `version`"),
        ('{"format": "pymllm-soak", "schema": 99}', "schema 99"),
        ('{"format": "pymllm-history", "schema": 1}', "format 'pymllm-history'"),
    ],
)
def test_what_is_no_line_says_why(line: str, why: str) -> None:
    """A ledger may come from anywhere."""
    with pytest.raises(ValueError, match=why):
        read_line(line)


@pytest.mark.parametrize("shard", [(5, 3), (0, 3), (-1, 3), (1, 0), (-2, -1), (1, 1_000_001)])
def test_a_shard_that_there_is_not_is_no_header(shard: tuple[int, int]) -> None:
    """Those without a ledger could not be told, and no run would be its own."""
    assert read_line(write_line(replace(HEADER, shard=(1_000_000, 1_000_000))))
    line = write_line(replace(HEADER, shard=shard))
    why = f"header: shard is {re.escape(str([*shard]))}; it must be .I, N. with I in 1"
    with pytest.raises(ValueError, match=why):
        read_line(line)


def test_a_place_of_a_kind_that_there_is_not_is_no_header() -> None:
    """X1: a merge would look for its machines, and end in a traceback."""
    line = write_line(replace(HEADER, places=(replace(PLACE, kind="zeroed_rows"),)))
    with pytest.raises(ValueError, match=r"header: kind is 'zeroed_rows'; it must be one of slots, rows, "):
        read_line(line)


@pytest.mark.parametrize("name", ["number", "limit", "acts", "operations"])
def test_a_run_has_no_fewer_than_none_of_anything(name: str) -> None:
    """X1: a line that was changed by hand would be taken off the others."""
    assert read_line(write_line(replace(RECORD, **{name: 0})))
    with pytest.raises(ValueError, match=rf"run: .*>= 0 - at `\$\.{name}`"):
        read_line(write_line(replace(RECORD, **{name: -1})))


def test_a_run_is_named_by_what_it_follows_from() -> None:
    """The key of a run depends on its task, not on its number or its measures."""
    same = replace(RECORD, number=8, seconds=9.0, audited={}, memory=Memory())
    assert (same.key, same.played) == (RECORD.key, RECORD.played)
    assert replace(RECORD, seed=10).key != RECORD.key
    assert replace(RECORD, config={"max_reqs": 4}).key != RECORD.key
    assert replace(RECORD, digest="abd").played != RECORD.played


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


def test_a_ledger_that_was_torn_may_stand_before_another(tmp_path: Path) -> None:
    """As ``cat`` puts them: what had an end is there, whatever byte the first ended at."""
    whole = write(tmp_path / "whole.jsonl", HEADER, RECORD).read_bytes()
    ends = [whole.index(b"\n"), len(whole) - 1]
    path = tmp_path / "ledger.jsonl"
    for torn in range(len(whole)):
        path.write_bytes(whole[:torn] + whole)
        assert list(read_ledger(path)) == [
            *([HEADER] if torn >= ends[0] else []),
            *([RECORD] if torn >= ends[1] else []),
            *(HEADER, RECORD),
        ]


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
    """A ledger without the header of a campaign is refused."""
    with pytest.raises(TraceError, match="begins with the header"):
        list(read_ledger(write(tmp_path / "ledger.jsonl", RECORD)))
