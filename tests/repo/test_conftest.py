"""The header of a test run tells its profile and its seed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--hypothesis-profile=dev", "--hypothesis-seed=41"], "profile dev, --hypothesis-seed: 41"),
        (["--hypothesis-profile=ci"], "profile ci, --hypothesis-seed: fixed by each test"),
    ],
)
def test_the_header_tells_profile_and_seed(tmp_path: Path, options: list[str], told: str) -> None:
    """A run can be repeated; those of the gate repeat exactly, and say so."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text("def test_it(device): assert device.type == 'cpu'", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path]
    done = subprocess.run(
        [*command, *options, "-m", "not gpu", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert told in done.stdout
