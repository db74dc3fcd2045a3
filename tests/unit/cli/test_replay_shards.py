"""``pymllm replay --keep`` and ``--shard``, as they are typed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from pymllm.replay import replays
from pymllm.traces.trace_file import write_trace
from pymllm.work import workers
from pymllm.workloads.synthetic import make_requests
from tests.kept_results import results_in
from tests.unit.cli.test_replay import ctrl_c
from tests.unit.cli.typed import refused, typed

SIZES = ["--cache", "radix", "--cache", "chunk", "--capacity", "3k", "--capacity", "5k"]
POLICIES = ["--eviction-policy", "lru", "--eviction-policy", "lfu", "--jobs", "2"]
TASKS = 2 * (2 + 1) + 2


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a trace in it."""
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "trace.jsonl", make_requests("chat", 20))
    return tmp_path


GRID = ["replay-serial", "trace.jsonl", "--block-tokens", "16", *SIZES, *POLICIES]


def without_times(text: str) -> str:
    """A text with a dash for each time, and one blank for several: columns are as wide as what is in them."""
    return re.sub(" +", " ", re.sub(r"[\d,.]+ / [\d,.]+", "-", text))


def document_of(*words: str) -> tuple[str, Any]:
    """A document as it was printed, and without its times and memory."""
    result = typed(*words, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("replay")).validate(document)
    for run in document["runs"]:
        for name in ("match", "insert", "evict", "lock", "allocator", "total"):
            del run[name]
        del run["total_mean_us"], run["wall_seconds"], run["peak_rss_bytes"]
    return result.stdout, document


def test_what_shards_did_is_printed_as_one_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text and document, byte for byte, but for times: those are of the shards, and so the same each time."""
    text, (_, document) = typed(*GRID).stdout, document_of(*GRID)
    for number in (1, 2, 3):
        words = ["--shard", f"{number}/3", "--keep", f"{number}.jsonl"]
        result = typed(*GRID, *words, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        shard = json.loads(result.stdout)
        Draft202012Validator(make_schema("shard")).validate(shard)
        assert (shard["command"], shard["shard"], shard["file"]) == (
            "replay-serial",
            f"{number}/3",
            words[-1],
        )
        assert (shard["done"], shard["total"], shard["kept"]) == (shard["tasks"], TASKS, 0)
    parts = [(here / f"{number}.jsonl").read_text(encoding="utf-8") for number in (3, 1, 2)]
    (here / "all.jsonl").write_text("".join(parts), encoding="utf-8")
    monkeypatch.setattr(workers, "WorkerProcess", None)
    merged = typed(*GRID, "--keep", "all.jsonl")
    said = f"pymllm: all.jsonl: {TASKS} results taken from there, not replayed again\n"
    assert (merged.exit_code, merged.stderr) == (0, said)
    assert without_times(merged.stdout) == without_times(text)
    assert typed(*GRID, "--keep", "all.jsonl").stdout == merged.stdout
    printed, alike = document_of(*GRID, "--keep", "all.jsonl")
    assert alike == document
    assert typed(*GRID, "--keep", "all.jsonl", "--json").stdout == printed


def test_a_shard_in_words(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard reports its tasks and the way to merge all shards; a variable may give its number."""
    monkeypatch.setenv("PYMLLM_SHARD", "2/2")
    result = typed(*GRID, "--keep", "2.jsonl")
    assert (result.exit_code, result.stderr) == (0, "pymllm: this is shard 2/2, as PYMLLM_SHARD says\n")
    lines = result.stdout.splitlines()
    assert re.fullmatch(
        rf"pymllm replay-serial, shard 2/2: 4 tasks of {TASKS}, all done, \d+\.\d s", lines[0]
    )
    assert "no law was broken here" in lines
    assert lines[-1].endswith("cat 2.jsonl ... > all.jsonl")
    again = typed(*GRID, "--keep", "2.jsonl").stdout.splitlines()[0]
    assert ", all done, 4 of them before, " in again


def test_a_shard_that_saw_a_law_broken_ends_with_1(here: Path) -> None:
    """A shard or a merge with a broken law ends with status 1; beside a document a line says so."""
    words = [*GRID, "--keep", "it.jsonl"]
    typed(*words, "--shard", "1/1")
    lines = [json.loads(line) for line in (here / "it.jsonl").read_text(encoding="utf-8").splitlines()]
    (broken,) = [
        it for it in lines if it.get("task", "").startswith("trace.jsonl chunk (page size 1, capacity 3000)")
    ]
    broken["result"]["runs"] = []
    broken["result"]["violation"] = {"cache": "chunk", "law": "E3", "message": "one slot is lost"}
    (here / "it.jsonl").write_text("".join(f"{json.dumps(it)}\n" for it in lines), encoding="utf-8")
    said = "chunk (page size 1, capacity 3000) violates E3: one slot is lost"
    shard = typed(*words, "--shard", "1/1")
    assert (shard.exit_code, shard.stderr, said in shard.stdout.splitlines()) == (1, "", True)
    shard = typed(*words, "--shard", "1/1", "--json")
    assert (shard.exit_code, shard.stderr) == (1, f"pymllm: {said}\n")
    document = json.loads(shard.stdout)
    assert (document["exit_status"], [row["law"] for row in document["broken"]]) == (1, ["E3"])
    merged = typed(*words)
    assert merged.exit_code == 1
    assert "\nE3  VIOLATED by chunk in this run: one slot is lost\n" in merged.stdout
    assert merged.stdout.endswith("\nE3  of chunk with page size 1, capacity 3000\n")


