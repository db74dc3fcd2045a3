"""Files of text: written so that nobody sees half of one, and read so that no file can take all memory.

What is read may be written by anybody: a file or a line that never ends, bytes that are no text, numbers of a
million digits. Each is refused with the line and the bound.
"""

from __future__ import annotations

import difflib
import errno
import io
import json
import math
import os
import secrets
import select
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from pymllm.errors import TraceError

LINE_LIMIT: Final = 2**24
"""Most bytes of a line: a look at a tree of a hundred thousand nodes fits."""

RECORDS_LIMIT: Final = 2**28
"""Most bytes of a file that is read line by line: a program of 50,000 steps has a tenth."""

FILE_LIMIT: Final = 2**25
"""Most bytes of a file that is read as a whole, such as a document."""

DEPTH_LIMIT: Final = 64
"""How many lists and objects may stand inside each other; ours need fewer than ten."""

TOO_DEEP: Final = f"more than {DEPTH_LIMIT} lists and objects stand inside each other"

SILENCE: Final = 60.0
"""Seconds that a named pipe may bring nothing until it is given up."""

_CHUNK = 2**20
_INTEGERS = range(-(2**127), 2**127)  # what overflows 64 bits is told as it is, and judged
_SHOWN = 60

NumberedLine = tuple[int, str]
"""Number of a line, counted from 1, and the line with its end, if it has one."""


# -- writing -----------------------------------------------------------------------------------------------


def write_text_file(path: Path, text: str) -> None:
    """Write a text as UTF-8 to a file, as `new_file` does."""
    write_text_pieces(path, [text])


def write_text_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Write a text as `write_text_file` does, in pieces made while it is written."""
    with new_file(path) as file:
        file.writelines(piece.encode() for piece in pieces)


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file beside a path, moved to that path at the end; an error keeps the old file.

    A file that is there keeps its permissions; of a link, the file that it leads to is replaced. What is no
    file, such as a pipe or ``/dev/stdout``, is written to as it is.
    """
    if path.exists() and not path.is_file():
        try:
            with path.open("wb") as file:
                yield file
        except OSError as error:
            error.filename = error.filename or str(path)  # of a write that fails nobody says where
            raise
        return
    place = path.resolve()
    # A name that nobody foresees, of a file that is not there: the folder may be a stranger's, with links.
    partial = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        with open(opened, "wb") as file:
            yield file
        if place.exists():
            shutil.copymode(place, partial)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


# -- reading files -----------------------------------------------------------------------------------------


def read_lines(path: Path, *, errors: str = "strict", limit: int = RECORDS_LIMIT) -> Iterator[NumberedLine]:
    """Read a file or a pipe line by line, and yield number and line; `TraceError` where it is not text.

    A line has its end: what has none is the last one, and perhaps not finished. It has `LINE_LIMIT` bytes at
    most, all lines together have ``limit``; ``errors`` is as of `bytes.decode`.
    """
    place = 0
    with _open(path) as file:
        number = 0
        while line := file.readline(LINE_LIMIT + 1):
            number += 1
            if len(line) > LINE_LIMIT:
                raise TraceError(str(path), number, f"longer than {LINE_LIMIT:,} bytes, the most of a line")
            if place + len(line) > limit:
                raise TraceError(
                    str(path), number, f"the file is longer than {limit:,} bytes, the most of one"
                )
            yield number, _decoded(path, line, errors, place)
            place += len(line)


