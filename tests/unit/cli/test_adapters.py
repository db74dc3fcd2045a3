"""``pymllm adapters``: who can be examined."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pymllm.adapters.registry import adapters as all_adapters
from tests.unit.cli.typed import typed

adapters = partial(typed, "adapters")


def test_all_of_the_registry_are_listed() -> None:
    """Name, kind, how many configurations, what is adapted."""
    result = adapters()
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [entry.name for entry in all_adapters()]
    (rows,) = (line.split() for line in lines if line.startswith("rows "))
    assert rows == ["rows", "rows", "2", "ReqToTokenPool"]


@pytest.mark.usefixtures("cold_workers")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import os; os._exit(3)", "the process that ran it ended with status 3 and gave no answer"),
        ("import not_installed", "ModuleNotFoundError: No module named 'not_installed'"),
    ],
)
def test_a_peer_that_cannot_start_is_a_line_of_the_list(
    source: str, why: str, tmp_path: Path, plug_in: Callable[[str, str], None]
) -> None:
    """Whatever its package does: the others are listed, and its line says why it cannot start."""
    entry = "ADAPTERS = [AdapterEntry('their-rows', 'their_rows_code:Rows', 'their rows')]"
    plug_in("their_rows", f"from pymllm.adapters.entry import AdapterEntry\n{entry}")
    (tmp_path / "their_rows_code.py").write_text(source, encoding="utf-8")
    result = adapters("their-rows", "index-dict", "--json")
    found = json.loads(result.stdout)["adapters"]
    assert [it["name"] for it in found] == ["their-rows", "index-dict"]
    assert why in found[0]["problem"]
    assert (found[0]["configurations"], "problem" in found[1]) == ([], False)


def test_a_plug_in_that_cannot_be_read_is_a_line_behind_the_list(plug_in: Callable[[str, str], None]) -> None:
    """Where all are listed, and not where others are asked for by name."""
    plug_in("broken_plugin", "import no_such_module")
    assert adapters("index-dict").stderr == ""
    listed = adapters()
    assert listed.exit_code == 0
    assert listed.stderr.startswith(
        "pymllm: plug-in broken_plugin (broken_plugin:ADAPTERS) cannot be imported: "
    )


def test_verbose_says_what_each_configuration_claims(tiny: str) -> None:
    """And what the words mean that were used; nothing is left blank."""
    result = adapters("-v", "hashes", f"{tiny}:TinyRows")
    assert "    no settings: claims nothing\n" in adapters("-v", f"{tiny}:Bare").stdout
    assert "    max_reqs 3, max_context_len 4: pool, zeroed_rows\n" in result.stdout
    assert re.search(r"^pool +has slots, rows, states or blocks to allocate$", result.stdout, re.MULTILINE)
    assert "swa:" not in result.stdout


def test_the_document_has_the_same(tiny: str) -> None:
    """For a program to read."""
    (found,) = json.loads(adapters("--json", f"{tiny}:TinyRows").stdout)["adapters"]
    assert (found["name"], found["kind"]) == (f"{tiny}:TinyRows", "rows")
    assert found["configurations"][1] == {
        "config": {"max_reqs": 2, "max_context_len": 3},
        "capabilities": ["pool", "zeroed_rows"],
    }
