"""The script that the workflows for CUDA runners call, with stand-ins for tox, the GPU and what was left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.child_processes import is_running, left_of

SCRIPT = Path(__file__).parents[2] / ".ci" / "gpu_job"
TOX = """#!/bin/sh
printf 'tox %s\\n' "$*" >> said
case "$*" in
*--notest*) exit "${INSTALL:-0}" ;;
*) eval "$TESTS" ;;
esac
"""
DOCTOR = """#!/bin/sh
printf 'pymllm %s\\n' "$*" >> said
echo '{}'
look=$(grep -c '^pymllm ' said)
eval "exit \\${LOOK_$look:-0}"
"""
Job = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Starts a job in a folder that looks like a checkout."""
    for path, source in (("bin/tox", TOX), (".tox/some-cuda/bin/pymllm", DOCTOR)):
        program = tmp_path / path
        program.parent.mkdir(parents=True)
        program.write_text(source, encoding="utf-8")
        program.chmod(0o755)
    names = ("RUNNER_NAME", "BUILDKITE_AGENT_NAME", "CI_RUNNER_ID", "CI_CONCURRENT_ID")
    kept = {key: value for key, value in os.environ.items() if key not in names}

    def start(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        env = {**kept, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYMLLM_GPU_LOCKS": str(tmp_path)}
        words = arguments or ("some-cuda", "2/3", "results")
        env |= {"RUNNER_NAME": "runner 7", "TESTS": "exit 0", **variables}
        with (tmp_path / "output").open("w", encoding="utf-8") as output:
            return subprocess.Popen(
                [SCRIPT, *words], cwd=tmp_path, env=env, stdout=output, stderr=subprocess.STDOUT
            )

    return start


def said(folder: Path) -> list[str]:
    return (folder / "said").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("variables", "status", "calls"),
    [
        ({}, 0, 3),
        ({"INSTALL": "7"}, 7, 1),
        ({"LOOK_1": "4"}, 75, 2),
        ({"LOOK_1": "127"}, 127, 2),
        ({"TESTS": "exit 1"}, 1, 4),
        ({"TESTS": "exit 4"}, 4, 4),
        ({"TESTS": "exit 1", "LOOK_2": "4"}, 75, 4),
    ],
)
def test_the_status_says_whose_fault_it_is(
    job: Job, variables: dict[str, str], status: int, calls: int, tmp_path: Path
) -> None:
    """The tests', or that of a device which is sick before them or after: that has one of its own."""
    assert job(**variables).wait(60) == status
    assert len(said(tmp_path)) == calls
    assert not list(tmp_path.glob("pymllm-job-*"))


def test_the_tests_are_those_of_the_shard(job: Job, tmp_path: Path) -> None:
    """After a look at the runner; what is found lies in the folder."""
    assert job().wait(60) == 0
    install, look, tests = said(tmp_path)
    assert install == "tox run -e some-cuda --notest"
    assert look == "pymllm doctor --json --deadline 3m --require-gpu --smoke"
    assert tests.startswith("tox run -e some-cuda --skip-pkg-install -- --gpu-shard=2/3 --gpu-lock=wait ")
    assert f"--junitxml={tmp_path}/results/tests.xml" in tests
    assert json.loads((tmp_path / "results" / "doctor.json").read_text()) == {}


def wait_for(path: Path) -> int:
    """Return the number that a file begins with, as soon as it does."""
    until = time.monotonic() + 30
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return int(path.read_text().split()[0])


LEAVES = "sleep 600 & echo $! > child; "


def test_what_the_tests_leave_is_ended(job: Job, tmp_path: Path) -> None:
    """An engine in a process of its own would keep the GPU's memory."""
    assert job(TESTS=LEAVES + "exit 0").wait(60) == 0
    assert left_of([wait_for(tmp_path / "child")]) == []


def test_a_job_that_is_cancelled_takes_its_tests_along(job: Job, tmp_path: Path) -> None:
    """A18: a service ends the script, and not what it has started."""
    running = job(TESTS=LEAVES + "wait")
    child = wait_for(tmp_path / "child")
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 143
    assert left_of([child]) == []


def test_the_next_job_ends_what_a_killed_one_has_left(job: Job, tmp_path: Path) -> None:
    """A18: of the same runner; another runner of the machine is left alone."""
    running = job(TESTS=LEAVES + "wait")
    child = wait_for(tmp_path / "child")
    assert wait_for(tmp_path / f"pymllm-job-{os.getuid()}-runner_7") > 0
    running.kill()
    running.wait(60)
    assert is_running(child)
    assert job(RUNNER_NAME="runner 8").wait(60) == 0
    assert is_running(child)
    assert job().wait(60) == 0
    assert "ending what an earlier job has left: " in (tmp_path / "output").read_text(encoding="utf-8")
    assert left_of([child]) == []


def test_a_number_that_is_somebody_elses_by_now_is_left_alone(job: Job, tmp_path: Path) -> None:
    """A18: numbers of processes come again; the time of its start does not."""
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        mark = tmp_path / f"pymllm-job-{os.getuid()}-runner_7"
        mark.write_text(f"{bystander.pid} 1\n")
        assert job().wait(60) == 0
        assert bystander.poll() is None
        assert not mark.exists()
    finally:
        bystander.kill()
        bystander.wait()


def test_bad_input_is_explained(job: Job, tmp_path: Path) -> None:
    """Before anything is begun."""
    assert job("some-cuda").wait(60) == 2
    assert ".ci/gpu_job ENVIRONMENT N/M FOLDER" in (tmp_path / "output").read_text(encoding="utf-8")
