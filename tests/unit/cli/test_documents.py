"""Tests of the documents of ``--json``: the records of `pymllm.documents`, and their schemas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import SCHEMAS, make_schema
from pymllm.documents.runs import DOCUMENTS, read_as, schema_of_document
from tests.unit.cli.typed import typed

WRITTEN = sorted((Path(__file__).parent / "written_by_1").glob("*.json"))


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_document_of_the_version_before_is_read_whole(path: Path) -> None:
    """A document of the version before loses no field, and keeps to the schema of today."""
    old = json.loads(path.read_text(encoding="utf-8"))
    document = read_as(DOCUMENTS[old["schema"]], old)
    again = json.loads(json.dumps(document.plain()))
    assert without_additions(again, old) == old
    Draft202012Validator(schema_of_document(type(document), "any")).validate(again)


def without_additions(new: object, old: object) -> object:
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: without_additions(value, old[key]) for key, value in new.items() if key in old}
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return [without_additions(*pair) for pair in zip(new, old, strict=True)]
    return new


def test_every_command_with_a_document_has_one_there() -> None:
    """The test above would pass over what is not there."""
    named = {json.loads(path.read_text(encoding="utf-8"))["schema"] for path in WRITTEN}
    assert named == set(DOCUMENTS)


@pytest.mark.parametrize(
    "spoilt", [{"seconds": "1"}, {"verdict": "fine"}, {"version": 2}, {"adapters": None}]
)
def test_what_is_no_document_is_refused_with_the_place(spoilt: dict[str, object]) -> None:
    """Somebody's file may have anything in it."""
    plain = json.loads((WRITTEN[0].parent / "verify.json").read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match=f"pymllm.verify: .*{next(iter(spoilt))}"):
        read_as(DOCUMENTS["pymllm.verify"], {**plain, **spoilt})


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_printed_and_is_one(name: str) -> None:
    """Draft 2020-12."""
    result = typed("schema", name)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == make_schema(name)
    Draft202012Validator.check_schema(make_schema(name))
