"""The store: a folder with one file for each run, which copying merges."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pymllm.conformance.soak.records import build_version
from pymllm.errors import TraceError
from pymllm.report.machine import find_commit, look_at_this_machine
from pymllm.report.records import Record, RunHeader
from pymllm.report.run_lines import dump_record, dump_run_header, read_record, read_run_header
from pymllm.text_file import read_text_file, write_text_file

__all__ = ["SUFFIX", "StoredRun", "make_header", "read_run", "write_run"]

_Line = TypeVar("_Line")

SUFFIX = ".run.jsonl"
"""Of the names of a store's files."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run that was read.

    Parameters
    ----------
    header : RunHeader
        What it is.
    records : tuple of Record
        What it found.
    identity : str
        Digest of its lines: two files with the same one are copies of one run.
    unknown : int
        Lines of kinds that this version does not know, which were left out.
    """

    header: RunHeader
    records: tuple[Record, ...]
    identity: str
    unknown: int = 0


def make_header(
    kind: str,
    *,
    command: Sequence[str] | None = None,
    code: str | None = None,
    versions: Mapping[str, str] | None = None,
) -> RunHeader:
    """Make the header of a run that ends now, on this machine.

    Parameters
    ----------
    kind, code, versions
        As of `RunHeader`.
    command : sequence of str, optional
        Words that were typed.

    Notes
    -----
    Cost: git is asked twice, NVML is opened, and the package's source is read: about a tenth of a second.
    """
    commit, modified = find_commit()
    return RunHeader(
        kind=kind,
        time=datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z",
        machine=look_at_this_machine(),
        pymllm=build_version(),
        commit=commit,
        modified=modified,
        code=code,
        command=None if command is None else " ".join(command),
        versions=dict(versions or {}),
    )


def write_run(folder: Path, header: RunHeader, records: Iterable[Record]) -> Path:
    """Keep a run.

    Parameters
    ----------
    folder : Path
        The store; made if there is none.
    header : RunHeader
        Such as `make_header` makes.
    records : iterable of Record
        At least one.

    Returns
    -------
    Path
        Of the file. Its name is made of kind, time and contents, so that stores can be copied into each
        other.

    Raises
    ------
    ValueError
        There is no record, or one holds what JSON has no number for; nothing is written.
    OSError
        The file cannot be written; then there is none, not a part of one.
    """
    lines = [dump_record(record) for record in records]
    if not lines:
        raise ValueError("a run has at least one record; there is none to keep")
    lines.insert(0, dump_run_header(header))
    folder.mkdir(parents=True, exist_ok=True)
    time = re.sub(r"[-:]|\.\d+", "", header.time)
    path = folder / f"{header.kind}-{time}-{_identity(lines)[:8]}{SUFFIX}"
    write_text_file(path, "".join(f"{line}\n" for line in lines))
    return path


def read_run(path: Path) -> StoredRun:
    """Read a file of a store.

    Raises
    ------
    TraceError
        A line is none of a run: which, and why.
    OSError
        The file cannot be read.
    """
    text = read_text_file(path, errors="replace")
    lines = text.rstrip("\n").split("\n")
    if lines == [""]:
        raise TraceError(str(path), None, "empty; a run begins with its header")
    header = _read(read_run_header, path, 1, lines[0])
    found = [_read(read_record, path, number, line) for number, line in enumerate(lines[1:], 2)]
    records = tuple(record for record in found if record is not None)
    return StoredRun(header, records, _identity(lines), len(found) - len(records))


def _read(read: Callable[[str], _Line], path: Path, number: int, line: str) -> _Line:
    try:
        return read(line)
    except ValueError as error:
        raise TraceError(str(path), number, str(error)) from None


def _identity(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
