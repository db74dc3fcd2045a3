"""The file of a campaign: JSON lines that only grow, so that whatever ends a campaign leaves a whole ledger.

Two ledgers in one file, one behind the other, are a ledger: headers stand where their runs begin, and a run
that stands in it twice is counted once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from pymllm.conformance.soak.records import CampaignHeader, RunRecord, read_line, write_line
from pymllm.errors import TraceError, UsageError
from pymllm.text_file import read_lines

FILE = "ledger.jsonl"
"""Name of a ledger in the folder of its campaign."""


class Ledger:
    """The ledger that a campaign writes, and nobody else meanwhile; a last line that was not finished goes.

    `UsageError`: another campaign writes it, or, where it ``is_new``, there is one in it that would be mixed
    up with it. `OSError`: it cannot be written.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = open(path, "ab")  # noqa: SIM115  # closed by __exit__
        try:
            self._lock()
            end = _whole(path)
            if end and is_new:
                raise UsageError(f"{path.parent}: there is a campaign already; choose another folder")
            self._file.truncate(end)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        """Keep others away until the file is closed, by whatever ends this process; not all systems can."""
        with suppress(OSError):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = "another campaign is being played there; wait for its end, or choose another folder"
                raise UsageError(f"{self.path.parent}: {text}") from None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: CampaignHeader | RunRecord) -> None:
        """Append a line, and hand it to the system, which may take it in pieces.

        After an `OSError`, what was written counts as a line that was not finished.
        """
        rest = (write_line(record) + "\n").encode()
        try:
            while rest:
                rest = rest[os.write(self._file.fileno(), rest) :]
        except OSError as error:  # which knows no name
            raise OSError(error.errno, error.strerror, str(self.path)) from error


def _whole(path: Path) -> int:
    """Return the length of the lines that were finished, in bytes."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        while size:
            start = max(0, size - 65_536)
            file.seek(start)
            at = file.read(size - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            size = start
    return 0


def read_ledger(path: Path) -> Iterator[CampaignHeader | RunRecord]:
    """Read a ledger line by line; a last line that was not finished is left out.

    `TraceError` says which line is none of a ledger, and why, or that there is none at all.
    """
    is_empty = True
    for number, line in read_lines(path, errors="replace"):
        if not line.endswith("\n"):
            break
        if not line.strip():
            continue
        try:
            record = read_line(line)
        except ValueError as error:
            raise TraceError(str(path), number, str(error)) from None
        if is_empty and isinstance(record, RunRecord):
            raise TraceError(str(path), number, "a ledger begins with the header of its campaign")
        is_empty = False
        yield record
    if is_empty:
        raise TraceError(str(path), None, "empty; a ledger begins with the header of its campaign")


class Conflict:
    """Two lines of one run that played different things (X3)."""

    def __init__(self, first: RunRecord, second: RunRecord) -> None:
        self.first = first
        self.second = second

    def __str__(self) -> str:
        run = f"seed {self.first.seed} of {self.first.adapter} {self.first.config}"
        return f"{run}: played {self.first.played}, and again {self.second.played}"


def merge_ledgers(paths: Iterable[Path]) -> tuple[list[CampaignHeader], list[RunRecord], list[Conflict]]:
    """Put ledgers together: headers and runs each once, and runs that did not do the same twice.

    Of two equal runs (`RunRecord.key`) that stays which was looked at more often. Raises as `read_ledger`.
    """
    headers: dict[str, CampaignHeader] = {}
    runs: dict[str, RunRecord] = {}
    conflicts: list[Conflict] = []
    for path in paths:
        for record in read_ledger(path):
            if isinstance(record, CampaignHeader):
                headers.setdefault(write_line(record), record)
                continue
            before = runs.setdefault(record.key, record)
            if before.played != record.played:
                conflicts.append(Conflict(before, record))
            elif sum(record.audited.values()) > sum(before.audited.values()):
                runs[record.key] = record
    return list(headers.values()), [runs[key] for key in sorted(runs)], conflicts
