"""``pymllm adapters``: who can be examined."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from pymllm.adapters.registry import OWN, PEERS
from pymllm.faults.adapters import FAULTY
from tests.unit.cli.typed import typed

adapters = partial(typed, "adapters")


def test_all_of_the_registry_are_listed() -> None:
    """Name, kind, how many configurations, what is adapted."""
    result = adapters()
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [entry.name for entry in (*OWN, *PEERS, *FAULTY)]
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
    source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its package does: the others are listed, and its line says why it cannot start."""
    (tmp_path / "dynamo").mkdir()
    (tmp_path / "dynamo" / "_core.py").write_text(source, encoding="utf-8")
    facts = tmp_path / "ai_dynamo_runtime-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: ai-dynamo-runtime\nVersion: 0.1\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYMLLM_ANY_VERSION", "1")
    found = json.loads(adapters("dynamo-index", "index-dict", "--json").stdout)["adapters"]
    assert [it["name"] for it in found] == ["dynamo-index", "index-dict"]
    assert why in found[0]["problem"]
    assert (found[0]["configurations"], "problem" in found[1]) == ([], False)


def test_verbose_says_what_each_configuration_claims(tiny: str) -> None:
    """And what the words mean that were used; nothing is left blank."""
    result = adapters("-v", "hashes", f"{tiny}:TinyRows")
    assert "    no settings: claims nothing\n" in adapters("-v", f"{tiny}:Bare").stdout
    assert "    max_reqs 3, max_context_len 4: pool, zeroed_rows\n" in result.stdout
    assert "\npool         has slots, rows, states or blocks to allocate" in result.stdout
    assert "swa:" not in result.stdout


def test_the_document_has_the_same(tiny: str) -> None:
    """For a program to read."""
    (found,) = json.loads(adapters("--json", f"{tiny}:TinyRows").stdout)["adapters"]
    assert (found["name"], found["kind"]) == (f"{tiny}:TinyRows", "rows")
    assert found["configurations"][1] == {
        "config": {"max_reqs": 2, "max_context_len": 3},
        "capabilities": ["pool", "zeroed_rows"],
    }
