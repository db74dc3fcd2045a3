"""The script that does all work on a GPU, as far as it can be seen without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "gpu"
TEXT = SCRIPT.read_text(encoding="utf-8")
LIMITS = {name: int(seconds) for name, seconds in re.findall(r"\[(\w+)\]=(\d+)", TEXT)}


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_all_steps_take_less_than_25_minutes() -> None:
    """And none takes ten, where a command may not take longer."""
    assert list(LIMITS) == ["facts", "tests", "benchmarks", "stress", "sanitizer"]
    assert sum(LIMITS.values()) < 25 * 60
    assert max(LIMITS.values()) < 10 * 60


def test_every_file_that_a_step_names_exists() -> None:
    """A renamed file would be found out where nobody can afford it."""
    named = set(re.findall(r"\b(?:tests|benchmarks)/[\w/]+(?:\.py)?", TEXT))
    assert {"tests/stress", "benchmarks/bench_gpu_pools.py"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_step_that_fails_does_not_stop_the_next_one(tmp_path: Path) -> None:
    """Each leaves its log, and the whole is a failure."""
    done = run(tmp_path / "out", "benchmarks", "facts", PYTHON="false")
    assert done.returncode == 1
    assert re.findall(r"== (\w+): exit status 1 after", done.stdout) == ["benchmarks", "facts"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["benchmarks.log", "facts.log"]


def test_a_rehearsal_runs_a_step_without_a_gpu(tmp_path: Path) -> None:
    """The same command as on a GPU, but for what needs one."""
    done = run(tmp_path, "facts", PYTHON=sys.executable, PYMLLM_GPU_REHEARSAL="1")
    assert done.returncode == 0, done.stdout
    assert "torch 2." in done.stdout


def test_pytest_benchmark_need_not_be_there(tmp_path: Path) -> None:
    """Issue 10: the benchmarks of a GPU measure by themselves."""
    (tmp_path / "pytest_benchmark.py").write_text("raise ImportError")
    done = run(
        tmp_path / "out",
        "benchmarks",
        PYTHON=sys.executable,
        PYTHONPATH=str(tmp_path),
        PYMLLM_GPU_REHEARSAL="1",
        PYTEST_ADDOPTS="-k enter_one_slot",
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed", done.stdout)


def test_steps_of_tests_take_a_shard(tmp_path: Path) -> None:
    """Of all runners each test is run by one; what is measured is not divided."""
    done = run("--shard", "2/3", tmp_path / "out", "tests", "benchmarks", "stress", PYTHON="echo")
    assert done.returncode == 0, done.stdout
    shards = {
        path.stem: path.read_text().count("--gpu-shard=2/3") for path in (tmp_path / "out").glob("*.log")
    }
    assert shards == {"tests": 1, "benchmarks": 0, "stress": 1}
    done = run("--shard", "3", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--shard takes N/M, such as 1/3, not '3'" in done.stderr


def test_what_makes_no_sense_ends_with_status_2(tmp_path: Path) -> None:
    """Before anything is begun."""
    assert run().returncode == 2
    done = run(tmp_path / "out", "facts", "everything")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no step is called everything" in done.stderr
