"""The file of kept results: lines of JSON, with a head for each work and a line for each finished task.

A line is written as soon as its task is done, with its end last. So ``kill -9`` leaves at most half a line
behind: that of a task that nobody finished. Files are merged by ``cat``: a head stands before the tasks of
its work, and each task's line says which task it is among all that there are. A line that stands there twice
counts once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pymllm.errors import TraceError, UsageError
from pymllm.text_file import RECORDS_LIMIT, read_json, read_lines

_BEGINNING = re.compile(r'\{"(?:format|key|mutant)": ')
"""The beginning of a head, or of the line of a kept task."""
_CHUNK = 2**16
_DECODER = json.JSONDecoder()


def read_records(
    path: Path, *, errors: str = "strict", limit: int = RECORDS_LIMIT
) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each finished line, or a `ValueError` for an invalid one.

    Where a file that ended within a line was put before another one, the values behind that half are yielded,
    too. Raises as `read_lines`.
    """
    for number, line in read_lines(path, errors=errors, limit=limit):
        if not line.endswith("\n") or not line.strip():
            continue
        try:
            yield number, read_json(line)
        except ValueError as error:
            found = [*_read_behind_half(line)]
            yield from ((number, it) for it in found or [error])


def _read_behind_half(line: str) -> Iterator[Any]:
    place = 0
    while place >= 0:
        after = place + 1
        with suppress(ValueError):
            _, after = _DECODER.raw_decode(line, place)
            yield read_json(line[place:after])
        begun = _BEGINNING.search(line, after)
        place = -1 if begun is None else begun.start()


def length_of_lines(path: Path) -> int:
    """Return the length of the finished lines in bytes."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        while size:
            start = max(0, size - _CHUNK)
            file.seek(start)
            at = file.read(size - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            size = start
    return 0


def append_line(path: Path, text: str) -> None:
    """Append a line and flush it to the system, which may write it in pieces.

    After an `OSError`, which names the file, what was written is a line that was not finished.
    """
    rest = (text + "\n").encode()
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        finally:
            os.close(file)
    except OSError as error:  # of a write that fails nobody says where
        raise OSError(error.errno, error.strerror, str(path)) from error


# -- files that several processes may write ----------------------------------------------------------------


@contextmanager
def refusing_to_keep(path: Path, rest: str = "") -> Iterator[None]:
    """Turn an error in writing results into `UsageError`."""
    try:
        yield
    except TraceError as error:
        raise UsageError(f"results cannot be kept in {error}") from None
    except OSError as error:
        raise UsageError(f"results cannot be kept in {path}: {error}{rest}") from error


def begin_keeping(path: Path, openings: tuple[bytes, ...], what: str) -> None:
    """Create a file for results, or end the last line of an existing one.

    ``openings`` are what its lines begin with, ``what`` is what each of them is. `UsageError`: it cannot be
    written, or is somebody's file, which stays as it is: a name that was mistyped would have lines put behind
    it.
    """
    if not path.is_file():
        if path.exists() and not path.is_dir():  # of which the system tells
            raise UsageError(f"results cannot be kept in {path}: it is no regular file")
        with refusing_to_keep(path):
            path.open("ab").close()
        return
    with refusing_to_keep(path):
        end = length_of_lines(path)
        with path.open("rb") as file:
            whole = file.read(_CHUNK).split(b"\n")[:-1]  # whoever wrote the last line may have died
            file.seek(end)
            rest = file.read()
        if whole and not any(line.startswith(openings) for line in whole):
            raise UsageError(f"{path}: no line of it is a {what}; name another file to keep them in")
        if not rest.isascii():  # as all is that was written here
            raise UsageError(f"results cannot be kept in {path}: its last line is no kept one")
        if rest:
            append_line(path, "")
        path.open("ab").close()
