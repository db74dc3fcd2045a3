"""The workflows that users copy are quoted by docs/feeds, and name only existing commands and metrics."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
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
PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in [*(ROOT / "docs" / "feeds").glob("*.md"), ROOT / "docs" / "campaigns.md"]
}
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
    r"URL-OF-PYMLLM|START-MY-SERVER|my_package\.my_adapter:MyCache|MY-PROJECT|\S+/bench_my_cache\.py|my_project\.prom"
)


def steps_of(name: str) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(FILES[name])["jobs"].values() for step in job["steps"]]


def code_of(name: str) -> str:
    """Return the text of a file without its comment lines."""
    return re.sub(r"^ *(#|//).*$", "", FILES[name], flags=re.MULTILINE)


def test_the_pages_quote_every_file_whole() -> None:
    """Each file is quoted once and whole below a link to it, and no other workflow is quoted."""
    languages = ("yaml", "groovy", "python")
    quoted = {
        block: page
        for page, text in PAGES.items()
        for language, block in BLOCK.findall(text)
        if language in languages and block.lstrip().startswith(("#", "//", '"""'))
    }
    assert sorted(quoted) == sorted(FILES.values())
    for name, text in FILES.items():
        assert re.search(rf"\]\((\.\./)+examples/workflows/{re.escape(name)}\):\n\n```", PAGES[quoted[text]])


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
    names = (
        "github-summary.yml",
        "junit.yml",
        "prometheus.yml",
        "badge.yml",
        "nightly.yml",
        "server-probe.yml",
    )
    for name in names:
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
    """Every metric that the page and the rules name is written, so that no alert waits in vain."""
    told = set(re.findall(r"\bpymllm_[a-z_]+", PAGES["prometheus.md"] + FILES["prometheus-rules.yml"]))
    figures = [FIGURE, Figure("m", 1.0, "bytes"), Figure("h", 0.5, "share"), Figure("s", 9.0, "steps/s")]
    absent = samples.adapter("absent", None, [], problems=[{"message": "no module"}])
    kinds = [
        samples.verify(absent),
        samples.faults(),
        samples.soak(),
        samples.vectors(),
        samples.watch(),
        samples.probe(),
        samples.verify(),
    ]
    runs = [samples.run(plain) for plain in kinds] + [run for it in figures for run in days(it)]
    assert told == set(re.findall(r"^# TYPE (\w+)", make_openmetrics(runs), flags=re.MULTILINE))


# -- the night ---------------------------------------------------------------------------------------------

NIGHT: dict[str, Any] = yaml.safe_load(FILES["nightly.yml"])["jobs"]["laws"]
SAYS = """#!/bin/sh
printf '%s\\n' "$*" >> said.txt
"""
GH = """#!/bin/sh
printf 'gh %s\\n' "$*" >> said.txt
case "$1 $2" in
"run list") echo 9; echo 8; echo 7 ;;
"run download") [ -d "nights/$3" ] && cp -r "nights/$3" before ;;
esac
"""


REAL = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pymllm "$@"\n'
needs_jq = pytest.mark.skipif(
    shutil.which("jq") is None, reason="GitHub's runners have jq, this machine has none: apt-get install jq"
)


def play(name: str, folder: Path, adapters: str | None = None, **programs: str) -> list[str]:
    """Run the script of a step of the night as GitHub does, with stand-ins; return what these were told."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    for program, source in programs.items():
        (bin_folder / program).write_text(source, encoding="utf-8")
        (bin_folder / program).chmod(0o755)
    (script,) = (step["run"] for step in steps_of("nightly.yml") if step.get("name") == name)
    told = {key: value for key, value in NIGHT["env"].items() if EXPRESSION.search(value) is None}
    env = {**os.environ, **told, "PATH": f"{bin_folder}:{os.environ['PATH']}", "RUN": "https://run"}
    env |= {"GITHUB_RUN_NUMBER": "41", "LC_ALL": "C", "PYTHONPATH": str(ROOT / "src")}
    env |= {"GITHUB_STEP_SUMMARY": str(folder / "shown.md")}
    env |= {"ADAPTERS": adapters} if adapters is not None else {}
    done = subprocess.run(
        ["bash", "-e"], input=script, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = folder / "said.txt"
    return said.read_text(encoding="utf-8").splitlines() if said.exists() else []


def test_code_of_strangers_gets_no_right_to_write() -> None:
    """A job that installs packages may only read; a job that may write runs only GitHub's own programs."""
    for job in yaml.safe_load(FILES["nightly.yml"])["jobs"].values():
        scripts = "".join(step.get("run", "") for step in job["steps"])
        assert ("pip install" in scripts) == ("write" not in job["permissions"].values())
        assert ("pymllm " in scripts) == ("pip install" in scripts)
        assert not any("github.token" in value for value in job.get("env", {}).values())


def test_what_the_night_types_can_be_typed(tmp_path: Path) -> None:
    """With all adapters, the known deviations, and another seed each night for one of the two."""
    (tmp_path / "tonight").mkdir()
    adapters = NIGHT["env"]["ADAPTERS"].split()
    (tmp_path / "tonight" / "adapters.txt").write_text("\n".join([*adapters, ""]), encoding="utf-8")
    play("Search", tmp_path, pymllm=SAYS)
    search, matrix = (words.split() for words in play("Matrix", tmp_path))
    assert [wrong for words in (search, matrix) if (wrong := what_is_wrong(words))] == []
    assert search[1 : 1 + 2 * len(adapters)] == [word for it in adapters for word in ("--adapter", it)]
    assert (matrix[0], matrix[1 : 1 + len(adapters)]) == ("compare", adapters)
    for words, seed in ((search, "41"), (matrix, "0")):
        assert words[words.index("--seed") + 1] == seed
        assert words[words.index("--deviations") + 1] == "pymllm/peers/findings/known.toml"


