"""Shards whose results a file keeps: each is sent out until it came back, and looked at then."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from pymllm.instrument.provenance import build_version
from pymllm.work.kept import KeptResults
from pymllm.work.spread import kept_shards as module
from pymllm.work.spread.kept_shards import KeptShards
from pymllm.work.spread.shard_task import PlayedShard
from pymllm.work.spread.spread import Progress
from tests.unit.work.test_kept import SQUARES, VERSIONS

WORDS = ("verify", "--seed", "3")
DONE: dict[str, Any] = {"done": 2, "tasks": 2, "broken": ["one"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.jsonl"


def squares_of(path: Path, *items: int) -> str:
    """The file that a node has kept."""
    for item in items:
        KeptResults(path, SQUARES, VERSIONS).keep(item, item**2)
    return path.read_text("utf-8")


def shard(number: int, results: str, document: Any = DONE, **changes: Any) -> PlayedShard:
    packed = zlib.compress(results.encode()), zlib.compress(json.dumps(document).encode())
    plain = {"status": 1, "said": "", "host": "node", "results": packed[0], "document": packed[1]}
    return PlayedShard(number, **{**plain, **changes})


def numbers_left(path: Path, words: tuple[str, ...] = WORDS, source: str = "a", shards: int = 3) -> list[int]:
    kept = KeptShards(path, words, source)
    return [task.number for task in kept.tasks(shards, (), None, path)]


def test_what_came_back_is_kept_and_not_sent_out_again(path: Path, tmp_path: Path) -> None:
    """Beside what was there; the shards of another work, or of another number, are others."""
    KeptResults(path, SQUARES, VERSIONS).keep(7, 49)
    kept, progress = KeptShards(path, WORDS, "a"), Progress(3)
    assert kept.keep(shard(2, squares_of(tmp_path / "node", 2, 3), resumed=1), 3, progress) is None
    assert (progress.amount, progress.failures, progress.resumed) == (2, 1, 1)
    squares = KeptResults(path, SQUARES, VERSIONS)
    assert [squares.find(item) for item in (2, 3, 7)] == [4, 9, 49]
    assert numbers_left(path) == [1, 3]
    assert numbers_left(path, source="b") == numbers_left(path, words=(*WORDS, "--strict")) == [1, 2, 3]
    assert numbers_left(path, shards=4) == [1, 2, 3, 4]
    assert kept.keep(shard(3, ""), 3, progress) is None  # it had no task
    assert numbers_left(path) == [1]


def test_a_shard_that_left_something_out_is_sent_out_again(path: Path, tmp_path: Path) -> None:
    """A shard with a task left out is sent out again, and its results are kept."""
    left = {"done": 1, "tasks": 2, "broken": []}
    reason = KeptShards(path, WORDS, "a").keep(
        shard(2, squares_of(tmp_path / "node", 2), left), 3, Progress(3)
    )
    assert (reason, numbers_left(path)) == (None, [1, 2, 3])
    assert KeptResults(path, SQUARES, VERSIONS).find(2) == 4


def test_a_work_is_cut_as_it_was_before(path: Path) -> None:
    """Unless somebody says otherwise: other shards would have other tasks."""

    def never() -> int:
        raise AssertionError

    assert KeptShards(path, WORDS, "a").cut(None, lambda: 8) == 8
    assert KeptShards(path, WORDS, "a").cut(None, never) == 8
    assert KeptShards(path, WORDS, "a").cut(3, never) == 3
    assert KeptShards(path, WORDS, "a").cut(None, never) == 3
    text = path.read_text("utf-8")
    for number in ("0", "-1", "100001", "true", '"3"'):
        path.write_text(text.replace('"result": 3', f'"result": {number}'), encoding="utf-8")
        assert KeptShards(path, WORDS, "a").cut(None, lambda: 5) == 5


def test_a_task_is_the_command_and_has_a_name_of_its_own(path: Path) -> None:
    """A task has the same name in each process, so that a second attempt finds the first one's results."""
    kept = KeptShards(path, WORDS, "a")
    (task,) = kept.tasks(1, ("--jobs", "2"), "known", path.with_name("stop"))
    assert (task.words, task.number, task.count) == ((*WORDS, "--jobs", "2"), 1, 1)
    assert (task.file, task.known, task.stop) == ("kept.jsonl", "known", str(path.with_name("stop")))
    assert task.campaign == KeptShards(path, WORDS, "a").tasks(1, (), None, path)[0].campaign
    assert task.campaign != KeptShards(path, WORDS, "b").tasks(1, (), None, path)[0].campaign


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": -9}, "its process was killed by signal 9"),
        ({"status": 2, "said": "no\nsuch fault"}, "its process ended with status 2: no such fault"),
        ({"results": "nothing\n"}, "what came back cannot be read: not JSON"),
        ({"results": '{"key": "x"}\n'}, "what came back cannot be read: Object contains unknown field"),
        ({"document": []}, "what came back cannot be read: list indices must be"),
        ({"document": {"done": 1}}, "what came back cannot be read: 'broken'"),
    ],
)
def test_what_is_no_shard_is_not_kept(path: Path, tmp_path: Path, changes: Any, reason: str) -> None:
    """The reason is told; nothing is written or counted."""
    plain = {"results": squares_of(tmp_path / "node", 2), **changes}
    progress = Progress(3)
    assert (KeptShards(path, WORDS, "a").keep(shard(2, **plain), 3, progress) or "").startswith(reason)
    assert (progress.amount, path.read_text("utf-8")) == (0, "")


def test_what_another_version_did_is_refused(path: Path, tmp_path: Path) -> None:
    """It would not count here."""
    theirs = squares_of(tmp_path / "node", 2).replace(build_version(), "0.9+b")
    reason = KeptShards(path, WORDS, "a").keep(shard(2, theirs), 3, Progress(3))
    words = f"it has pymllm 0.9+b, and here is {build_version()}; install the same there"
    assert reason == f"what came back cannot be read: {words}"


def test_what_unpacks_without_end_is_not_unpacked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may send a few bytes that are many."""
    monkeypatch.setattr(module, "RECORDS_LIMIT", 1000)
    reason = KeptShards(path, WORDS, "a").keep(shard(2, " " * 5000), 3, Progress(3))
    assert reason == "what came back cannot be read: longer than 1,000 bytes"
