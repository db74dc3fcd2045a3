"""Recordings of event streams: files with one received message on each line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pymllm.errors import UsageError
from pymllm.text_file import read_json, read_lines

ENDED = "ended_early"
"""The only field of a recording's last line if the stream ended early: the reason."""
LIMIT = 2**38
"""The greatest size of a recording in bytes; it is read line by line."""


def read_recording(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each line's number and message, with ``None`` for an incomplete last line.

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
    """A writer of messages to a new file, each as soon as it arrives.

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
        """Write a message, with bytes as hexadecimal text."""
        self._file.write(_dump(plain) + "\n")
        self._file.flush()

    def write_end(self, why: str) -> None:
        """Write the reason for the early end of the stream into the recording."""
        self.write({ENDED: why})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def plain_message(message: Any) -> Any:
    """Return a message in recorded form, with bytes as hexadecimal text."""
    return json.loads(_dump(message))


def _dump(message: Any) -> str:
    return json.dumps(message, separators=(",", ":"), default=_hexadecimal)


def _hexadecimal(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} is no value of a message")
