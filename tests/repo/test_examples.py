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
    assert "2 passed" in done.stdout


def test_its_faults_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1, R6, R8: faults from outside the package are planted and looked for like our own."""
    monkeypatch.syspath_prepend(EXAMPLES)
    arguments = ["faults", "--jobs", "1", "--cabinet", "stranger_faults:TABLE"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "5 of 5 faults caught by a listed law" in result.stdout


def test_the_cache_knows_nothing_of_us() -> None:
    """Some fifty lines of code, and no import of pymllm."""
    text = (EXAMPLES / "stranger_cache.py").read_text(encoding="utf-8")
    assert "import pymllm" not in text
    assert "from pymllm" not in text
    assert len(text.splitlines()) < 70


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
    assert [line for line in result.stdout.splitlines() if line.startswith("R11 ") and "not claimed" in line]
