"""``--executor`` of the commands that keep their results in a file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from pymllm.work.spread import shard_task, spread
from pymllm.work.spread.shard_task import PlayedShard, ShardTask
from tests.kept_results import results_in
from tests.unit.cli.typed import refused, typed

ENGINE = f"{__name__}:Engine"
AGAIN = ("--executor", ENGINE, "--keep", "kept.jsonl")
SPREAD = ("--executor", f"{ENGINE},shards=2", "--keep", "kept.jsonl")


class Engine(Executor):
    """An executor that does each shard at once, in this process, after a test's own answer."""

    before: Callable[[ShardTask], None] = lambda task: None
    asked: list[ShardTask] = []  # noqa: RUF012  # of the class, as the test begins it anew

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        (task,) = args
        try:
            Engine.asked.append(task)
            Engine.before(task)
            future.set_result(do_here(task))
        except Exception as error:
            future.set_exception(error)
        return future


def do_here(task: ShardTask) -> PlayedShard:
    """Type the shard's command in this process."""
    folder = Path("node") / task.name
    folder.mkdir(parents=True, exist_ok=True)
    result = typed(*shard_task._command(task, folder)[3:])
    file = folder / task.file
    packed = zlib.compress(file.read_bytes() if file.exists() else b""), zlib.compress(result.stdout.encode())
    return PlayedShard(task.number, result.exit_code, result.stderr, "here", 0, 1.0, *packed)


@pytest.fixture(autouse=True)
def begin_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work_here: None) -> None:
    monkeypatch.setattr(Engine, "before", staticmethod(lambda task: None))
    monkeypatch.setattr(Engine, "asked", [])
    monkeypatch.setattr(spread, "_PAUSE", 0.0)
    monkeypatch.chdir(tmp_path)


def facts(plain: Any) -> Any:
    """A document without times and what is of this run."""
    if isinstance(plain, dict):
        left_out = ("jobs", "kept", "operations_per_cpu_second", "total", "total_mean_us", "peak_rss_bytes")
        of_time = ("match", "insert", "evict", "lock", "allocator")
        return {
            name: facts(it)
            for name, it in plain.items()
            if name not in (*left_out, *of_time) and "seconds" not in name and "per_second" not in name
        }
    return [facts(it) for it in plain] if isinstance(plain, list) else plain


VERBS = {
    "faults": ("faults", "hunt", "B116", "B107"),
    "verify": ("verify", "--adapter", "rows", "--adapter", "hashes", "--profile", "dev", "--examples", "8"),
    "compare": ("compare", "rows", "hashes", "--profile", "dev", "--examples", "8"),
    "replay-serial": (
        *("replay-serial", "chat", "--requests", "12", "--cache", "radix", "--cache", "chunk"),
        *("--capacity", "2000", "--capacity", "3000"),
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_engine_comes_to_what_one_process_does(verb: str) -> None:
    """X3: to the same document; the file has all, and the same command again sends nothing out."""
    words = VERBS[verb]
    alone = typed(*words, "--json")
    result = typed(*words, *SPREAD, "--json")
    assert (result.exit_code, facts(json.loads(result.stdout))) == (
        alone.exit_code,
        facts(json.loads(alone.stdout)),
    )
    assert [(it.number, it.count, it.words[0]) for it in Engine.asked] == [(1, 2, verb), (2, 2, verb)]
    kept = len(results_in(Path("kept.jsonl")))
    again = typed(*words, *AGAIN, "--json")
    assert (again.exit_code, facts(json.loads(again.stdout))) == (
        alone.exit_code,
        facts(json.loads(alone.stdout)),
    )
    assert (len(Engine.asked), len(results_in(Path("kept.jsonl")))) == (2, kept)


def test_what_an_engine_loses_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reason; what came back is not done again."""

    def lose(task: ShardTask) -> None:
        if task.number == 1:
            raise OSError("node is gone")

    monkeypatch.setattr(Engine, "before", staticmethod(lose))
    result = typed(*VERBS["faults"], "--executor", f"{ENGINE},shards=2,retries=1", *AGAIN[2:], "--json")
    assert (result.exit_code, json.loads(result.stdout)["kept"]) == (0, 1)
    lines = result.stderr.splitlines()
    assert "tried again after a loss: 1 attempt of shard 1; the last: shard 1-of-2: OSError" in lines[0]
    why = "given up after 2 attempts; the last one: OSError: node is gone"
    assert lines[1] == f"pymllm: shard 1/2: {why}; its missing tasks are done here"


def test_an_interrupt_keeps_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """And tells what is still done to stop; the same command goes on."""

    def interrupt(task: ShardTask) -> None:
        if task.number == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "_max_workers", 1, raising=False)
    monkeypatch.setattr(Engine, "before", staticmethod(interrupt))
    assert typed(*VERBS["faults"], *SPREAD).exit_code == 130
    assert Path("kept.jsonl.stop").exists()
    monkeypatch.setattr(Engine, "before", staticmethod(lambda task: None))
    result = typed(*VERBS["faults"], *AGAIN, "--json")
    assert (result.exit_code, json.loads(result.stdout)["kept"]) == (0, 2)
    assert [it.number for it in Engine.asked] == [1, 2, 2]
    assert not Path("kept.jsonl.stop").exists()


def test_a_shard_gets_what_was_typed_and_no_more() -> None:
    """A shard gets the typed values and the known deviations as text, and no option about its output."""
    known = '[dirty]\nlaw = "P2"\nadapter = "rows"\nkind = "defect"\nreason = "a test"\n'
    Path("known.toml").write_text(known)
    words = ("compare", "rows", "hashes", "--profile", "dev", "--examples", "8", "--seed", "5")
    more = ("--deviations", "known.toml", "--timeout", "20", "--output", "out", "--jobs", "2", "--json")
    assert typed(*words, *SPREAD, *more).exit_code == 0
    for task in Engine.asked:
        assert sorted(task.words) == sorted((*words, "--timeout", "20", "--jobs", "2"))
        assert (task.words[0], task.known, task.file) == ("compare", known, "kept.jsonl")


def test_shards_are_never_more_than_tasks() -> None:
    """A few for each worker else."""
    typed(*VERBS["verify"], *AGAIN)
    assert {it.count for it in Engine.asked} == {3}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("verify --executor ray", "--executor ray: results are kept as they come back; give --keep FILE."),
        ("faults hunt --executor ray", "--executor ray: results are kept as they come back; give --keep"),
        ("replay chat --executor ray", "--executor ray: results are kept as they come back"),
        ("compare rows hashes --executor ray", "--executor ray: results are kept as they come back"),
        ("verify --executor ray,shards=0 --keep k", "0 is not in the range 1<=x<=100000"),
        ("verify --executor ray --keep k --shard 1/2", "--shard: a shard plays alone, and --executor makes"),
        (
            "faults hunt B01 --executor spark --keep k",
            "--executor 'spark'; it must be one of ray, ray:ADDRESS",
        ),
        ("replay - --executor ray --keep k", "--executor: a shard has no standard input"),
        ("verify --profile deep --executor ray --keep k", "--keep k: --profile deep draws a seed"),
    ],
)
def test_what_makes_no_sense_together_is_refused(line: str, words: str) -> None:
    """X1: in one line, before anything is sent out."""
    refused(*line.split(), words=words)
    assert Engine.asked == []
