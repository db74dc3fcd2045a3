"""What a missing GPU does to a test, and what the header tells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

GPU_TESTS = """
import pytest

@pytest.mark.gpu
def test_alone():
    raise AssertionError("ran without a GPU")

def test_on_each_device(device):
    assert device.type == "cpu"
"""


@pytest.fixture
def run_pytest(tmp_path: Path):
    """Run ``GPU_TESTS`` with our conftest and settings on a machine that shows no GPU."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_gpu.py").write_text(GPU_TESTS, encoding="utf-8")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-c",
                ROOT / "pyproject.toml",
                "--rootdir",
                tmp_path,
                *options,
                tmp_path,
            ],
            cwd=tmp_path,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_gpu_test_without_a_gpu_is_skipped_with_the_reason(run_pytest) -> None:
    """A machine without a GPU stays green and says what it did not test."""
    done = run_pytest("--hypothesis-profile=dev", "--hypothesis-seed=41")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped" in done.stdout
    assert "needs a CUDA device" in done.stdout
    assert "profile dev, --hypothesis-seed: 41" in done.stdout


def test_the_ci_profile_says_that_no_seed_matters(run_pytest) -> None:
    """Runs of the gate repeat exactly, and their header says so."""
    assert "profile ci, --hypothesis-seed: fixed by each test" in run_pytest("--hypothesis-profile=ci").stdout


def test_require_gpu_turns_that_skip_into_a_failure(run_pytest) -> None:
    """A CUDA runner that lost its device does not pass by skipping."""
    done = run_pytest("--require-gpu")
    assert done.returncode == 1, done.stdout
    assert "1 passed, 2 errors" in done.stdout
