"""``pymllm verify`` and ``compare`` with ``--shard`` and ``--keep``: options, texts, documents, statuses."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from pymllm.cli.shard_table import make_text
from pymllm.documents.shards import BrokenLaw, ShardDocument
from tests.child_processes import left_of
from tests.kept_results import results_in
from tests.unit.cli.typed import refused, typed

UNIT = Path(__file__).parents[1]
FEW = ("--examples", "8", "--jobs", "1", "--profile", "dev")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written below the current folder."""
    monkeypatch.chdir(tmp_path)


def facts_of(result: Result) -> Any:
    """The document, without times and what is of this run."""

    def without(plain: Any) -> Any:
        if isinstance(plain, dict):
            left_out = ("seconds", "steps_per_second", "jobs", "kept")
            return {key: without(value) for key, value in plain.items() if key not in left_out}
        return [without(item) for item in plain] if isinstance(plain, list) else plain

    return json.dumps(without(json.loads(result.stdout)))


def test_shards_one_of_which_was_killed_come_to_one_document(tiny: str) -> None:
    """P1, X3: byte for byte, but for times; a shard goes on with the same words, and so does the merge."""
    names = [f"{tiny}:{name}" for name in ("TinyRows", "KeepsEntries", "GivesUp", "WrongInside")]
    words = [*(word for name in [*names, "rows", "hashes"] for word in ("--adapter", name)), *FEW]
    alone = typed("verify", *words, "--json", "--output", "alone")
    command = [sys.executable, "-m", "pymllm", "verify", *words, "--shard", "2/3", "--keep", "2.jsonl"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(UNIT), *sys.path])}
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    kept = Path("2.jsonl")
    deadline = time.monotonic() + 120
    try:
        while not results_in(kept) and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        process.kill()
    process.wait()
    assert left_of([process.pid]) == []
    before = kept.read_bytes()
    known = len(results_in(kept))
    assert known >= 1
    documents = []
    for number in (3, 1, 2):
        result = typed("verify", *words, "--shard", f"{number}/3", "--keep", f"{number}.jsonl", "--json")
        documents.append(json.loads(result.stdout))
        Draft202012Validator(make_schema("shard")).validate(documents[-1])
        assert result.exit_code == documents[-1]["exit_status"]
    assert kept.read_bytes().startswith(before)
    assert documents[-1]["kept"] == known
    assert {it["total"] for it in documents} == {sum(it["tasks"] for it in documents)}
    assert {(row["name"], row["law"]) for it in documents for row in it["broken"]} == {
        (f"{tiny}:KeepsEntries", "P2"),
        (f"{tiny}:WrongInside", "P1"),
    }
    lines = [line for number in (1, 2, 3) for line in Path(f"{number}.jsonl").read_bytes().splitlines(True)]
    results = sum(len(results_in(Path(f"{number}.jsonl"))) for number in (1, 2, 3))
    shuffled = random.Random(5).sample(lines * 2, 2 * len(lines))
    Path("all.jsonl").write_bytes(b"".join(shuffled) + lines[0][:200])

    merged = typed("verify", *words, "--keep", "all.jsonl", "--json", "--output", "alone")
    assert (merged.exit_code, facts_of(merged)) == (alone.exit_code, facts_of(alone)) == (1, facts_of(alone))
    assert json.loads(merged.stdout)["kept"] == results
    again = typed("verify", *words, "--keep", "all.jsonl", "--output", "alone")
    summary = again.stdout.splitlines()[-1]
    more = len(results_in(Path("all.jsonl"))) - 2 * results
    assert summary.endswith(f" s, and {results + more} results kept from an earlier run")
    assert sorted(path.name for path in Path().iterdir()) == [
        "1.jsonl",
        "2.jsonl",
        "3.jsonl",
        "all.jsonl",
        "alone",
    ]


def test_compare_is_shared_in_the_same_way(tiny: str) -> None:
    """And says its own name."""
    words = ("compare", f"{tiny}:TinyRows", f"{tiny}:KeepsEntries", *FEW)
    for number, status in ((1, 0), (2, 1)):  # so few programs find it on one configuration
        result = typed(*words, "--shard", f"{number}/2", "--keep", f"{number}.jsonl")
        assert (result.exit_code, result.stderr) == (status, "")
        assert result.stdout.startswith(f"pymllm compare, shard {number}/2: 2 tasks of 4, all done, ")
    Path("all").write_bytes(b"".join(Path(f"{number}.jsonl").read_bytes() for number in (2, 1)))
    merged = typed(*words, "--keep", "all", "--json")
    assert facts_of(merged) == facts_of(typed(*words, "--json"))
    assert json.loads(merged.stdout)["kept"] == 4
    assert typed(*words, "--keep", "all").stdout.endswith(", and 5 results kept from an earlier run\n")


TOLD = "pymllm: this is shard 2/2, as PYMLLM_SHARD says\n"


