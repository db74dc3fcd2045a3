"""The lines of a trace: of a file, a pipe or standard input, plain or gzip, and never without end."""

from __future__ import annotations

import errno
import gzip
import os
import sys
import zlib
from collections.abc import Generator, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

import msgspec

from pymllm.errors import TraceError
from pymllm.text_file import open_binary

STANDARD_INPUT = "-"
"""The path that stands for standard input; ``./-`` is a file of that name."""

LINE_BYTES_MAX = 1 << 24
"""Most bytes of a line that has one request."""

DOCUMENT_BYTES_MAX = 1 << 26
"""Most bytes of a line or file that has a whole conversation."""

_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_TABLES = (b"PAR1", b"ARROW1")
_WITHOUT_PREFIXES = {
    "Azure's traces of LLM inference": {b"timestamp", b"contexttokens", b"generatedtokens"},
    "BurstGPT": {b"timestamp", b"request tokens", b"response tokens"},
}
"""Traces without prefixes, by columns that only they have, in small letters."""

_SHOWN = 60

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a line raises that is no JSON, or not what it should be."""

NumberedLine = tuple[int, bytes]
"""Number of a line, counted from 1, and its bytes."""


class Rejected(Exception):
    """The error of one line; the reader of the file adds the place of the line."""


class TraceLines:
    """The lines of one file that are not blank, with their numbers; iterated once.

    ``source`` is the name for messages. A file that cannot be read is a `TraceError`, as is a line of more
    than ``limit`` bytes, which whoever knows the format may set before the first line is asked for; one that
    has ``mark`` in so many bytes may go on up to `DOCUMENT_BYTES_MAX`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.place = os.fspath(path)
        self.source = "standard input" if self.place == STANDARD_INPUT else self.place
        self.limit = LINE_BYTES_MAX
        self.mark: bytes | None = None
        self.number = 0
        self._raw: BufferedReader | None = None
        self._lines = self._read()
        self._first: NumberedLine | None = None

    def peek(self) -> NumberedLine | None:
        """Return the first line, which is given again; ``None`` where there is none."""
        if self._first is None:
            self._first = next(self._lines, None)
        return self._first

    def __iter__(self) -> Iterator[NumberedLine]:
        """Give every line."""
        if self._first is not None:
            first, self._first = self._first, None
            yield first
        yield from self._lines

    def close(self) -> None:
        """Let go of the file."""
        self._lines.close()

    @property
    def size(self) -> int | None:
        """The number of bytes of the file; ``None`` for a pipe, which does not tell."""
        if self.place == STANDARD_INPUT or not os.path.isfile(self.place):
            return None
        return os.path.getsize(self.place)

    @property
    def is_read_once(self) -> bool:
        """Tell whether the file exists and cannot be read again: standard input, or a pipe."""
        place = self.place
        if place == STANDARD_INPUT:
            return True
        return os.path.exists(place) and not (os.path.isfile(place) or os.path.isdir(place))

    @property
    def position(self) -> int:
        """The number of bytes of the file that were read."""
        return 0 if self._raw is None or self._raw.closed or not self._raw.seekable() else self._raw.tell()

    def error(self, message: str, number: int | None = None) -> TraceError:
        """Make an error that names this file and a line of the file."""
        return TraceError(self.source, number, message)

    def _read(self) -> Generator[NumberedLine]:
        number = 0
        try:
            with _open(self.place) as raw:
                self._raw = raw
                # A pipe cannot be rewound, so the magic number is peeked at rather than read.
                packed = raw.peek(2)[:2] == _GZIP_MAGIC
                stream: IO[bytes] = (
                    cast("IO[bytes]", gzip.GzipFile(fileobj=raw, mode="rb")) if packed else raw
                )
                while text := stream.readline(self.limit + 1):
                    number += 1
                    if number == 1:
                        self._refuse_tables(text)
                    limit = self.limit
                    if len(text) > limit and self.mark is not None and self.mark in text:
                        limit = DOCUMENT_BYTES_MAX
                        text += stream.readline(limit + 1 - len(text))
                    if len(text) > limit:
                        raise self.error(f"longer than {limit:,} bytes; expected JSON lines", number)
                    if number == 1:
                        text = self._without_mark(text)
                    if text.strip():
                        yield number, text
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"broken gzip data: {error}", number + 1) from error
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from error

    def _refuse_tables(self, text: bytes) -> None:
        """Refuse what is known to be no JSON, and say how it can be read, or why not."""
        if text.startswith(_TABLES):
            raise self.error(
                "a table in a binary form, parquet or Arrow, is not read; write its rows as JSON lines, with "
                "pandas: read_parquet(FILE).to_json(NEW, orient='records', lines=True)"
            )
        columns = {name.strip().strip(b'"') for name in text.removeprefix(_UTF8_MARK).lower().split(b",")}
        known = next((name for name, some in _WITHOUT_PREFIXES.items() if some <= columns), None)
        if known is not None:
            raise self.error(
                f"this is CSV as of {known}: times and lengths, and no ids of blocks, so that nothing tells "
                "which prompts begin alike; no cache can be judged by it"
            )

    def _without_mark(self, text: bytes) -> bytes:
        if b"\x00" in text[:4]:
            raise self.error("not UTF-8 text (zero bytes, as in UTF-16 or a binary file)", 1)
        return text.removeprefix(_UTF8_MARK)


def _open(place: str) -> BufferedReader:
    if place != STANDARD_INPUT:
        return open_binary(Path(place))
    if sys.stdin is None:  # its number may be another file's by now
        raise OSError(errno.EBADF, "it is closed")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def reason(error: Exception) -> str:
    """Say why a line cannot be read, from an error of `UNREADABLE`."""
    if isinstance(error, RecursionError):
        return "too many lists and objects stand inside each other"
    return str(error)


def excerpt(text: bytes, length: int = _SHOWN) -> str:
    """Return the beginning of a line, for a message."""
    shown = text[: 4 * length].strip().decode("utf-8", errors="replace")
    return repr(shown if len(shown) <= length else shown[: length - 3] + "...")