def test_ctrl_c_of_a_shard_tells_what_was_done(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """130 as of every command, and the file goes on from there."""
    words = [*GRID, "--shard", "1/1", "--keep", "it.jsonl"]
    with monkeypatch.context() as patch:
        patch.setattr("pymllm.cli.replay.replay.progress_bar", ctrl_c)
        result = typed(*words, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (130, "pymllm: interrupted\n")
    assert (document["interrupted"], document["done"], document["tasks"]) == (True, 5, TASKS)
    assert json.loads(typed(*words, "--json").stdout)["kept"] == 5


@pytest.mark.parametrize(("words", "said"), [
    (["--shard", "1/2"], "--shard 1/2: its results are for a file"),
    (["--shard", "3/2", "--keep", "it"], "--shard 3/2: 3 is no shard of 2"),
    (["--shard", "1/2", "--keep", "it", "--store", "s"], "--store: a shard has a part of the results only"),
    (["--keep", "trace.jsonl"], "--keep trace.jsonl: this is trace.jsonl, which the command reads"),
    (["--keep", "it", "--cache", "radox"], "there is no cache 'radox'"),
    (["--keep", "nowhere/it"], "there is no folder nowhere"),
    (["--keep", "notes.md"], "notes.md: no line of it is a kept result; name another file"),
])  # fmt: skip
def test_what_cannot_be_kept_is_refused(here: Path, words: list[str], said: str) -> None:
    """X1: before anything is replayed, and before a file is made."""
    (here / "notes.md").write_text("# mine\n", encoding="utf-8")
    before = {path: path.read_bytes() for path in here.iterdir()}
    refused(*GRID, *words, words=said)
    assert {path: path.read_bytes() for path in here.iterdir()} == before


def test_results_of_another_version_are_told(here: Path) -> None:
    """They are replayed again, and whoever waits for that knows why."""
    words = [*GRID, "--keep", "it.jsonl"]
    typed(*words)
    text = (here / "it.jsonl").read_text(encoding="utf-8")
    old = re.sub(r'"key": "\w+"', lambda key: key[0][:-2] + 'x"', text).replace('"numpy": "', '"numpy": "0')
    (here / "it.jsonl").write_text(old, encoding="utf-8")
    result = typed(*words)
    assert result.exit_code == 0
    assert f"it.jsonl: {TASKS} of {TASKS} results do not count here, for they were made with numpy 0" in (
        result.stderr
    )
    assert "taken from there" not in result.stderr


def test_a_replay_at_one_point_is_kept_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept replay at one point has the same table and document as a replay that is not kept."""
    words = ["replay-serial", "trace.jsonl", "--block-tokens", "16", "--cache", "chunk"]
    text, (_, document) = typed(*words).stdout, document_of(*words)
    kept = typed(*words, "--keep", "it.jsonl")
    assert kept.stderr == ""
    monkeypatch.setattr(replays, "_run_cache", None)
    again = typed(*words, "--keep", "it.jsonl")
    assert again.stdout == kept.stdout
    assert again.stderr == "pymllm: it.jsonl: 1 result taken from there, not replayed again\n"
    assert document_of(*words, "--keep", "it.jsonl")[1] == document
    labels = [[line.split("  ")[:2] for line in it.splitlines()] for it in (text, kept.stdout)]
    assert labels[0] == labels[1]
    shard = json.loads(typed(*words, "--keep", "it.jsonl", "--shard", "1/2", "--json").stdout)
    assert (shard["tasks"], shard["total"], shard["kept"]) == (1, 1, 1)
    empty = typed(*words, "--keep", "it.jsonl", "--shard", "2/2")
    assert (empty.exit_code, "nothing was done" in empty.stdout) == (0, True)


def test_a_pipe_is_known_by_its_requests(here: Path) -> None:
    """It has no name that would tell it from another, and need not have one."""
    words = ["replay-serial", "-", "--block-tokens", "16", "--keep", "it.jsonl"]
    with (here / "trace.jsonl").open("rb") as trace:
        done = subprocess.run([sys.executable, "-m", "pymllm", *words], stdin=trace, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "replay of -: 20 requests" in done.stdout.decode()
    words[1] = "trace.jsonl"
    again = typed(*words)
    assert again.stdout == done.stdout.decode().replace("replay of -:", "replay of trace.jsonl:")
    assert again.stderr == "pymllm: it.jsonl: 1 result taken from there, not replayed again\n"


LONG = ["replay-serial", "chat", "--requests", "900", "--jobs", "1", "--cache", "radix"]
CAPACITIES = [word for size in (4, 6, 8, 10) for word in ("--capacity", f"{size}k")]


def test_one_that_was_killed_goes_on(here: Path) -> None:
    """With SIGKILL, in the middle of a shard: what it knew is not replayed again, and the merge has all."""
    words = [*LONG, *CAPACITIES, "--shard", "1/2", "--keep", "1.jsonl", "--json"]
    file = here / "1.jsonl"
    with subprocess.Popen([sys.executable, "-m", "pymllm", *words], stdout=subprocess.PIPE) as process:
        until = time.monotonic() + 120
        while not results_in(file):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
    known = len(results_in(file))
    assert (process.returncode, out) == (-signal.SIGKILL, b"")
    assert 1 <= known < 4
    file.write_bytes(file.read_bytes() + b'{"key": "half of a li')
    shard = json.loads(typed(*words).stdout)
    assert (shard["kept"], shard["done"], shard["tasks"], shard["total"]) == (known, 4, 4, 8)
    typed(*LONG, *CAPACITIES, "--shard", "2/2", "--keep", "2.jsonl")
    (here / "all.jsonl").write_bytes((here / "2.jsonl").read_bytes() + file.read_bytes())
    merged = document_of(*LONG, *CAPACITIES, "--keep", "all.jsonl")[1]
    assert len(results_in(here / "all.jsonl")) == 8  # nothing was added
    assert merged == document_of(*LONG, *CAPACITIES)[1]
