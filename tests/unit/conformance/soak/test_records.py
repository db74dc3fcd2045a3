"""The lines of a ledger."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from pymllm.conformance.soak.ledger import (
    CampaignHeader,
    Failure,
    Memory,
    Place,
    RunRecord,
    Shares,
    ledger_schema,
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


def test_a_run_is_named_by_what_it_follows_from() -> None:
    """Neither its number nor what was measured tells it apart."""
    same = replace(RECORD, number=8, seconds=9.0, audited={}, memory=Memory())
    assert (same.key, same.played) == (RECORD.key, RECORD.played)
    assert replace(RECORD, seed=10).key != RECORD.key
    assert replace(RECORD, config={"max_reqs": 4}).key != RECORD.key
    assert replace(RECORD, digest="abd").played != RECORD.played
