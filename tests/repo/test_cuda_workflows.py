"""The workflows for CUDA runners name existing files, run no outsider's code, and work with stand-ins."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pymllm.cli import main
from tests.repo.test_instruments_page import options_of_the_plugin, settings_of_the_plugin

ROOT = Path(__file__).parents[2]
JOB = (ROOT / ".ci" / "gpu_job").read_text(encoding="utf-8")
NAMES = ("runner", "retry", "gitlab", "buildkite")
TEXTS = {name: (ROOT / "examples" / f"cuda_{name}.yml").read_text(encoding="utf-8") for name in NAMES}
# A key "on" is YAML's True.
FILES: dict[str, dict[Any, Any]] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")
FAULT = 75


def steps_of(name: str) -> list[dict[str, Any]]:
    return [step for job in FILES[name]["jobs"].values() for step in job["steps"]]


def scripts_of(name: str) -> list[str]:
    """Every piece of shell, as the service hands it to a shell."""
    if name in ("runner", "retry"):
        return [step["run"] for step in steps_of(name) if "run" in step]
    if name == "gitlab":
        jobs = [job for job in FILES[name].values() if isinstance(job, dict)]
        parts = ("before_script", "script", "after_script")
        return ["\n".join(job[part]) for job in jobs for part in parts if part in job]
    return [step["command"].replace("$$", "$") for step in FILES[name]["steps"]]


ALL = "\n".join(script for name in NAMES for script in scripts_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_script_is_one(name: str) -> None:
    """Bash can parse every script of a workflow, and no text of an outsider becomes part of a script."""
    assert scripts_of(name)
    for script in scripts_of(name):
        assert EXPRESSION.search(script) is None
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert "\t" not in TEXTS[name]


def test_what_is_named_is_there() -> None:
    """Environments of tox, options of the plugin and of commands, files of this repository."""
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert "[testenv:py3{11,12,13,14}-torch{211,213,nightly}-{cpu,cuda}]" in tox
    cells = FILES["runner"]["jobs"]["test"]["strategy"]["matrix"]["cell"]
    cells = {cell["environment"] for cell in cells}
    cells |= {FILES["gitlab"][".cuda"]["variables"]["ENVIRONMENT"], FILES["buildkite"]["env"]["ENVIRONMENT"]}
    assert all(re.fullmatch(r"py31[1-4]-torch21[13]-cuda", cell) for cell in cells)
    words = set(re.findall(r"^\[testenv:([\w-]+)\]$", tox, flags=re.MULTILINE))
    assert set(re.findall(r"tox run -e ([\w-]+)", ALL)) == {"bench", "gpu"} <= words
    assert set(re.findall(r"--gpu[a-z-]+", JOB)) <= options_of_the_plugin()
    assert set(re.findall(r"-o (\w+)=", JOB)) <= settings_of_the_plugin()
    for command, options in re.findall(r"/bin/pymllm\"? ([a-z]+) ([^>|\n]+)", ALL + JOB):
        known = {name for option in main.commands[command].params for name in option.opts}
        assert set(re.findall(r"-{1,2}[a-z-]+", options.replace("results/store", ""))) <= known
    assert {"facts", "warm", "benchmarks"} <= set(
        re.findall(r"^(\w+)\(\) \{", (ROOT / ".ci" / "gpu").read_text(), re.M)
    )
    for path in re.findall(r"(?:examples/\w+\.py|\.ci/\w+)", ALL):
        assert (ROOT / path).is_file()


def test_nobody_from_outside_runs_code_on_a_runner() -> None:
    """A18: no pull request of a fork, and no right that a job does not need."""
    runner, retry = FILES["runner"], FILES["retry"]
    assert runner[True].keys() == {"push", "schedule", "workflow_dispatch"}
    assert runner["permissions"] == {"contents": "read"}
    assert retry["permissions"] == {}
    for name in ("runner", "retry"):
        for job in FILES[name]["jobs"].values():
            may_write = "write" in job.get("permissions", {}).values()
            assert may_write == ("self-hosted" not in job["runs-on"])
            scripts = "".join(step.get("run", "") for step in job["steps"])
            assert not may_write or not re.search(r"pip|tox|python|pymllm |\.ci/", scripts)
    assert all(it["with"]["persist-credentials"] is False for it in steps_of("runner")[:1])
    outside, inside = FILES["gitlab"][".cuda"]["rules"]
    assert outside == {"if": '$CI_PIPELINE_SOURCE == "merge_request_event"', "when": "never"}
    assert inside == {"if": '$CI_COMMIT_REF_PROTECTED == "true"'}
    assert "!build.pull_request.repository.fork" in FILES["buildkite"]["steps"][0]["if"]


def test_a_device_at_fault_is_tried_once_more() -> None:
    """A18: by the status that the script has for it, and no other failure of tests."""
    assert f"readonly fault={FAULT}" in JOB
    retry = FILES["gitlab"]["cuda-tests"]["retry"]
    assert (retry["max"], retry["exit_codes"]) == (1, [FAULT])
    automatic = FILES["buildkite"]["steps"][0]["retry"]["automatic"]
    assert {"exit_status": FAULT, "limit": 1} in automatic
    assert all(rule["limit"] == 1 for rule in automatic)
    (kept,) = (
        it for it in steps_of("runner") if it.get("with", {}).get("name", "").startswith("device-fault-")
    )
    assert f"steps.tests.outputs.status == '{FAULT}'" in kept["if"]
    assert "run_attempt == 1" in FILES["retry"]["jobs"]["again"]["if"]
    assert FILES["retry"][True]["workflow_run"]["workflows"] == [FILES["runner"]["name"]]


def test_every_job_has_an_end_and_keeps_what_it_found() -> None:
    """Every job has a time limit and keeps its results however it ends; dashboards read these results."""
    test = FILES["runner"]["jobs"]["test"]["strategy"]["matrix"]
    assert test["shard"] == [f"{number}/{len(test['shard'])}" for number in range(1, len(test["shard"]) + 1)]
    product = itertools.product(test["shard"], test["cell"])
    kept = {f"results-{cell['environment']}-{at}" for at, (_, cell) in enumerate(product)}
    feeds = FILES["runner"]["jobs"]["dashboards"]["strategy"]["matrix"]["feed"]
    assert {feed["folder"] for feed in feeds} == {*kept, "results-times"}
    assert all(
        "timeout-minutes" in job for name in ("runner", "retry") for job in FILES[name]["jobs"].values()
    )
    assert all("timeout_in_minutes" in step for step in FILES["buildkite"]["steps"])
    assert "timeout" in FILES["gitlab"][".cuda"]
    assert FILES["gitlab"]["cuda-tests"]["artifacts"]["when"] == "always"


# -- played ------------------------------------------------------------------------------------------------

SAYS = """#!/bin/sh
printf '%s\\n' "$*" >> said
exit "${STATUS:-0}"
"""


def play(script: str, folder: Path, programs: dict[str, str], **variables: str) -> int:
    """Run a script as a service does, with stand-ins for programs."""
    for path, source in programs.items():
        program = folder / path
        program.parent.mkdir(exist_ok=True)
        program.write_text(source, encoding="utf-8")
        program.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **variables}
    return subprocess.run(
        ["bash", "-e"], input=script, cwd=folder, env=env, text=True, check=False
    ).returncode


@pytest.mark.parametrize("status", [0, 1, FAULT])
def test_github_learns_the_status_of_the_tests(status: int, tmp_path: Path) -> None:
    """GitHub gets the status of failing tests: the upload of a device fault's mark asks for the status."""
    (step,) = (step for step in steps_of("runner") if step.get("id") == "tests")
    told = {"ENVIRONMENT": "some-cuda", "SHARD": "2/2", "STATUS": str(status), "GITHUB_OUTPUT": "output"}
    assert play(step["run"], tmp_path, {".ci/gpu_job": SAYS}, **told) == status
    assert (tmp_path / "said").read_text() == "some-cuda 2/2 results\n"
    output = tmp_path / "output"
    assert (output.read_text() if output.exists() else "") == (f"status={status}\n" if status else "")


