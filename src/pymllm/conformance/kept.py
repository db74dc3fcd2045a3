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

from pymllm.errors import TraceError, UsageError
from pymllm.instrument.provenance import build_version
from pymllm.text_file import LINE_LIMIT, read_json, read_lines

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


_BEGINNING = b'{"key": '
_LOOKED_AT = 65_536


class KeptResults(Generic[Item, Result]):
    """A file of results of one kind of work; it is made where there is none.

    ``versions`` are of what takes part. `UsageError`: the file cannot be read or written, or has something
    else in it, which stays as it is. All results that the file has stay in memory.
    """

    def __init__(self, path: Path, work: Work[Item, Result], versions: Mapping[str, str]) -> None:
        self.path = path
        self._work = work
        self._made_with = {**versions, "pymllm": build_version()}
        self._lines: dict[str, _Line] = {}
        _refuse_another(path)
        try:
            last = ""
            for _, last in read_lines(path) if path.exists() else ():
                line = _read(last)
                if line is not None and line.work == work.name:
                    self._lines[line.key] = line
            with path.open("a", encoding="utf-8") as file:
                file.write("\n" if last and not last.endswith("\n") else "")
        except TraceError as error:
            raise UsageError(f"results cannot be kept in {error}") from None
        except OSError as error:
            raise UsageError(f"results cannot be kept in {path}: {error}") from error

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
        """Write down the result of a task; `UsageError` where the file takes no more.

        One that is longer than a line may be is left out: nobody could read the file.
        """
        plain = self._work.pack(result)
        line = _Line(self._key_of(item), self._work.name, self._work.title_of(item), self._made_with, plain)
        text = json.dumps(msgspec.to_builtins(line)) + "\n"
        if len(text) > LINE_LIMIT:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(
                f"results cannot be kept in {self.path}: {error}; those before stay there"
            ) from error

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


def _read(text: str) -> _Line | None:
    """Read a line; ``None`` for one that whoever wrote it did not finish."""
    try:
        return msgspec.convert(read_json(text), _Line)
    except ValueError:
        return None


def _refuse_another(path: Path) -> None:
    """Refuse a file that is somebody's: a name that was mistyped would have lines put behind it."""
    if not path.is_file():
        if path.exists() and not path.is_dir():  # of which the system tells
            raise UsageError(f"results cannot be kept in {path}: it is no regular file")
        return
    whole: list[bytes] = []
    with suppress(OSError), path.open("rb") as file:
        whole = file.read(_LOOKED_AT).split(b"\n")[:-1]  # whoever wrote the last line may have died
    if whole and not any(line.startswith(_BEGINNING) for line in whole):
        raise UsageError(f"{path}: no line of it is a kept result; name another file to keep them in")
