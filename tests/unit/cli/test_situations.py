"""``pymllm situations``: a list, a document, a page."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from pymllm.cli import main
from pymllm.oracle.situations import SITUATIONS, situations_of


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["situations", *arguments], catch_exceptions=False)


def test_every_situation_has_a_line() -> None:
    """Kind, laws, name; what an engine brings about says so."""
    result = run()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) == len(SITUATIONS)
    assert any(line.split("  ")[0] == "prefix, engine" for line in lines)
    (line,) = (line for line in lines if line.endswith("an alloc fails and the order stays"))
    assert line.split("  ")[0] == "slots"
    assert "X4, A4" in line


def test_one_kind_can_be_asked_for() -> None:
    """And nothing else comes; a kind that is none is refused."""
    rows = json.loads(run("--kind", "rows", "--json").output)["situations"]
    assert [row["name"] for row in rows] == [one.name for one in situations_of("rows")]
    result = run("--kind", "cells")
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1


def test_the_page_has_all_of_them_whatever_is_listed(tmp_path: Path) -> None:
    """It is written beside what is printed."""
    page = tmp_path / "situations.md"
    assert run("--kind", "rows", "--page", str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert all(f"| {one.name} |" in text for one in SITUATIONS)


def test_a_page_in_no_folder_is_refused(tmp_path: Path) -> None:
    """In one line."""
    result = run("--page", str(tmp_path / "none" / "page.md"))
    assert result.exit_code == 2
    assert "there is no folder" in result.output
