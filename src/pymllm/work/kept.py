"""Results that a file keeps: whatever is known already is not done again, whoever did it, and where.

A file has a line of JSON for each task that is done, written as soon as it is known. So a run that dies goes
on where it was, and the lines of several shards, put into one file in any order, are what one run would have
written: the same command with that file does what is still missing, and tells of all.

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
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from pymllm.instrument.provenance import build_version
from pymllm.work.kept_lines import KeptLines

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Work(Generic[Item, Result]):
    """One kind of work, and how its results are written.

    ``key_of`` says of a task all that its result follows from, beside source and versions of this package;
    the same text in any process. ``unpack`` raises `ValueError` where it cannot read what is there.
    """

    name: str
    key_of: Callable[[Item], str]
    title_of: Callable[[Item], str]  # what a reader of the file recognises a task by
    pack: Callable[[Result], Any]
    unpack: Callable[[Item, Any], Result]


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    work: str
    task: str
    made_with: dict[str, str]
    result: Any


class KeptResults(Generic[Item, Result]):
    """A file of results of one kind of work; it is made where there is none.

    ``versions`` are of what takes part. `UsageError`: the file cannot be read or written, or has something
    else in it, which stays as it is. All results that the file has stay in memory.
    """

    def __init__(self, path: Path, work: Work[Item, Result], versions: Mapping[str, str]) -> None:
        self._work = work
        self._made_with = {**versions, "pymllm": build_version()}
        self._lines: dict[str, _Line] = {}
        self._file = KeptLines(path, "key", "kept result")
        for record in self._file:
            with suppress(ValueError):  # of what another version wrote
                line = msgspec.convert(record, _Line)
                if line.work == work.name:
                    self._lines[line.key] = line

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def find(self, item: Item) -> Result | None:
        """Return the result of a task, if it is known."""
        line = self._lines.get(self._key_of(item))
        if line is None:
            return None
        try:
            return self._work.unpack(item, line.result)
        except ValueError:
            return None

    def keep(self, item: Item, result: Result) -> None:
        """Write down the result of a task; `UsageError` where the file takes no more."""
        plain = self._work.pack(result)
        line = _Line(self._key_of(item), self._work.name, self._work.title_of(item), self._made_with, plain)
        self._file.append(msgspec.to_builtins(line))

    def describe_others(self) -> str | None:
        """Say which results do not count because something else took part, and what; or nothing."""
        others = [it.made_with for it in self._lines.values() if it.made_with != self._made_with]
        if not others:
            return None
        differing = Counter(
            f"{name} {other.get(name, 'none')} for {self._made_with.get(name, 'none')}"
            for other in others
            for name in sorted(other.keys() | self._made_with.keys())
            if other.get(name) != self._made_with.get(name)
        )
        return (
            f"{self.path}: {len(others)} of {len(self._lines)} results do not count here, for they were made "
            f"with {', '.join(differing)}"
        )

    def _key_of(self, item: Item) -> str:
        said = json.dumps([self._work.name, self._made_with, self._work.key_of(item)], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()
