"""``pymllm goals``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.cli.schema import make_schema
from pymllm.cli.search.goals import make_page
from pymllm.history.operations import KINDS
from pymllm.oracle.coverage import GOALS, goals_of
from pymllm.oracle.laws.goal import Condition, make_goals
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


def test_the_page_has_all_of_them_whatever_is_listed(tmp_path: Path) -> None:
    """It is written beside what is printed."""
    page = tmp_path / "coverage-goals.md"
    assert run("--kind", "rows", "--page", str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert all(f"| {one.name} |" in text for one in GOALS)


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


PAGED = Condition("pages of several tokens", lambda config: config.get("page_size") != 1)


def test_each_kind_has_a_table_and_an_engine_its_own() -> None:
    """In the order of the registry."""
    titles = [line for line in make_page(GOALS).splitlines() if line.startswith("## ")]
    assert len(titles) == len(KINDS) + 1
    assert titles[0] == "## Slot allocators"
    assert "## Prefix caches in an engine" in titles


def test_a_row_has_laws_bugs_and_needs() -> None:
    """What is missing leaves its cell empty."""
    plain = make_goals("slots", ("pages wait", "A4"))
    full = make_goals("slots", ("pages merge", "A4 X4", "B95 B97"), needs="merges groups", when=(PAGED,))
    lines = make_page([*plain, *full]).splitlines()
    assert "| pages wait | A4 |  |  |" in lines
    assert "| pages merge | A4, X4 | B95, B97 | `groups`, `merges`, pages of several tokens |" in lines
    assert "2 coverage goals." in "\n".join(lines)