def test_a_scheduler_says_which_shard(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every form of --shard."""
    words = ("verify", "--adapter", f"{tiny}:TinyRows", *FEW, "--keep", "kept")
    for variables in (
        {"PYMLLM_SHARD": "2/2"},
        {"PYMLLM_SHARD": "env", "CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "2"},
        {"PYMLLM_SHARD": "env/2", "JOB_COMPLETION_INDEX": "1"},
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            result = typed(*words)
            assert (result.exit_code, result.stderr) == (0, TOLD)
            assert result.stdout.startswith("pymllm verify, shard 2/2: 1 task of 2, all done")
            assert "\nno law was broken here\n" in result.stdout
    assert len(results_in(Path("kept"))) == 1
    monkeypatch.setenv("PYMLLM_SHARD", "1/2")
    refused(*words[:-2], words="PYMLLM_SHARD=1/2: its results are for a file")
    refused(*words, "--junit", "j", words="the same command without PYMLLM_SHARD gives that of all")
    monkeypatch.setenv("PYMLLM_SHARD", "3/9")
    result = typed(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "pymllm: PYMLLM_SHARD=3/9: the plan has 2 searches; take at most" in result.stderr
    monkeypatch.setenv("PYMLLM_SHARD", "half")
    refused(*words, words="PYMLLM_SHARD='half' is no shard; write I/N")
    monkeypatch.setenv("PYMLLM_SHARD", "3/2")
    refused(*words, words="PYMLLM_SHARD=3/2: 3 is no shard of 2")


def test_compare_says_that_a_variable_makes_it_a_shard(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that makes a command a shard is told, and a typed option is used without a word."""
    words = ("compare", f"{tiny}:TinyRows", f"{tiny}:KeepsEntries", *FEW, "--keep", "kept")
    monkeypatch.setenv("PYMLLM_SHARD", "2/2")
    assert typed(*words).stderr == TOLD
    assert typed(*words, "--shard", "1/2").stderr == ""
    refused(*words, "--store", "s", words="the same command without PYMLLM_SHARD gives that of all")


def test_a_document_of_a_shard_says_on_standard_error_what_to_look_for(tiny: str) -> None:
    """As that of a whole run does."""
    words = ("--adapter", f"{tiny}:KeepsEntries", "--adapter", f"{tiny}:Refuses", *FEW, "--json")
    result = typed("verify", *words, "--shard", "1/1", "--keep", "kept")
    assert result.exit_code == 1
    broken, problem = result.stderr.splitlines()
    assert broken.startswith(f"pymllm: {tiny}:KeepsEntries violates P2: ")
    assert problem.startswith(f"pymllm: {tiny}:Refuses could not be examined: ")
    assert json.loads(result.stdout)["shard"] == "1/1"


def test_results_that_do_not_count_are_told(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another version: by verify, and by faults."""
    words = ("verify", "--adapter", f"{tiny}:TinyRows", *FEW, "--keep", "kept")
    assert typed(*words).exit_code == 0
    monkeypatch.setattr("pymllm.work.kept.build_version", lambda: "another")
    result = typed(*words)
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith("pymllm: kept: 2 of 2 results do not count here, for they were made with")
    assert "kept from an earlier run" not in result.stdout
    assert typed("faults", "hunt", "B116", "--keep", "kept").stderr == ""  # searches are other work
    monkeypatch.setattr("pymllm.work.kept.build_version", lambda: "a third one")
    result = typed("faults", "hunt", "B116", "--keep", "kept")
    assert result.stderr.startswith("pymllm: kept: 1 of 1 results do not count here")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("verify --shard 1/2", "--shard 1/2: its results are for a file that is put together"),
        ("compare rows hashes --shard 1/2", "--shard 1/2: its results are for a file"),
        ("verify --shard 3/2 --keep k", "--shard 3/2: 3 is no shard of 2"),
        ("verify --shard 1/2 --keep k --junit x.xml", "--junit: a shard gives no verdict; the same command"),
        ("verify --shard 1/2 --keep k --store kept", "--store: a shard gives no verdict"),
        ("verify --shard 1/2 --keep k --output there", "--output: a shard gives no verdict"),
        ("verify --shard 1/2 --keep k --write-deviations d", "--write-deviations: a shard gives no verdict"),
        ("verify --shard 1/2 --keep k --release hypothesis", "--release: a shard gives no verdict"),
        ("verify --shard 1/2 --keep k -v", "-v: a shard gives no verdict"),
        ("compare rows hashes --shard 1/2 --keep k --store kept", "--store: a shard gives no verdict"),
        ("compare rows hashes --shard 1/2 --keep k --output there", "--output: a shard gives no verdict"),
        ("verify --keep k --junit k", "--junit k: this is k, which the command reads; name another file"),
        ("verify --keep k --write-deviations k", "--write-deviations k: this is k, which the command reads"),
        ("verify --profile deep --keep k", "--keep k: --profile deep draws a seed, so the next run"),
        ("compare rows hashes --profile deep --keep k", "give --seed N"),
        ("verify --keep no/such/kept", "there is no folder"),
        ("verify --keep notes", "notes: no line of it is a kept result; name another file"),
        ("verify --adapter hashes --jobs 1 --shard 2/4 --keep k", "--shard 2/4: the plan has 1 search"),
    ],
)
def test_what_makes_no_sense_together_is_refused(line: str, words: str) -> None:
    """X1: in one line, before anything is searched."""
    Path("notes").write_text("my notes\n", encoding="utf-8")
    refused(*line.split(), words=words)
    assert Path("notes").read_text(encoding="utf-8") == "my notes\n"
    assert sorted(path.name for path in Path().iterdir()) in (["notes"], ["k", "notes"])


def test_what_a_shard_did_is_laid_out() -> None:
    """A shard's report begins with broken laws, then problems, and ends with the command to merge files."""
    document = ShardDocument(
        command="verify",
        shard="2/3",
        file="my kept.jsonl",
        tasks=5,
        total=14,
        done=4,
        kept=2,
        seconds=3.25,
        broken=(BrokenLaw("rows", "P2", "row 1\nposition 3"),),
        problems=("mine could not be examined: it\tdied",),
        exit_status=1,
    )
    assert make_text(document).splitlines() == [
        "pymllm verify, shard 2/3: 5 tasks of 14, 4 done, 2 of them before, 3.2 s",
        "",
        "rows violates P2: row 1\\nposition 3",
        "mine could not be examined: it\\tdied",
        "",
        "results: my kept.jsonl; put the lines of all shards into one file, and give it",
        "as --keep to the same command without --shard: cat 'my kept.jsonl' ... > all.jsonl",
    ]