def read_text_file(path: Path, *, errors: str = "strict", limit: int = FILE_LIMIT) -> str:
    """Read a file or a pipe as a whole; arguments and errors as of `read_lines`."""
    chunks: list[bytes] = []
    size = 0
    with _open(path) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            if b"\0" in chunk:
                raise TraceError(str(path), None, "not UTF-8 text: it has zero bytes, as a binary file")
            if size > limit:
                raise TraceError(str(path), None, f"longer than {limit:,} bytes, the most of a file")
            chunks.append(chunk)
    return _decoded(path, b"".join(chunks), errors, 0)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Open a file; an error of reading names the file, as one of opening does."""
    try:
        with open_binary(path) as file:
            yield file
    except OSError as error:
        error.filename = str(path)
        raise


def open_binary(path: Path) -> io.BufferedReader:
    """Open a file to read its bytes; wait for the writer of a named pipe, but not for ever.

    `TimeoutError`: nobody wrote to the pipe for `SILENCE`.
    """
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # which would wait for a writer, too
    try:
        if stat.S_ISFIFO(os.fstat(opened).st_mode):
            return io.BufferedReader(_Pipe(opened))
        os.set_blocking(opened, True)
        return open(opened, "rb")
    except BaseException:
        os.close(opened)
        raise


class _Pipe(io.FileIO):
    """The reading end of a pipe, whose reads give up after a silence."""

    def readinto(self, buffer: Any) -> int | None:
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        if not waiting.poll(SILENCE * 1_000):
            why = f"nothing came from this pipe for {SILENCE:g} s; write it into a file"
            raise TimeoutError(errno.ETIMEDOUT, why)
        return super().readinto(buffer)


def _decoded(path: Path, data: bytes, errors: str, place: int) -> str:
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: {error.reason} at byte {place + error.start}"
        raise TraceError(str(path), None, message) from None


# -- reading JSON ------------------------------------------------------------------------------------------


class NotJSONError(ValueError):
    """A text that is not JSON; ``line`` is the line of the error, counted from 1."""

    def __init__(self, error: json.JSONDecodeError) -> None:
        super().__init__(f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}")
        self.line = error.lineno


def read_json(text: str) -> Any:
    """Read one JSON value from an untrusted text.

    `ValueError` where it is none; or where an object names a field twice, a number is none that JSON has or
    leaves 128 bits, a string has half of a surrogate pair, or more than `DEPTH_LIMIT` lists and objects stand
    inside each other. Cost: a tenth more than `json.loads`. Only a text that looks as if something were wrong
    is read again, by Python's slower reader, which finds what it is.
    """
    try:
        plain = _FAST.decode(text)
    except json.JSONDecodeError as error:
        raise NotJSONError(error) from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError:
        plain = _read_strictly(text)  # a number with more digits than Python reads
    demand_strict(text, plain)
    return plain


def demand_strict(text: str, plain: Any) -> None:
    """Refuse flaws of a JSON text that readers let pass, given its parsed value; raises as `read_json`."""
    if text.count(":") > _count_fields(plain) or _is_suspect(text):
        _read_strictly(text)


def _is_suspect(text: str) -> bool:
    """Tell whether a text may have a number beyond 128 bits or half of a surrogate pair."""
    return "\\ud" in text or "\\uD" in text or has_long_number(text.encode(errors="replace"))


def has_long_number(text: bytes) -> bool:
    """Tell whether a text may have a number beyond 128 bits; a digest may look like one."""
    # Each digit made the same one and then searched for: in a tenth of the time of a regular expression.
    return _MANY_DIGITS in text.translate(_ONE_DIGIT)


_MANY_DIGITS = b"0" * 39
_ONE_DIGIT = bytes.maketrans(b"123456789", b"000000000")


def _count_fields(plain: Any) -> int:
    """Count the fields of all objects, each name once; `ValueError` where they are nested too deep."""
    count, depth = 0, -1
    level: list[Any] = [[plain]]  # a list of its own, which is not counted
    while level:
        depth += 1
        if depth > DEPTH_LIMIT:
            raise ValueError(TOO_DEEP)
        below: list[Any] = []
        for item in level:
            values = item
            if type(item) is dict:
                count += len(item)
                values = item.values()
            kinds = {*map(type, values)}
            if not _CONTAINERS.isdisjoint(kinds):
                below += [value for value in values if type(value) in _CONTAINERS]
            if float in kinds and math.inf in map(abs, (value for value in values if type(value) is float)):
                raise ValueError("a number is larger than every float")
        level = below
    return count


_CONTAINERS = frozenset({dict, list})


def _read_strictly(text: str) -> Any:
    plain = _STRICT.decode(text)
    try:
        json.dumps(plain, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a string has half of a surrogate pair, which no text has") from None
    return plain


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number that JSON has")


def _integer(digits: str) -> int:
    if len(digits) <= 40 and (number := int(digits)) in _INTEGERS:
        return number
    raise ValueError(f"{cut(digits)} does not fit into 128 bits")


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"an object names {cut(repr(twice))} twice")
    return fields


_FAST = json.JSONDecoder(parse_constant=_refuse)
_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer, object_pairs_hook=_fields)


def escaped(text: str) -> str:
    """Escape unprintable characters, such as a newline in the name of a file."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, length: int = _SHOWN) -> str:
    """Return a text, cut to the length that a message can show."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def shown(value: object) -> str:
    """Return the ``repr`` of a stranger's value, cut; the name of its type where ``repr`` fails."""
    try:
        return cut(repr(value))
    except Exception:  # a stranger's class may do anything there
        return f"a {type(value).__name__} that cannot be written"


def did_you_mean(asked: str, names: Iterable[str], most: int = 1) -> str:
    """Return a question in parentheses with the nearest names, after a blank; empty if no name is near."""
    known = {name.lower(): name for name in names}
    # So long a name is near to none, and looking for it would take seconds.
    near = difflib.get_close_matches(asked.lower(), known, n=most) if len(asked) <= _SHOWN else []
    found = [known[name] for name in near]
    return f" (did you mean {' or '.join(found)}?)" if found else ""
