"""Shards whose results are appended to a file, and which are not sent out again.

The shards are a list of tasks, too, and their keys stand in the same file: into how many shards the work was
cut, and which of them came back.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pymllm.instrument.provenance import build_version
from pymllm.text_file import FILE_LIMIT, RECORDS_LIMIT, cut, read_json
from pymllm.work.kept import KeptResults, Work
from pymllm.work.spread.shard_task import ENDED, KEPT, MOST, PlayedShard, ShardTask, describe_end, unpack
from pymllm.work.spread.spread import Progress

_CUT = (0, 0)
"""The task under which the file stores the number of shards."""


class KeptShards:
    """The shards of a command, with their results kept in a file.

    ``words`` are the command's, and ``source`` is what its tasks follow from beside them. A command with any
    other has shards of its own.
    """

    def __init__(self, path: Path, words: Sequence[str], source: str) -> None:
        said = json.dumps([*words, source])
        work: Work[tuple[int, int], Any] = Work(
            "shards", lambda shard: f"{said} {shard}", _title_of, lambda result: result, _unpack
        )
        self._kept = KeptResults(path, work, {})
        self._words = tuple(words)
        whole = json.dumps([said, str(path.absolute()), build_version()])
        self._name = hashlib.sha256(whole.encode()).hexdigest()[:16]

    def cut(self, asked: int | None, count: Callable[[], int]) -> int:
        """Return the number of shards: as requested, as before, or from ``count``."""
        shards = asked or self._kept.find(_CUT) or count()
        if self._kept.find(_CUT) != shards:
            self._kept.keep(_CUT, shards)
        return shards

    def tasks(self, shards: int, more: Sequence[str], known: str | None, stop: Path) -> list[ShardTask]:
        """Return the shards that have not come back; ``more`` are options that change no result."""
        return [
            ShardTask(
                (*self._words, *more),
                number,
                shards,
                self._name,
                file=KEPT,
                known=known,
                directory=str(Path.cwd()),
                stop=str(stop.absolute()),
            )
            for number in range(1, shards + 1)
            if self._kept.find((number, shards)) is None
        ]

    def keep(self, played: PlayedShard, shards: int, progress: Progress) -> str | None:
        """Store the results of a shard, or return the reason why they cannot be stored."""
        if played.status not in ENDED:
            return describe_end(played)
        try:
            text = unpack(played.results, RECORDS_LIMIT).decode()
            document = read_json(unpack(played.document, FILE_LIMIT).decode())
            done, broken, is_whole = _count(document)
            self._kept.add_file(text)
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            return f"what came back cannot be read: {cut(str(error), 200)}"
        if is_whole:
            self._kept.keep((played.number, shards), done)
        progress.amount += done
        progress.failures += broken
        progress.resumed += played.resumed
        return None


def _title_of(shard: tuple[int, int]) -> str:
    return "number of shards" if shard == _CUT else f"shard {shard[0]}/{shard[1]}"


def _unpack(shard: tuple[int, int], plain: Any) -> int:
    bounds = range(1, MOST + 1) if shard == _CUT else range(2**63)
    if type(plain) is not int or plain not in bounds:
        raise ValueError(f"{plain} is no number of shards or results")
    return plain


def _count(document: Any) -> tuple[int, int, bool]:
    """Return the numbers of a shard's finished tasks and of findings, and whether all are finished."""
    if "faults" in document:  # of ``pymllm faults``, which has the same document for all faults and for some
        return len(document["faults"]), int(document["missed"]), True
    return int(document["done"]), len(document["broken"]), document["done"] == document["tasks"]
