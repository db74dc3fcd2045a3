"""Shards that came back, which may be anything that a node sends."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pymllm.soak import returned_shards as module
from pymllm.soak.ledger import write_line
from pymllm.soak.returned_shards import Returned
from pymllm.work.spread.shard_task import PlayedShard
from pymllm.work.spread.spread import Progress
from tests.unit.soak.test_ledger import HEADER, RECORD

DOCUMENT: dict[str, Any] = {
    "runs": 2,
    "operations": 300,
    "adapters": [{"failures": [{"runs": 1}, {"runs": 2}]}, {"failures": []}],
    "refused": {"gone": "no module"},
}


@pytest.fixture
def returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Returned:
    """A campaign of two shards, of the version of the header."""
    monkeypatch.setattr(module, "build_version", lambda: HEADER.version)
    return Returned(tmp_path, 2, Progress(2), told.append)


told: list[str] = []


def shard(**changes: Any) -> PlayedShard:
    ledger = f"{write_line(structs.replace(HEADER, shard=(1, 2)))}\n{write_line(RECORD)}\n"
    plain = {"results": ledger, "document": json.dumps(DOCUMENT), **changes}
    packed = {key: zlib.compress(plain.pop(key).encode()) for key in ("results", "document")}
    return PlayedShard(**{"number": 1, "status": 1, "said": "", "host": "node", **packed, **plain})


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_shard_is_laid_beside_the_others_and_counted(returned: Returned, tmp_path: Path) -> None:
    """With its programs; the ledger as the node wrote it."""
    sent = shard(programs=(("a-b.jsonl", zlib.compress(b"x")),), resumed=4)
    progress = returned._progress
    assert returned.keep(sent) is None
    assert (progress.amount, progress.failures, progress.resumed) == (300, 3, 4)
    assert returned.refused == {"gone": "no module"}
    assert files_in(tmp_path) == ["shards/1-of-2/ledger.jsonl", "shards/1-of-2/programs/a-b.jsonl"]
    assert (tmp_path / "shards/1-of-2/ledger.jsonl").read_bytes() == zlib.decompress(sent.results)
    assert returned.folders == [tmp_path / "shards" / "1-of-2"]
    assert returned.keep(shard(results=zlib.decompress(sent.results).decode() + "\n")) is None
    assert files_in(tmp_path) == ["shards/1-of-2/ledger.jsonl"]  # that of another attempt


@pytest.mark.parametrize("name", ["../out.jsonl", "/out.jsonl", "a/b.jsonl", "x.txt", "", "é.jsonl"])
def test_a_program_stays_in_its_folder(returned: Returned, tmp_path: Path, name: str) -> None:
    """Whatever a node calls it."""
    assert returned.keep(shard(programs=((name, zlib.compress(b"x")),))) is None
    assert files_in(tmp_path) == ["shards/1-of-2/ledger.jsonl"]


def test_what_was_left_behind_is_told(returned: Returned) -> None:
    """Once for each shard."""
    told.clear()
    assert returned.keep(shard(left=3)) is None
    assert told == ["shard 1-of-2: 3 of its programs were too large to travel; play their runs again"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": -9}, "its process was killed by signal 9"),
        ({"status": 2, "said": "no\nsuch adapter"}, "its process ended with status 2: no such adapter"),
        ({"results": ""}, "what came back cannot be read: not JSON"),
        ({"results": write_line(RECORD)}, "its ledger begins without a header"),
        (
            {"results": write_line(structs.replace(HEADER, version="0.9+b"))},
            "it has pymllm 0.9+b, and here is 1+a; install the same there",
        ),
        ({"programs": (("a.jsonl", b"no zlib"),)}, "what came back cannot be read: Error -3"),
        ({"programs": (("a.jsonl", None),)}, "what came back cannot be read: a bytes-like object"),
        ({"document": "[]"}, "what came back cannot be read: list indices must be"),
        ({"document": '{"runs": 1}'}, "what came back cannot be read: 'operations'"),
        ({"document": json.dumps({**DOCUMENT, "operations": None})}, "what came back cannot be read: int()"),
    ],
)
def test_what_is_no_shard_is_not_kept(
    returned: Returned, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """The reason is told; nothing is written or counted."""
    assert (returned.keep(shard(**changes)) or "").startswith(reason)
    assert (files_in(tmp_path), returned.folders, returned._progress.amount) == ([], [], 0)


def test_what_unpacks_without_end_is_not_unpacked(
    returned: Returned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may send a few bytes that are many."""
    monkeypatch.setattr(module, "RECORDS_LIMIT", 1000)
    assert returned.keep(shard(results=" " * 5000)) == (
        "what came back cannot be read: longer than 1,000 bytes"
    )
    it = PlayedShard(1, 0, "", "node", results=b"no zlib", document=b"")
    assert (returned.keep(it) or "").startswith("what came back cannot be read: Error -3")
    assert files_in(tmp_path) == []
