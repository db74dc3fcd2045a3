"""Request traces in the Mooncake format, for strict reading and for writing.

`pymllm.traces.mooncake` has the format, `pymllm.traces.registry` reads others, too.

Accepted are UTF-8 with or without a byte order mark, plain or gzip, a file, a pipe or standard input, blank
lines and more fields. Everything else is a `TraceError` that names the line, the value and the bound, of
those of `Request`, including timestamps that go back: sorting a trace is its owner's decision.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable

from pymllm.traces.mooncake import BLOCK_TOKENS
from pymllm.traces.records import ReadOptions
from pymllm.traces.registry import open_trace, read_requests, written_lines
from pymllm.workloads.request import LENGTH_MAX, Request


def read_trace(
    path: str | os.PathLike[str], *, requests: int | None = None, block_tokens: int = BLOCK_TOKENS
) -> list[Request]:
    """Read a trace or its first ``requests``, checking every line; block ids are renumbered from 0.

    The path is that of a file or a pipe, plain or gzip (told by its first two bytes), or ``-`` for standard
    input. A file that cannot be read, holds no request or breaks the format is a `TraceError`.
    """
    if not 1 <= block_tokens <= LENGTH_MAX:
        raise ValueError(f"block_tokens must be at least 1 and at most {LENGTH_MAX}, got {block_tokens}")
    options = ReadOptions(block_tokens=block_tokens)
    return read_requests(open_trace(path, format="mooncake", requests=requests, options=options))


def write_trace(path: str | os.PathLike[str], requests: Iterable[Request]) -> int:
    """Write requests in order of arrival as a trace that `read_trace` can read; return their number.

    A file is replaced, and compressed if its name ends in ``.gz``. The format has no field for a namespace: a
    request that has one is refused, and nothing written.
    """
    written = list(requests)
    for request in written:
        if request.namespace is not None:
            raise ValueError(
                f"request {request.request_id} is in namespace {request.namespace!r}; "
                "a trace file has no field for it"
            )
    opener = gzip.open if os.fspath(path).endswith(".gz") else open
    with opener(path, "wb") as stream:
        stream.writelines(written_lines(written, "mooncake"))
    return len(written)