@needs_jq
def test_an_adapter_that_cannot_start_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left out of both searches, and named with the reason, here a checkout that is not there."""
    pytest.importorskip("pymllm_peers", reason="pip install ./peers brings adapters that cannot start here")
    monkeypatch.delenv("PYMLLM_MLLM", raising=False)
    tonight = tmp_path / "tonight"
    tonight.mkdir()
    play("What can be judged", tmp_path, "rows mllm-rows index-dict", pymllm=REAL)
    assert (tonight / "adapters.txt").read_text(encoding="utf-8") == "rows\nindex-dict\n"
    (left_out,) = (tonight / "left-out.txt").read_text(encoding="utf-8").splitlines()
    assert left_out.startswith("mllm-rows: cannot be built with {")
    assert "clone it, check b9c3070 out and set PYMLLM_MLLM to its folder" in left_out
    play("Search", tmp_path, pymllm=SAYS)
    search, matrix = play("Matrix", tmp_path)
    assert search.startswith("verify --adapter rows --adapter index-dict --seed 41 ")
    assert matrix.startswith("compare rows index-dict --seed 0 ")
    play("Page and summary", tmp_path, pymllm="#!/bin/sh\ntouch summary.md\n")
    assert (tmp_path / "shown.md").read_text(encoding="utf-8").endswith(f"\n\n    {left_out}\n")


@needs_jq
def test_where_no_adapter_can_start_the_night_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without names, a search would judge this package's own classes."""
    pytest.importorskip("pymllm_peers", reason="pip install ./peers brings adapters that cannot start here")
    monkeypatch.delenv("PYMLLM_MLLM", raising=False)
    (tmp_path / "tonight").mkdir()
    with pytest.raises(AssertionError, match=r"\(1, ''\)"):
        play("What can be judged", tmp_path, "mllm-rows", pymllm=REAL)
    assert (tmp_path / "tonight" / "adapters.txt").read_text(encoding="utf-8") == ""


def test_the_night_takes_the_newest_night_that_had_a_matrix(tmp_path: Path) -> None:
    """One had no artefact, one no matrix; in the first night there is nothing."""
    play("What the last night kept", tmp_path, gh=GH)
    assert not (tmp_path / "before").exists()
    for night, text in (("8", ""), ("7", "{}")):
        (tmp_path / "nights" / night).mkdir(parents=True)
        (tmp_path / "nights" / night / "compare.json").write_text(text, encoding="utf-8")
    play("What the last night kept", tmp_path)
    assert (tmp_path / "before" / "compare.json").read_text(encoding="utf-8") == "{}"


@needs_jq
@pytest.mark.parametrize(
    ("before", "line"),
    [
        (samples.adapter("rows", "rows", [samples.law("P2", "holds")]), None),
        (
            samples.adapter("rows", "rows", [samples.law("P2", "violated")]),
            "P2 of rows: violated, now holds",
        ),
        (samples.adapter("gone", "rows", [samples.law("P2", "holds")]), "only before: gone"),
        (None, None),
    ],
)
def test_the_night_writes_an_issue_where_a_verdict_changed(
    before: dict[str, Any] | None, line: str | None, tmp_path: Path
) -> None:
    """For the worse, for the better, and where an adapter came or went; not in the first night."""
    tonight = samples.adapter("rows", "rows", [samples.law("P2", "holds")])
    versions = {
        "before": "sglang 0.5.22\nvllm 0.33.0\n",
        "tonight": "ai-dynamo-runtime 1.6.1\nsglang 0.5.23\n",
    }
    goal = "every row is taken"
    for night, row, times in (("before", before, 7), ("tonight", tonight, 0)):
        (tmp_path / night).mkdir()
        (tmp_path / night / "versions.txt").write_text(versions[night], encoding="utf-8")
        if row is not None:
            machines = [{**row["machines"][0], "situations": {goal: times}}]
            plain = samples.verify({**row, "machines": machines}, schema="pymllm.compare", matrix=[])
            (tmp_path / night / "compare.json").write_text(json.dumps(plain), encoding="utf-8")
    (tmp_path / "tonight" / "left-out.txt").write_text("gone: no module\n", encoding="utf-8")
    play("Text where a verdict changed", tmp_path, gh=GH, pymllm=REAL)
    said = play("Issue", tmp_path)
    issue = tmp_path / "tonight" / "issue.md"
    assert issue.exists() == bool(said) == (line is not None)
    if line is None:
        return
    assert re.fullmatch(
        r"gh issue create --title A verdict changed: \S+ --body-file tonight/issue\.md", said[0]
    )
    lines = issue.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "A verdict changed since the last night."
    assert lines[4:7] == [
        "| ai-dynamo-runtime | none | 1.6.1 |",
        "| sglang | 0.5.22 | 0.5.23 |",
        "| vllm | 0.33.0 | none |",
    ]
    assert goal in (tmp_path / "changes.json").read_text(encoding="utf-8")
    assert not any(other in "\n".join(lines) for other in (goal, "compare.json"))
    start = lines.index("Left out, because they cannot start:")
    assert f"    {line}" in lines[8 : start - 1]
    assert lines[start + 2] == "    gone: no module"
    assert "the artefact `tonight` of [this run](https://run), for a law" in lines[-3]
    assert lines[-1] == "    pymllm bisect PROGRAM --package PACKAGE"
