"""The matrix of a comparison, as text and as a document."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.cli.compare_matrix import compare_schema, make_document, make_text
from pymllm.cli.verify_files import SavedFiles
from pymllm.conformance.results import VerifyReport

FILES = SavedFiles(
    {("my.rows:Rows", "P2"): "runs/P2.jsonl"},
    {("my.rows:Rows", 0): "runs/crash.jsonl"},
    {("gone:Cache", 0): "runs/said.txt"},
)


def test_a_cell_says_what_is_known_of_one_law_and_one_adapter(report: VerifyReport) -> None:
    """Tests where it holds, words elsewhere, nothing where the law is not in an adapter's table."""
    lines = make_text(report, FILES).splitlines()
    assert "  1  my.rows:Rows (rows)" in lines
    assert "  3  gone:Cache (could not be loaded)" in lines
    rows = {line.split()[0]: line for line in lines if line[:2] in ("X1", "P1", "P2", "P3", "E5")}
    assert "holds 1,200" in rows["P1"]
    assert "holds 34" in rows["P1"]
    assert "VIOLATED" in rows["P2"]
    assert "UNKNOWN" in rows["E5"]
    assert rows["X1"].split()[1:3] == ["not", "claimed"]


def test_what_is_violated_and_what_came_to_grief_is_explained(report: VerifyReport) -> None:
    """Files, commands, and one line at the end."""
    text = make_text(report, FILES)
    assert "P2  VIOLATED by my.rows:Rows: a freed row is zero" in text
    assert "    file       runs/P2.jsonl\n" in text
    assert "    file       could not be written\n" in text
    assert "my.rows:Rows  could not be examined to the end\n" in text
    assert "    program    runs/crash.jsonl\n" in text
    assert "    verdict    hung\n    because    cannot import gone\n    last said  runs/said.txt\n" in text
    assert text.isascii()
    assert text.splitlines()[-1].startswith(
        "cells: 1 unknown, 2 violated, 3 holds, 1 not claimed; 40 programs"
    )


def test_the_document_is_that_of_verify_with_the_matrix(report: VerifyReport) -> None:
    """Each cell with its counts."""
    document = make_document(report, FILES)
    Draft202012Validator(compare_schema()).validate(json.loads(json.dumps(document)))
    assert (document["schema"], document["version"]) == ("pymllm.compare", 1)
    (row,) = [row for row in document["matrix"] if row["id"] == "P1"]
    assert row["cells"] == [
        {"adapter": "my.rows:Rows", "verdict": "holds", "tests": 1200, "walks": 30},
        {"adapter": "rows", "verdict": "holds", "tests": 34, "walks": 12},
    ]


def test_a_cell_without_a_verdict_is_refused(report: VerifyReport) -> None:
    """The schema can fail."""
    document = make_document(report, FILES)
    document["matrix"][0]["cells"][0]["verdict"] = "perhaps"
    with pytest.raises(ValidationError):
        Draft202012Validator(compare_schema()).validate(json.loads(json.dumps(document)))
