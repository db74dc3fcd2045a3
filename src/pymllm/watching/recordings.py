"""Recordings of streams: files with a message a line, as it came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pymllm.errors import UsageError
from pymllm.text_file import read_json, read_lines

ENDED = "ended_early"
"""The one field of a recording's last line where a stream ended early: why it did."""
LIMIT = 2**38
"""Most bytes of a recording, which is read line by line."""


def read_recording(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line and its message, and ``None`` for half a line at the end.

    Raises
    ------
    TraceError
        If the file cannot be read.
    UsageError
        If a line is no JSON, or tells why the stream ended early; the lines before it were yielded.
    """
    for number, line in read_lines(path, limit=LIMIT):
        if not line.endswith("\n"):
            try:
                read_json(line)
            except ValueError:
                yield number, None  # whoever wrote it was killed
                return
        if line.strip():
            try:
                plain = read_json(line)
            except ValueError as error:
                raise UsageError(f"line {number} of {path}: {error}") from None
            if isinstance(plain, dict) and plain.keys() == {ENDED}:
                raise UsageError(str(plain[ENDED]))
            yield number, plain


class Recorder:
    """Writes messages to a new file, each as soon as it came.

    Parameters
    ----------
    path : Path
        A file that does not exist yet: no recording is written over.

    Raises
    ------
    UsageError
        If the file exists, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("x", encoding="utf-8")
        except FileExistsError:
            raise UsageError(f"{path} exists; name a new file, so that no recording is lost") from None
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None

    def write(self, plain: Any) -> None:
        """Write a message; bytes in it as hexadecimal text, as events have them."""
        self._file.write(_dump(plain) + "\n")
        self._file.flush()

    def write_end(self, why: str) -> None:
        """Write the reason for the early end of the stream into the recording."""
        self.write({ENDED: why})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def plain_message(message: Any) -> Any:
    """Return a message as a recording has it: bytes in it are hexadecimal text."""
    return json.loads(_dump(message))


def _dump(message: Any) -> str:
    return json.dumps(message, separators=(",", ":"), default=_hexadecimal)


def _hexadecimal(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} is no value of a message")
