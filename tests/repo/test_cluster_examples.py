"""The files of examples/cluster play a campaign, with stand-ins for a cluster."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.repo.test_pages import what_is_wrong

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
ARRAY = CLUSTER / "soak-array.sbatch"
JOBS: list[dict[str, Any]] = [*yaml.safe_load_all((CLUSTER / "soak-indexed-job.yaml").read_text("utf-8"))]
SAYS = '#!/bin/sh\nprintf "%s\\n" "$*" >> said.txt\nexit "${STATUS:-0}"\n'


def run(script: str, folder: Path, *words: str, **env: str) -> tuple[int, list[str]]:
    """Run a script of a file, and return its status and the commands that it has typed."""
    stand_in = folder / "bin" / "pymllm"
    stand_in.parent.mkdir(exist_ok=True)
    if not stand_in.exists():
        stand_in.write_text(SAYS, encoding="utf-8")
        stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{stand_in.parent}:{os.environ['PATH']}", **env}
    done = subprocess.run(
        ["bash", "-c", script, "script", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    said = folder / "said.txt"
    return done.returncode, said.read_text("utf-8").splitlines() if said.exists() else []


def script_of(job: dict[str, Any]) -> str:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    shell, option, script = container["command"]
    assert (shell, option) == ("sh", "-c")
    return str(script)


@pytest.mark.parametrize(("status", "end"), [(0, 0), (1, 0), (2, 1), (3, 1), (143, 1)])
def test_a_task_of_the_array_is_a_shard(status: int, end: int, tmp_path: Path) -> None:
    """A broken law is a result; what was not played to its end fails, and can be sent again."""
    text = ARRAY.read_text("utf-8")
    env = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_CPUS_PER_TASK": "2", "STATUS": str(status)}
    code, (line,) = run(text, tmp_path, **env)
    assert (code != 0) == bool(end)
    words = shlex.split(line)
    assert what_is_wrong(words) is None
    assert words[-6:] == ["--shard", "env/100", "--jobs", "2", "--output", "soak/shard-7"]
    assert "#SBATCH --array=1-100\n" in text


def test_the_job_behind_the_array_merges(tmp_path: Path) -> None:
    """All folders that are there, once."""
    for number in (1, 2):
        (tmp_path / "soak" / f"shard-{number}").mkdir(parents=True)
    code, (line,) = run(ARRAY.read_text("utf-8"), tmp_path, "merge")
    words = shlex.split(line)
    assert (code, what_is_wrong(words)) == (0, None)
    assert words[:5] == ["merge", "soak/shard-1", "soak/shard-2", "--output", "soak/merged"]


def test_an_index_is_a_shard_of_as_many_as_there_are_completions(tmp_path: Path) -> None:
    """With the volume that both jobs mount."""
    claim, shards, merge = JOBS
    for job in (shards, merge):
        spec = job["spec"]["template"]["spec"]
        assert spec["restartPolicy"] == "Never"
        assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert spec["containers"][0]["volumeMounts"][0]["name"] == spec["volumes"][0]["name"]
    count = shards["spec"]["completions"]
    for status, is_failed in (("0", False), ("1", False), ("3", True)):
        script = script_of(shards)
        code, lines = run(script, tmp_path, JOB_COMPLETION_INDEX="4", STATUS=status)
        assert (code != 0) == is_failed
        words = shlex.split(lines[-1])
        assert what_is_wrong(words) is None
        assert words[words.index("--shard") + 1] == f"env/{count}"
        assert words[-1] == "/campaign/shard-4"
    assert shards["spec"]["completionMode"] == "Indexed"
    assert (merge["spec"]["suspend"], merge["spec"]["backoffLimit"]) == (True, 0)
    words = shlex.split(script_of(merge).split("&& pymllm ")[1])
    assert what_is_wrong(words) is None


@pytest.mark.slow
def test_the_array_and_its_merge_are_the_campaign(tmp_path: Path) -> None:
    """Played for real, small: two tasks, of which one is started twice."""
    text = (
        ARRAY.read_text("utf-8").replace("SHARDS=100", "SHARDS=2").replace("1000000000", "600 --longest 200")
    )
    text = text.replace("my_package.my_adapter:MyCache", "rows")
    stand_in = tmp_path / "bin" / "pymllm"
    stand_in.parent.mkdir()
    python = f"PYTHONPATH={shlex.quote(str(ROOT / 'src'))} {shlex.quote(sys.executable)}"
    stand_in.write_text(f'#!/bin/sh\nexec env {python} -m pymllm "$@" > said.txt 2>&1\n', encoding="utf-8")
    stand_in.chmod(0o755)
    for task in ("1", "2", "1"):
        assert run(text, tmp_path, SLURM_ARRAY_TASK_ID=task)[0] == 0
    code, lines = run(text, tmp_path, "merge")
    assert (code, re.match(r"holds: 6\d\d operations", lines[-1]) is not None) == (0, True), lines
