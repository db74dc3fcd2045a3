"""The workflows that people copy are those that docs/feeds quotes, and name what there is."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pymllm.report.feeds import make_openmetrics
from pymllm.report.records import Figure
from tests.repo.test_pages import BLOCK, what_is_wrong
from tests.unit.report import samples
from tests.unit.report.test_trends import FIGURE, days

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "feeds").glob("*.md")}
FILES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (ROOT / "examples" / "workflows").iterdir()
    if path.is_file()
}
WORKFLOWS = [name for name in FILES if "\njobs:\n" in FILES[name]]

EXPRESSION = re.compile(r"\$\{\{.*?\}\}")
COMMAND = re.compile(r"(?:^|[ '/])pymllm ([a-z]+ -?[^'\n]*)", flags=re.MULTILINE)
ACTION = re.compile(r"[\w-]+/[\w./-]+@v\d+(\.\d+)*")
PLACEHOLDER = re.compile(
    r"URL-OF-PYMLLM|my_package\.my_adapter:MyCache|MY-PROJECT|\S+/bench_my_cache\.py|my_project\.prom"
)


def steps_of(name: str) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(FILES[name])["jobs"].values() for step in job["steps"]]


def code_of(name: str) -> str:
    """What is no comment of its own line."""
    return re.sub(r"^ *(#|//).*$", "", FILES[name], flags=re.MULTILINE)


def test_the_pages_quote_every_file_whole() -> None:
    """Once each, below a link to it, and no other workflow: who copies from the page has the file."""
    languages = ("yaml", "groovy", "python")
    quoted = {
        block: page
        for page, text in PAGES.items()
        for language, block in BLOCK.findall(text)
        if language in languages
    }
    assert sorted(quoted) == sorted(FILES.values())
    for name, text in FILES.items():
        assert f"](../../examples/workflows/{name}):\n\n```" in PAGES[quoted[text]]


@pytest.mark.parametrize("name", FILES)
def test_the_commands_of_a_file_can_be_typed(name: str) -> None:
    """Each keeps a result or makes something of one; the others measure or alert, and have none."""
    commands = [shlex.split(words) for words in COMMAND.findall(code_of(name))]
    assert [wrong for words in commands if (wrong := what_is_wrong(words))] == []
    assert bool(commands) == (name not in ("bench_my_cache.py", "codspeed.yml", "prometheus-rules.yml"))


@pytest.mark.parametrize("name", FILES)
def test_the_head_of_a_file_names_what_is_to_be_replaced(name: str) -> None:
    """All of it, and nothing that is not there."""
    told = set(re.findall(r"^(?:#|//)   (\S+)", FILES[name], flags=re.MULTILINE))
    used = set(PLACEHOLDER.findall(code_of(name)))
    assert name == "bench_my_cache.py" or {it for it in told if PLACEHOLDER.fullmatch(it)} == used


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_is_one(name: str) -> None:
    """Each step runs a script that bash reads, or an action of a certain version; rights are told."""
    jobs = yaml.safe_load(FILES[name])["jobs"].values()
    assert all({"runs-on", "permissions", "timeout-minutes"} <= job.keys() for job in jobs)
    for step in steps_of(name):
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert ACTION.fullmatch(step["uses"])
            continue
        script = EXPRESSION.sub("x", step["run"])
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert EXPRESSION.search(step["run"]) is None, (
            "what somebody else wrote would become part of a script"
        )


def test_what_is_told_of_a_violation_is_told_although_verify_ends_in_1() -> None:
    """The step with the feed runs all the same, where the feed has verdicts."""
    for name in ("github-summary.yml", "junit.yml", "prometheus.yml", "badge.yml"):
        (feed,) = (step for step in steps_of(name) if "pymllm report" in step.get("run", ""))
        assert feed["if"] == "${{ !cancelled() }}"


def test_the_benchmark_runs() -> None:
    """On an allocator of ours, in place of the reader's."""
    name = "bench_my_cache.py"
    path = ROOT / "examples" / "workflows" / name
    test = runpy.run_path(str(path))["test_fill_and_clear"]
    made = test.__globals__["make_adapter"]
    test.__globals__["make_adapter"] = lambda wanted: made(
        {"my_package.my_adapter:MyCache": "token-slots"}[wanted]
    )
    played = []
    test(lambda work: played.append((work(), work())))
    assert played == [(None, None)]


def test_metrics_that_the_page_and_the_rules_name_are_written() -> None:
    """Nobody alerts on a metric that never comes."""
    told = set(re.findall(r"\bpymllm_[a-z_]+", PAGES["prometheus.md"] + FILES["prometheus-rules.yml"]))
    figures = [FIGURE, Figure("m", 1.0, "bytes"), Figure("h", 0.5, "share"), Figure("s", 9.0, "steps/s")]
    absent = samples.adapter("absent", None, [], problems=[{"message": "no module"}])
    kinds = [samples.verify(absent), samples.faults(), samples.soak(), samples.verify()]
    runs = [samples.run(plain) for plain in kinds] + [run for it in figures for run in days(it)]
    assert told == set(re.findall(r"^# TYPE (\w+)", make_openmetrics(runs), flags=re.MULTILINE))
