"""A file that keeps results, so that no known result is computed again.

A run that dies goes on where it was, and the lines of several shards, put into one file in any order, are
what one run would have written: the same command with that file does what is still missing, and tells of all.

A line counts only for the same task, carried out in the same way by the same source and the same versions of
what takes part; after any change the task is done again. No other line is harmful: one of other work, one
that is there twice, one that was not finished.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from pymllm.instrument.provenance import build_version
from pymllm.text_file import LINE_LIMIT, read_json
from pymllm.work.task_file import append_line, begin_keeping, read_records, refusing_to_keep

Item = TypeVar("Item")
Result = TypeVar("Result")

_OPENINGS = (b'{"format": "pymllm-kept", ', b'{"key": ')


@dataclass(frozen=True, slots=True)
class Work(Generic[Item, Result]):
    """A kind of work, with the format of its results.

    ``key_of`` says of a task all that its result follows from, beside source and versions of this package;
    the same text in any process. ``unpack`` raises `ValueError` where it cannot read what is there.
    ``is_final`` tells whether a result follows from the task alone, and not from what a machine had no time
    for: another is not kept.
    """

    name: str
    key_of: Callable[[Item], str]
    title_of: Callable[[Item], str]  # what a reader of the file recognises a task by
    pack: Callable[[Result], Any]
    unpack: Callable[[Item, Any], Result]
    is_final: Callable[[Item, Result], bool] = lambda item, result: True


class _Head(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: Literal["pymllm-kept"] = "pymllm-kept"
    schema: Literal[1] = 1
    work: str
    made_with: dict[str, str]


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    task: str
    result: Any
    work: str = ""  # of a line of an older version, which had no heads
    made_with: dict[str, str] = {}


class KeptResults(Generic[Item, Result]):
    """A file of results of one kind of work, created if missing.

    ``versions`` are of what takes part. `UsageError`: the file cannot be read or written, or has something
    else in it, which stays as it is. All results that the file has stay in memory.
    """

    def __init__(self, path: Path, work: Work[Item, Result], versions: Mapping[str, str]) -> None:
        self.path = path
        self._work = work
        self._head = _Head(work=work.name, made_with={**versions, "pymllm": build_version()})
        self._last: _Head | None = None  # head in the file
        self._results: dict[str, Any] = {}
        self._others: dict[str, dict[str, str]] = {}  # with what others of this work were made, by their keys
        begin_keeping(path, _OPENINGS, "kept result")
        with refusing_to_keep(path):
            for _, record in read_records(path):
                self._take(record)

    def _take(self, record: Any) -> None:
        with suppress(ValueError):  # of what is no line, or another version wrote
            if isinstance(record, dict) and "format" in record:
                self._last = msgspec.convert(record, _Head)
                return
            line = msgspec.convert(record, _Line)
            head = _Head(work=line.work, made_with=line.made_with) if line.work else self._last
            self._results[line.key] = line.result
            if head is not None and head.work == self._work.name:
                self._others[line.key] = head.made_with

    def find(self, item: Item) -> Result | None:
        """Return the known result of a task, or ``None``."""
        key = self._key_of(item)
        if key not in self._results:
            return None
        try:
            return self._work.unpack(item, self._results[key])
        except ValueError:
            return None

    def keep(self, item: Item, result: Result) -> None:
        """Write the result of a task to the file; raise `UsageError` if writing fails.

        One that is longer than a line may be is left out: nobody could read the file.
        """
        if not self._work.is_final(item, result):
            return
        line = {"key": self._key_of(item), "task": self._work.title_of(item)}
        text = json.dumps(line | {"result": self._work.pack(result)})
        if len(text) >= LINE_LIMIT:
            return
        with refusing_to_keep(self.path, "; those before stay there"):
            if self._last != self._head:
                append_line(self.path, json.dumps(msgspec.to_builtins(self._head)))
                self._last = self._head
            append_line(self.path, text)

    def add_file(self, text: str) -> None:
        """Add another machine's file of results; raise `ValueError` for a different version.

        Its results are found once the file is opened again.
        """
        if not text:
            return
        head = msgspec.convert(read_json(text.partition("\n")[0]), _Head)
        theirs, ours = head.made_with.get("pymllm"), self._head.made_with["pymllm"]
        if theirs != ours:
            raise ValueError(f"it has pymllm {theirs}, and here is {ours}; install the same there")
        with refusing_to_keep(self.path, "; those before stay there"):
            append_line(self.path, text.rstrip("\n"))
        self._last = None

    def describe_others(self) -> str | None:
        """Return words for the versions whose results do not count; ``None`` if all count."""
        own = self._head.made_with
        others = [it for it in self._others.values() if it != own]
        if not others:
            return None
        differing = Counter(
            f"{name} {other.get(name, 'none')} for {own.get(name, 'none')}"
            for other in others
            for name in sorted(other.keys() | own.keys())
            if other.get(name) != own.get(name)
        )
        return (
            f"{self.path}: {len(others)} of {len(self._others)} results do not count here, for they were "
            f"made with {', '.join(differing)}"
        )

    def _key_of(self, item: Item) -> str:
        said = json.dumps([self._work.name, self._head.made_with, self._work.key_of(item)], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()
