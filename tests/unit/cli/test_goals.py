"""``pymllm goals``."""

from __future__ import annotations

import json
from functools import partial

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.cli.schema import make_schema
from pymllm.oracle.coverage import GOALS, goals_of
from tests.unit.cli.typed import typed

run = partial(typed, "goals")


def test_every_goal_has_a_line() -> None:
    """Kind, laws, name; what an engine brings about says so."""
    result = run()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines[1 : lines.index("")]) == len(GOALS)
    assert any(line.split("  ")[0] == "prefix, engine" for line in lines)
    (line,) = (line for line in lines if line.endswith("an alloc fails and the order stays"))
    assert line.split("  ")[0] == "slots"
    assert "X4, A4" in line


def test_one_kind_can_be_asked_for() -> None:
    """And nothing else comes."""
    rows = json.loads(run("--kind", "rows", "--json").output)["situations"]
    assert [row["name"] for row in rows] == [one.name for one in goals_of("rows")]


def test_the_document_says_what_a_goal_takes() -> None:
    """Capabilities by name, settings in words; a kind that is none does not keep to the schema."""
    validator = Draft202012Validator(make_schema("situations"))
    document = json.loads(run("--json").output)
    validator.validate(document)
    (row,) = [row for row in document["situations"] if row["name"] == "an edge node is split"]
    settings = ["a cache that keeps something", "a window of several pages", "nodes of several pages"]
    assert (row["kind"], row["of_engine"], row["capabilities"]) == ("prefix", False, ["inspect"])
    assert (row["laws"], row["bugs"], row["configuration"]) == (["S5", "R10"], ["B23", "B25"], settings)
    row["kind"] = "cells"
    with pytest.raises(ValidationError):
        validator.validate(document)