def test_gitlab_and_buildkite_run_all_shards(tmp_path: Path) -> None:
    """One counts from 1, the other from 0."""
    programs = {".ci/gpu_job": SAYS, "bin/python": "#!/bin/sh\nmkdir -p .job/bin && : > .job/bin/activate\n"}
    gitlab = "\n".join([*FILES["gitlab"][".cuda"]["before_script"], *FILES["gitlab"]["cuda-tests"]["script"]])
    told = {"ENVIRONMENT": "some-cuda", "CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "2"}
    assert play(gitlab, tmp_path, programs, **told) == 0
    buildkite = scripts_of("buildkite")[0]
    told = {"ENVIRONMENT": "some-cuda", "BUILDKITE_PARALLEL_JOB": "1", "BUILDKITE_PARALLEL_JOB_COUNT": "2"}
    assert play(buildkite, tmp_path, programs, **told) == 0
    assert (tmp_path / "said").read_text() == "some-cuda 1/2 results\nsome-cuda 2/2 results\n"


GH = """#!/bin/sh
case "$1" in
api) printf '%s' "$FAULTS" ;;
*) printf '%s\\n' "$*" >> said ;;
esac
"""


@pytest.mark.parametrize(("faults", "said"), [("", ""), ("device-fault-1-1", "run rerun 77 --failed\n")])
def test_github_runs_again_what_met_a_sick_device(faults: str, said: str, tmp_path: Path) -> None:
    """A failure of tests stays one."""
    (script,) = scripts_of("retry")
    told = {"FAULTS": faults, "GH_REPO": "us/ours", "RUN": "77"}
    assert play(script, tmp_path, {"bin/gh": GH}, **told) == 0
    assert ((tmp_path / "said").read_text() if said else "") == said
    assert (tmp_path / "said").exists() is bool(said)
