"""The runner of one file on its example, and on one with a bug."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conformance.vectors.runner import FOLDER, RUNNER, VECTORS

FILE = FOLDER / "prefix.jsonl"


def test_the_example_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """Some vectors are played, and none fails."""
    assert RUNNER.main([str(FILE)]) == 0
    said = capsys.readouterr().out
    assert "passed" in said
    assert "failed" not in said


class Forgetful(RUNNER.PageCache):  # type: ignore[misc, name-defined]
    """Loses count of holds."""

    def do_lock(self, step: int, op: dict[str, Any]) -> dict[str, str]:
        self.nodes[step] = self.nodes[op["of"]]
        return {"is": "locked"}


def test_a_bug_is_shown_and_can_be_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A known deviation does not fail; one that passes is reported."""
    assert RUNNER.main([str(FILE)], Forgetful) == 1
    failed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("prefix-")]
    assert failed
    played = {
        json.loads(line)["id"]: RUNNER.play(json.loads(line), RUNNER.PageCache)[0]
        for line in FILE.read_text(encoding="utf-8").splitlines()[1:]
    }
    sound = next(id for id, verdict in played.items() if verdict == "passed" and id not in failed)
    known = tmp_path / "known.json"
    known.write_text(
        json.dumps({**dict.fromkeys(failed, "holds are lost"), sound: "wrong"}), encoding="utf-8"
    )
    assert RUNNER.main([str(FILE), "--known", str(known)], Forgetful) == 0
    said = capsys.readouterr().out
    assert "known: holds are lost" in said
    assert f"{sound}  passes, and is listed as a known deviation" in said


def test_every_reason_to_skip_is_told() -> None:
    """A claim, a configuration, and an operation."""
    header, first, *_ = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    assert header["kind"] == "prefix"
    fitting = {"page_size": 1, "window": None, "pool": "token", "slots": 2}
    vector = {
        **first,
        "needs": [],
        "config": fitting,
        "steps": [{"op": {"op": "hash", "of": 1}, "expect": {}}],
    }
    assert RUNNER.play({**vector, "needs": ["mamba"]}, RUNNER.PageCache) == (
        "skipped",
        "does not claim mamba",
    )
    assert (
        RUNNER.play({**vector, "config": {**fitting, "window": 4}}, RUNNER.PageCache)[1]
        == "cannot be built so"
    )
    assert RUNNER.play(vector, RUNNER.PageCache) == ("skipped", "hash is unsupported")


def test_it_is_short_and_runs_by_itself(tmp_path: Path) -> None:
    """At most 300 lines, and without this package: -S -E leaves the standard library."""
    script = VECTORS / "runners" / "python" / "run_vectors.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 300
    done = subprocess.run(
        [sys.executable, "-S", "-E", script, FILE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
