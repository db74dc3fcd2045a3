"""The example of somebody else's cache is what it says: short, examined from its own tests, and bitten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pymllm.cli import main
from pymllm.faults.plant import Edit, planted
from pymllm.search.cache_machine import check_adapter

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_project_of_its_own_examines_its_cache(tmp_path: Path) -> None:
    """All that its cache claims: its pytest finds the machine and the check, and both pass."""
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(settings), str(EXAMPLES)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_its_faults_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1, R6, R8: faults from outside the package are planted and looked for like our own."""
    monkeypatch.syspath_prepend(EXAMPLES)
    arguments = ["faults", "--jobs", "1", "--cabinet", "stranger_faults:TABLE"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "5 of 5 faults caught by a listed law" in result.stdout


@pytest.mark.parametrize("name", ["cache", "slots", "blocks"])
def test_what_is_examined_knows_nothing_of_us(name: str) -> None:
    """Less than a hundred lines, and no import of pymllm."""
    text = (EXAMPLES / f"stranger_{name}.py").read_text(encoding="utf-8")
    assert "import pymllm" not in text
    assert "from pymllm" not in text
    assert len(text.splitlines()) < 100


@pytest.mark.parametrize(("name", "limit"), [("", 50), ("slots_", 30), ("blocks_", 80)])
def test_an_adapter_is_short(name: str, limit: int) -> None:
    """The promise of the page: so few lines for a cache, for slots, for blocks, imports not counted."""
    text = (EXAMPLES / f"stranger_{name}adapter.py").read_text(encoding="utf-8")
    assert len(text.partition("\nclass ")[2].splitlines()) < limit


@pytest.mark.parametrize(
    ("adapter", "place", "edit", "law"),
    [
        ("slots_adapter:StrangerSlots", "slots:PageList.take", ["count > len", "count > 2 + len"], "A3"),
        ("slots_adapter:StrangerSlots", "slots:PageList.give_back", ["< len(pages)", "< 0"], "A5"),
        ("blocks_adapter:StrangerBlocks", "blocks:BlockStore.take", [" if at not in parents", ""], "C1"),
        ("blocks_adapter:StrangerBlocks", "blocks:BlockStore.publish", [" and is_below", ""], "C3"),
    ],
)
def test_the_shorter_adapters_show_what_is_wrong(
    adapter: str, place: str, edit: list[str], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hide nothing: what is broken behind them is found by its law."""
    monkeypatch.syspath_prepend(EXAMPLES)
    with planted([Edit(f"stranger_{place}", *edit)]), pytest.raises(AssertionError, match=f"breaks {law}"):
        check_adapter(f"stranger_{adapter}", examples=30, timeout=2)  # parents in a ring never end


def test_its_policy_is_compared_and_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """R5: an order that the judge does not know is held to all laws but that of the order."""
    monkeypatch.syspath_prepend(EXAMPLES)
    options = ["--mode", "serial", "--requests", "30", "--capacity", "4k", "--jobs", "1", "--json"]
    policies = ["--eviction-policy", "lru", "--eviction-policy", "stranger_policy:Cheapest"]
    played = CliRunner().invoke(main, ["replay", "chat", *options, *policies], catch_exceptions=False)
    assert played.exit_code == 0, played.output
    assert [run["config"]["eviction_policy"] for run in json.loads(played.stdout)["runs"]] == policies[1::2]
    examined = ["verify", "--adapter", "stranger_policy:CheapestRadix", "--examples", "5", "--jobs", "1"]
    result = CliRunner().invoke(main, examined, catch_exceptions=False)
    assert " 0 violated" in result.stdout
    (unclaimed,) = [line for line in result.stdout.splitlines() if line.startswith("not claimed: ")]
    assert ", R11, " in unclaimed
