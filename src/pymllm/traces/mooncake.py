"""The Mooncake format (USENIX FAST 2025).

One request per line::

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}

``timestamp`` is the arrival in milliseconds from the start, lengths count tokens, and ``hash_ids`` name the
prompt's blocks of 512 tokens: equal ids at the same leading places mean a shared prefix. Lines of sessions
are those of `pymllm.traces.dynamo`.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from pymllm.traces.lines import Rejected, TraceLines
from pymllm.traces.numbering import BlockNumbers
from pymllm.traces.records import (
    Clock,
    ReadOptions,
    check_length,
    decoded,
    fit_blocks,
    make_request,
)
from pymllm.workloads.request import Request

BLOCK_TOKENS = 512
"""Tokens per block in the published Mooncake traces."""


class MooncakeLine(msgspec.Struct, frozen=True, gc=False):
    """A line of a Mooncake trace, one request; other fields are ignored."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


class _ReadLine(msgspec.Struct, frozen=True, gc=False):
    timestamp: float
    output_length: int
    hash_ids: tuple[int, ...]
    input_length: int | msgspec.UnsetType = msgspec.UNSET
    session_id: str | None = None


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file."""
    block_tokens = options.block_tokens or BLOCK_TOKENS
    numbers, clock = BlockNumbers(), Clock(options, "timestamp")
    for id, (number, line) in enumerate(decoded(lines, _ReadLine)):
        try:
            if line.session_id is not None:
                raise Rejected(
                    f"session_id is {line.session_id[:60]!r}; mooncake has no sessions, give --format dynamo"
                )
            arrival_ms = clock.read(line.timestamp)
            output = check_length("output_length", line.output_length)
            given = None if line.input_length is msgspec.UNSET else line.input_length
            ids, length = fit_blocks(line.hash_ids, given, block_tokens, options)
            blocks = numbers.numbers(ids)
            request = make_request(id, arrival_ms, length, output, blocks, block_tokens)
        except Rejected as error:
            raise lines.error(str(error), number) from None
        yield request


def write(request: Request) -> MooncakeLine:
    """Return the line of a request, without namespace, session, kind and dependencies."""
    return MooncakeLine(request.arrival_ms, request.prompt_length, request.output_length, request.block_ids)
