"""The script that does all work on a GPU, as far as it can be seen without one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "gpu"
TEXT = SCRIPT.read_text(encoding="utf-8")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
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
    assert list(LIMITS) == ["facts", "warm", "tests", "benchmarks", "stress", *TOOLS]
    assert sum(LIMITS.values()) < 25 * 60
    assert max(LIMITS.values()) < 10 * 60


def test_every_file_that_a_step_names_exists() -> None:
    """Every file that a step names exists, since a wrong name would be found on a costly machine."""
    named = set(re.findall(r"\b(?:tests|benchmarks)/[\w/]+(?:\.py)?", TEXT))
    assert {"tests/stress", "benchmarks/bench_gpu_pools.py"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_step_that_fails_does_not_stop_the_next_one(tmp_path: Path) -> None:
    """Each leaves its log, and the whole is a failure."""
    done = run(tmp_path / "out", "benchmarks", "stress", PYTHON="false")
    assert done.returncode == 1
    assert re.findall(r"== (\w+): exit status 1 after", done.stdout) == ["benchmarks", "stress"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["benchmarks.log", "stress.log"]


def test_a_machine_that_lacks_something_ends_early_and_says_what(tmp_path: Path) -> None:
    """A13: with a status of its own, before 25 minutes of failures."""
    done = run(tmp_path / "out", "facts", "tests", PYTHON=sys.executable)
    assert done.returncode == 3
    assert re.findall(r"^== (\w+)$", done.stdout, re.MULTILINE) == ["facts"]
    assert "MISSING: torch" in done.stdout
    assert "this machine lacks what the other steps need" in done.stderr


SANITIZER = """#!/bin/sh
# What it finds in the planted fault, and in tests.
printf '%s\\n' "$*" >> "$SAID"
case "$*" in *gpu_controls.py*) exit "$PLANTED" ;; *) exit "$TESTS" ;; esac
"""


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("planted", "tests", "status", "told"),
    [
        (9, 0, 0, "{} sees the planted fault"),
        (9, 9, 1, "{} sees the planted fault"),
        (0, 0, 1, "{} does NOT see the planted fault (exit status 0)"),
        (77, 0, 0, "{}: no fault could be planted, so that its silence proves nothing"),
        (78, 0, 1, "{}: without a GPU its tests would all be skipped"),
    ],
)
def test_each_tool_has_to_see_a_fault_first(
    tool: str, planted: int, tests: int, status: int, told: str, tmp_path: Path
) -> None:
    """A17: then its silence means something; a stand-in for compute-sanitizer says what it was given."""
    (tmp_path / "compute-sanitizer").write_text(SANITIZER, encoding="utf-8")
    (tmp_path / "compute-sanitizer").chmod(0o755)
    found = {"PLANTED": str(planted), "TESTS": str(tests), "SAID": str(tmp_path / "said")}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run(tmp_path / "out", tool, PYTHON=sys.executable, PATH=path, **found)
    assert done.returncode == status, done.stdout
    assert told.format(tool) in done.stdout
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith(f"--tool {tool} --error-exitcode 9 ") for line in said)
    assert len(said) == (1 if planted in (0, 78) else 2)
    assert said[0].endswith(f".ci/gpu_controls.py {tool}")


def test_where_there_is_no_sanitizer_its_package_is_named(tmp_path: Path) -> None:
    """A17: one word stands for the four steps."""
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "env", "timeout", "dirname", "mkdir", "tail", "sed"):
        (bare / name).symlink_to(shutil.which(name) or name)
    done = run(tmp_path / "out", "sanitizer", PYTHON="/bin/false", PATH=str(bare))
    assert done.returncode == 1
    assert re.findall(r"^== (\w+)$", done.stdout, re.MULTILINE) == list(TOOLS)
    assert done.stdout.count("/bin/false -m pip install nvidia-cuda-sanitizer-api brings it") == 4


@pytest.mark.parametrize("tool", TOOLS)
def test_a_fault_that_cannot_be_planted_says_why(tool: str) -> None:
    """A17: here there is no GPU; one without NVRTC or Triton says so, too."""
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "gpu_controls.py", tool],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (78, "")
    assert done.stdout == f"the fault for {tool} is not planted: there is no GPU\n"


def test_a_rehearsal_runs_a_step_without_a_gpu(tmp_path: Path) -> None:
    """The same command as on a GPU, but for what needs one."""
    done = run(tmp_path, "facts", PYTHON=sys.executable, PYMLLM_GPU_REHEARSAL="1")
    assert done.returncode == 0, done.stdout
    assert "torch 2." in done.stdout


def test_pytest_benchmark_need_not_be_there(tmp_path: Path) -> None:
    """The benchmarks of a GPU measure by themselves."""
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


WARMING = """#!/bin/sh
# A Python that takes long over tests, and notes its number and what it was given.
case "$*" in *--tb=short*) echo "$$ $*" >> "$SAID"; exec sleep 100 ;; esac
exit 1
"""


def test_an_interrupt_ends_all_that_runs_and_begins_no_other_step(tmp_path: Path) -> None:
    """An interrupt that only the script hears ends its warming processes, which wait for no lock of a GPU."""
    (tmp_path / "python").write_text(WARMING, encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    said = tmp_path / "said"
    said.touch()
    told = {"PYTHON": str(tmp_path / "python"), "SAID": str(said)}
    running = subprocess.Popen(
        [SCRIPT, tmp_path / "out", "warm", "stress"],
        env={**os.environ, **told},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    until = time.monotonic() + 60
    while len(said.read_text(encoding="utf-8").splitlines()) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    assert (running.communicate(timeout=60)[0], running.returncode) == ("== warm\n", 130)
    lines = said.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert all(" --gpu-lock=off tests/unit/" in line for line in lines)
    assert [line for line in lines if Path("/proc", line.split()[0]).exists()] == []


def test_steps_of_tests_take_a_shard(tmp_path: Path) -> None:
    """Of all runners each test is run by one; what is measured is not divided."""
    done = run("--shard", "2/3", tmp_path / "out", "tests", "benchmarks", "stress", PYTHON="echo")
    assert done.returncode == 0, done.stdout
    shards = {
        path.stem: path.read_text().count("--gpu-shard=2/3") for path in (tmp_path / "out").glob("*.log")
    }
    assert shards == {"tests": 1, "benchmarks": 0, "stress": 1}
    for path in (tmp_path / "out").glob("*.log"):  # a test that hangs shows where before its step is killed
        assert int(re.findall(r"--gpu-timeout=(\d+)", path.read_text())[0]) < LIMITS[path.stem]
    done = run("--shard", "3", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--shard takes N/M, such as 1/3, not '3'" in done.stderr


def test_what_makes_no_sense_ends_with_status_2(tmp_path: Path) -> None:
    """Before anything is begun; a word that looks like an option is no folder."""
    assert run().returncode == 2
    done = run(tmp_path / "out", "facts", "everything")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no step is called everything; there are facts, warm, tests, " in done.stderr
    assert all(name in done.stderr for name in (*LIMITS, "sanitizer"))
    done = run("--shards=1/3", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "there is no option --shards=1/3; .ci/gpu --help tells more\n"
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert ".ci/gpu [--shard N/M] FOLDER" in done.stdout
