"""Request traces as JSON lines in the Mooncake format (USENIX FAST 2025), read strictly and written back.

One request per line::

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}

``timestamp`` is the arrival in milliseconds from the start, lengths count tokens, and ``hash_ids`` name the
prompt's blocks of ``block_tokens`` tokens: equal ids at the same leading places mean a shared prefix.

Accepted are UTF-8 with or without a byte order mark, plain or gzip, a file, a pipe or standard input, blank
lines and more fields. Everything else is a `TraceError` that names the line, the value and the bound, of
those of `Request`, including timestamps that go back: sorting a trace is its owner's decision.
"""

from __future__ import annotations

import errno
import gzip
import itertools
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

import msgspec

from pymllm.errors import TraceError
from pymllm.workloads.request import ARRIVAL_MS_MAX, LENGTH_MAX, OUTPUT_TOKEN_BASE, Request

BLOCK_TOKENS = 512
"""Tokens per block in the published Mooncake traces."""

STANDARD_INPUT = "-"
"""The path that stands for standard input; ``./-`` is a file of that name."""

_LINE_BYTES_MAX = 1 << 24
_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"


class _Line(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


class _Rejected(Exception):
    """What is wrong with one line; the reader adds where it stands."""


def read_trace(
    path: str | os.PathLike[str], *, requests: int | None = None, block_tokens: int = BLOCK_TOKENS
) -> list[Request]:
    """Read a trace, or its first ``requests``, at least one, and check every line; ids count from 0.

    The path is that of a file or a pipe, plain or gzip (told by its first two bytes), or `STANDARD_INPUT`. A
    file that cannot be read, holds no request or breaks the format is a `TraceError`.
    """
    return list(each_request(path, requests=requests, block_tokens=block_tokens))


def each_request(
    path: str | os.PathLike[str], *, requests: int | None = None, block_tokens: int = BLOCK_TOKENS
) -> Iterator[Request]:
    """Yield what `read_trace` returns, one request at a time, so that no more than one line is in memory."""
    if requests is not None and requests < 1:
        raise ValueError(f"requests must be at least 1, got {requests}")
    if not 1 <= block_tokens <= LENGTH_MAX:
        raise ValueError(f"block_tokens must be at least 1 and at most {LENGTH_MAX}, got {block_tokens}")
    place = os.fspath(path)
    source = "standard input" if place == STANDARD_INPUT else place
    found = itertools.islice(_read_requests(place, source, block_tokens), requests)
    first = next(found, None)
    if first is None:
        raise TraceError(source, None, "the file holds no request; expected one JSON object per line")
    yield first
    yield from found


def write_trace(path: str | os.PathLike[str], requests: Iterable[Request]) -> int:
    """Write requests in order of arrival as a trace that `read_trace` gives back; return how many.

    A file is replaced, and compressed if its name ends in ``.gz``. The format has no field for a namespace: a
    request that has one is refused, and nothing written.
    """
    lines = []
    for request in requests:
        if request.namespace is not None:
            raise ValueError(
                f"request {request.request_id} is in namespace {request.namespace!r}; "
                "a trace file has no field for it"
            )
        line = _Line(request.arrival_ms, request.prompt_length, request.output_length, request.block_ids)
        lines.append(msgspec.json.encode(line) + b"\n")
    opener = gzip.open if os.fspath(path).endswith(".gz") else open
    with opener(path, "wb") as stream:
        stream.writelines(lines)
    return len(lines)


def _read_requests(place: str, source: str, block_tokens: int) -> Iterator[Request]:
    """Yield the checked requests of a file, each failure as a `TraceError` with its line."""
    decoder = msgspec.json.Decoder(_Line)
    arrival_ms = 0.0
    for request_id, (number, text) in enumerate(_numbered_lines(place, source)):
        try:
            line = decoder.decode(text)
            _check_line(line, arrival_ms, block_tokens)
        except (msgspec.DecodeError, RecursionError) as error:
            raise TraceError(source, number, f"not a request: {error}; got {_excerpt(text)}") from error
        except _Rejected as error:
            raise TraceError(source, number, str(error)) from None
        arrival_ms = line.timestamp
        yield Request(
            request_id=request_id,
            arrival_ms=arrival_ms,
            prompt_length=line.input_length,
            output_length=line.output_length,
            block_ids=line.hash_ids,
            block_tokens=block_tokens,
        )


def _check_line(line: _Line, earliest_ms: float, block_tokens: int) -> None:
    """Hold one decoded line against the bounds of the format."""
    if not 0 <= line.timestamp <= ARRIVAL_MS_MAX:
        raise _Rejected(f"timestamp is {line.timestamp}, must be in 0..{ARRIVAL_MS_MAX:.0f} (milliseconds)")
    if line.timestamp < earliest_ms:
        raise _Rejected(
            f"timestamp {line.timestamp:g} lies before {earliest_ms:g} of the request above it; "
            "sort the file by timestamp"
        )
    for name, length in (("input_length", line.input_length), ("output_length", line.output_length)):
        if not 1 <= length <= LENGTH_MAX:
            raise _Rejected(f"{name} is {length}, must be in 1..{LENGTH_MAX} (tokens)")
    _check_blocks(line, block_tokens)


def _check_blocks(line: _Line, block_tokens: int) -> None:
    blocks = len(line.hash_ids)
    if not (blocks - 1) * block_tokens < line.input_length <= blocks * block_tokens:
        bounds = f"{max(blocks - 1, 0) * block_tokens + 1}..{blocks * block_tokens}" if blocks else "none"
        raise _Rejected(
            f"input_length {line.input_length} does not fit {blocks} hash_ids of {block_tokens} tokens "
            f"(possible lengths: {bounds})"
        )
    limit = OUTPUT_TOKEN_BASE // block_tokens
    lowest, highest = min(line.hash_ids), max(line.hash_ids)
    if lowest < 0 or highest >= limit:
        wrong = lowest if lowest < 0 else highest
        raise _Rejected(f"hash_ids has {wrong}, must be in 0..{limit - 1}; number the blocks anew from 0")


def _open(place: str) -> BufferedReader:
    if place != STANDARD_INPUT:
        return Path(place).open("rb")
    if sys.stdin is None:  # its number may be another file's by now
        raise OSError(errno.EBADF, "it is closed")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _numbered_lines(place: str, source: str) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, bytes) of every line that is not blank; a failing file becomes a `TraceError`."""
    number = 0
    try:
        with _open(place) as raw:
            # A pipe cannot be rewound, so the magic number is peeked at rather than read.
            packed = raw.peek(2)[:2] == _GZIP_MAGIC
            stream: IO[bytes] = cast("IO[bytes]", gzip.GzipFile(fileobj=raw, mode="rb")) if packed else raw
            while text := stream.readline(_LINE_BYTES_MAX + 1):
                number += 1
                if len(text) > _LINE_BYTES_MAX:
                    message = f"longer than {_LINE_BYTES_MAX:,} bytes; expected JSON lines"
                    raise TraceError(source, number, message)
                if number == 1:
                    text = _without_mark(source, text)
                if text.strip():
                    yield number, text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(source, number + 1, f"broken gzip data: {error}") from error
    except OSError as error:
        raise TraceError(source, None, f"cannot be read: {error.strerror or error}") from error


def _without_mark(source: str, text: bytes) -> bytes:
    if b"\x00" in text[:4]:
        raise TraceError(source, 1, "not UTF-8 text (zero bytes, as in UTF-16 or a binary file)")
    return text.removeprefix(_UTF8_MARK)


def _excerpt(text: bytes, length: int = 60) -> str:
    shown = text.strip().decode("utf-8", errors="replace")
    return repr(shown if len(shown) <= length else shown[: length - 3] + "...")
