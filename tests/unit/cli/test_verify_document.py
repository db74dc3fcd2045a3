"""The JSON document of a verification."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.cli.verify_document import make_document, verify_schema
from pymllm.cli.verify_files import SavedFiles
from pymllm.conformance.results import VerifyReport

FILES = SavedFiles(
    {("my.rows:Rows", "P2"): "runs/P2.jsonl"},
    {("my.rows:Rows", 0): "runs/crash.jsonl"},
    {("gone:Cache", 0): "runs/said.txt"},
)


def test_the_document_keeps_to_its_schema(report: VerifyReport) -> None:
    """Nothing but plain data, each field as promised."""
    document = make_document(report, FILES)
    Draft202012Validator(verify_schema()).validate(json.loads(json.dumps(document)))


def test_the_document_has_what_the_table_has(report: VerifyReport) -> None:
    """Verdicts, counts, programs and files."""
    document = make_document(report, FILES)
    assert (document["schema"], document["version"]) == ("pymllm.verify", 1)
    assert (document["verdict"], document["exit_status"]) == ("violated", 1)
    assert {row["id"]: row["verdict"] for row in document["laws"]} == {
        "X1": "not claimed",
        "P1": "holds",
        "P2": "violated",
        "P3": "violated",
        "E5": "unknown",
    }
    assert document["invariants"] == [
        {"name": "slot 0 is never handed out", "laws": ["P1"], "verdict": "holds"}
    ]
    broken, fine, gone = document["adapters"]
    assert [row["file"] for row in broken["violations"]] == ["runs/P2.jsonl", None]
    assert broken["violations"][0]["program"].startswith("from pymllm.conformance.program import run_program")
    assert (broken["violations"][0]["step"], broken["violations"][0]["config"]) == (2, {"max_reqs": 3})
    assert [row["rerun_shows_it"] for row in broken["violations"]] == [True, False]
    assert broken["problems"] == [
        {
            "message": "it stumbled\nover its feet",
            "file": "runs/crash.jsonl",
            "ended": None,
            "conversation": None,
        }
    ]
    assert gone["problems"][0] | {"message": ""} == {
        "message": "",
        "file": None,
        "ended": "hung",
        "conversation": "runs/said.txt",
    }
    assert broken["machines"][0]["steps_per_second"] == 2000.0
    assert (fine["verdict"], fine["problems"]) == ("unknown", [])
    assert (gone["kind"], gone["laws"]) == (None, [])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("verdict",), "fine"),
        (("version",), 2),
        (("laws", 0, "verdict"), None),
        (("adapters", 0, "kind"), "cache"),
        (("adapters", 0, "violations", 0, "judge_shows_it"), 1),
        (("surprise",), 1),
    ],
)
def test_the_schema_refuses_another_document(
    report: VerifyReport, place: tuple[str | int, ...], value: object
) -> None:
    """The test above can fail."""
    document = make_document(report, FILES)
    *path, last = place
    inner: object = document
    for key in path:
        inner = inner[key]  # type: ignore[index]
    inner[last] = value  # type: ignore[index]
    with pytest.raises(ValidationError):
        Draft202012Validator(verify_schema()).validate(document)
