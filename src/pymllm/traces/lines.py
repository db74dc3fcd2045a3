"""The lines of a trace, from a plain or gzip file, pipe or standard input, with a bound on their length."""

from __future__ import annotations

import errno
import gzip
import os
import re
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
"""The greatest size in bytes of a line with one request."""

DOCUMENT_BYTES_MAX = 1 << 26
"""The greatest size in bytes of a line or file with a whole conversation."""

_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_CHUNK = 1 << 16
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{},]', re.DOTALL)
"""A JSON string, the opening quote of an incomplete one, or a structural mark outside strings."""

_TABLES = (b"PAR1", b"ARROW1")
_WITHOUT_PREFIXES = {
    "Azure's traces of LLM inference": {b"timestamp", b"contexttokens", b"generatedtokens"},
    "BurstGPT": {b"timestamp", b"request tokens", b"response tokens"},
}
"""Columns, in lower case, by which known traces without prefixes are recognised."""

_SHOWN = 60

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors for a line that is not JSON, or has the wrong content."""

NumberedLine = tuple[int, bytes]
"""The number of a line, counted from 1, and its bytes."""


class Rejected(Exception):
    """Raised for one line; the reader of the file adds the place."""


class TraceLines:
    """The non-blank lines of a file, or of the files in a folder, with numbers; iterated once.

    ``source`` is the name for messages. A file that cannot be read is a `TraceError`, as is a line of more
    than ``limit`` bytes, which whoever knows the format may set before the first line is asked for; one that
    has ``mark`` in so many bytes may go on up to `DOCUMENT_BYTES_MAX`. Of a file that is one JSON array, each
    element is a line, and its number that of the element. Numbers go on from one file of a folder to the
    next; `error` names the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.place = os.fspath(path)
        self.source = "standard input" if self.place == STANDARD_INPUT else self.place
        self.limit = LINE_BYTES_MAX
        self.mark: bytes | None = None
        self.files = files_of(self.place, LINES) if os.path.isdir(self.place) else []
        self._begun: list[
            tuple[int, str]
        ] = []  # of files of a folder: how many lines were before, and its name
        self._before = 0  # bytes of the files that were read
        self._raw: BufferedReader | None = None
        self._lines = self._read()
        self._first: NumberedLine | None = None

    def peek(self) -> NumberedLine | None:
        """Return the first line without consuming it; ``None`` if there is none."""
        if self._first is None:
            self._first = next(self._lines, None)
        return self._first

    def __iter__(self) -> Iterator[NumberedLine]:
        """Yield every line."""
        if self._first is not None:
            first, self._first = self._first, None
            yield first
        yield from self._lines

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    @property
    def size(self) -> int | None:
        """The number of bytes in the file or files; ``None`` for a pipe."""
        if self.files:
            return sum(map(_size, self.files))
        if self.place == STANDARD_INPUT or not os.path.isfile(self.place):
            return None
        return _size(self.place)

    @property
    def is_read_once(self) -> bool:
        """Whether the file exists but can be read only once, as standard input or a pipe."""
        place = self.place
        if place == STANDARD_INPUT:
            return True
        return os.path.exists(place) and not (os.path.isfile(place) or os.path.isdir(place))

    @property
    def position(self) -> int:
        """The number of bytes read from the file or files."""
        raw = self._raw
        return self._before + (0 if raw is None or raw.closed or not raw.seekable() else raw.tell())

    def error(self, message: str, number: int | None = None) -> TraceError:
        """Return an error that names this file, or a file of the folder, and the line."""
        source = self.source
        if number is not None:
            for before, name in self._begun:
                if before < number:
                    source, local = name, number - before
            number = local if self._begun else number
        return TraceError(source, number, message)

    def _read(self) -> Generator[NumberedLine]:
        if not self.files:
            yield from self._read_file(self.place, 0)
            return
        last = 0
        for path in self.files:
            self._begun.append((last, str(path)))
            for number, text in self._read_file(str(path), last):
                last = number
                yield number, text
            self._before += _size(path)
            self._raw = None

    def _read_file(self, place: str, number: int) -> Generator[NumberedLine]:
        """Yield the lines of one file, with numbers that continue from the file before."""
        first = number + 1
        try:
            with _open(place) as raw:
                self._raw = raw
                # A pipe cannot be rewound, so the magic number is peeked at rather than read.
                packed = raw.peek(2)[:2] == _GZIP_MAGIC
                stream: IO[bytes] = (
                    cast("IO[bytes]", gzip.GzipFile(fileobj=raw, mode="rb")) if packed else raw
                )
                while text := stream.readline(self.limit + 1):
                    number += 1
                    if number == first:
                        self._refuse_tables(text, number)
                        text = self._without_mark(text, number)
                        if text.lstrip().startswith(b"["):
                            yield from self._elements(text, stream, number)
                            return
                    limit = self.limit
                    if len(text) > limit and self.mark is not None and self.mark in text:
                        limit = DOCUMENT_BYTES_MAX
                        text += stream.readline(limit + 1 - len(text))
                    if len(text) > limit:
                        raise self.error(f"longer than {limit:,} bytes; expected JSON lines", number)
                    if text.strip():
                        yield number, text
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"broken gzip data: {error}", number + 1) from error
        except OSError as error:
            raise self.error(
                f"cannot be read: {error.strerror or error}", number + 1 if self.files else None
            ) from error

    def _elements(self, text: bytes, stream: IO[bytes], number: int) -> Generator[NumberedLine]:
        """Yield the elements of a JSON array, part of whose text has been read."""
        place = text.index(b"[") + 1
        begin, depth = place, 0
        while True:
            token = _TOKEN.search(text, place)
            if token is None or token.group() == b'"':  # more is needed, of a string all of it
                place = len(text) if token is None else token.start()
                limit = DOCUMENT_BYTES_MAX if self.mark is not None and self.mark in text else self.limit
                if place - begin > limit or len(text) - begin > 2 * limit:
                    raise self.error(f"an element of the array is longer than {limit:,} bytes", number)
                text, place, begin = text[begin:], place - begin, 0
                more = stream.read(max(_CHUNK, len(text)))
                if not more:
                    raise self.error("the array does not end: its ] is missing", number)
                text += more
                continue
            place = token.end()
            mark = token.group()
            if depth == 0 and mark in b",]":
                element = text[begin : token.start()].strip()
                if element:
                    yield number, element
                number += 1
                begin = place
                if mark == b"]":
                    break
            else:
                depth += (mark in b"[{") - (mark in b"]}")
        if text[place:].strip() or stream.read(_CHUNK).strip():
            raise self.error("there is more behind the end of the array", number - 1)

    def _refuse_tables(self, text: bytes, number: int) -> None:
        """Raise an error for a known format that is not JSON, with a way to read it or why there is none."""
        if text.startswith(_TABLES):
            raise self.error(
                "a table in a binary form, parquet or Arrow, is not read; write its rows as JSON lines, with "
                "pandas: read_parquet(FILE).to_json(NEW, orient='records', lines=True)",
                number if self.files else None,
            )
        columns = {name.strip().strip(b'"') for name in text.removeprefix(_UTF8_MARK).lower().split(b",")}
        known = next((name for name, some in _WITHOUT_PREFIXES.items() if some <= columns), None)
        if known is not None:
            raise self.error(
                f"this is CSV as of {known}: times and lengths, and no ids of blocks, so that nothing tells "
                "which prompts begin alike; no cache can be judged by it",
                number if self.files else None,
            )

    def _without_mark(self, text: bytes, number: int) -> bytes:
        if b"\x00" in text[:4]:
            raise self.error("not UTF-8 text (zero bytes, as in UTF-16 or a binary file)", number)
        return text.removeprefix(_UTF8_MARK)


LINES = (".jsonl", ".jsonl.gz")
"""File name endings of traces with a request on each line."""


def files_of(folder: str, ends: tuple[str, ...]) -> list[Path]:
    """Return the files in a folder with one of some name endings, in order of names."""
    try:
        return sorted(path for path in Path(folder).iterdir() if path.name.endswith(ends))
    except OSError as error:
        raise TraceError(folder, None, f"cannot be read: {error.strerror or error}") from error


def _size(path: str | os.PathLike[str]) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # whoever reads it says so
        return 0


def _open(place: str) -> BufferedReader:
    if place != STANDARD_INPUT:
        return open_binary(Path(place))
    if sys.stdin is None:  # its number may be another file's by now
        raise OSError(errno.EBADF, "it is closed")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def reason(error: Exception) -> str:
    """Return words for the reason why a line cannot be read, from an error of `UNREADABLE`."""
    if isinstance(error, RecursionError):
        return "too many lists and objects stand inside each other"
    return str(error)


def excerpt(text: bytes, length: int = _SHOWN) -> str:
    """Return the beginning of a line for a message."""
    shown = text[: 4 * length].strip().decode("utf-8", errors="replace")
    return repr(shown if len(shown) <= length else shown[: length - 3] + "...")
