"""The format that `pymllm trace` writes, with every field of a request.

The first line says what follows, and each line after it is a request, the first of them number 0::

    {"schema": "pymllm.trace", "version": 1, "block_tokens": 16}
    {"arrival_ms": 0.0, "prompt_length": 20, "output_length": 5, "block_ids": [0, 1], "session": 0}
    {"arrival_ms": 900.0, "prompt_length": 33, "output_length": 5, "block_ids": [0, 1, 2], "session": 0,
     "wait_for": [0], "delay_ms": 250.0, "kind": "chat", "namespace": "a", "cached_tokens": 16}

All but the first four fields may be missing. ``wait_for`` has numbers of requests above; what each field
means is said at `pymllm.workloads.request.Request`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from pymllm.traces.lines import UNREADABLE, Rejected, TraceLines, excerpt, reason
from pymllm.traces.numbering import BlockNumbers, Names
from pymllm.traces.records import (
    NAME_MAX,
    REQUESTS_MAX,
    Clock,
    ReadOptions,
    check_block_tokens,
    check_cached,
    check_delay,
    check_length,
    check_name,
    decoded,
    make_request,
    number_blocks,
)
from pymllm.workloads.request import ARRIVAL_MS_MAX, BLOCK_ID_MAX, LENGTH_MAX, Request

_Length = Annotated[int, Meta(ge=1, le=LENGTH_MAX)]
_Milliseconds = Annotated[float, Meta(ge=0, le=ARRIVAL_MS_MAX)]
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]


class TraceHeader(Struct, frozen=True, tag_field="schema", tag="pymllm.trace"):
    """The first line of a trace, which names the format."""

    block_tokens: _Length
    version: Literal[1] = 1


class TraceLine(Struct, frozen=True, gc=False, omit_defaults=True):
    """A request of a trace. The described bounds are checked apart, so that messages name them."""

    arrival_ms: float
    prompt_length: int
    output_length: int
    block_ids: tuple[int, ...]
    namespace: str | int | None = None
    session: int | None = None
    wait_for: tuple[int, ...] = ()
    delay_ms: float | None = None
    kind: str | None = None
    cached_tokens: int | None = None


class _BoundedLine(Struct, frozen=True):
    """A line with the bounds that its schema states."""

    arrival_ms: _Milliseconds
    prompt_length: _Length
    output_length: _Length
    block_ids: tuple[Annotated[int, Meta(ge=0, le=BLOCK_ID_MAX)], ...]
    namespace: _Name | int | None = None
    session: Annotated[int, Meta(ge=0, lt=REQUESTS_MAX)] | None = None
    wait_for: tuple[Annotated[int, Meta(ge=0, lt=REQUESTS_MAX)], ...] = ()
    delay_ms: _Milliseconds | None = None
    kind: _Name | None = None
    cached_tokens: Annotated[int, Meta(ge=0, le=LENGTH_MAX)] | None = None


def trace_schema() -> dict[str, Any]:
    """Return the JSON schema of a line of a trace: the header or a request."""
    (header, line), definitions = msgspec.json.schema_components(
        (TraceHeader, _BoundedLine), ref_template="#/$defs/{name}"
    )
    definitions["TraceLine"] = {**definitions.pop("_BoundedLine"), "title": "TraceLine"}
    line = {"$ref": "#/$defs/TraceLine"}
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a line of a trace in pymllm's own form",
        "anyOf": [header, line],
        "$defs": definitions,
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))  # defaults as JSON has them
    return plain


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file."""
    block_tokens = _read_header(lines, options).block_tokens
    numbers, sessions, clock = BlockNumbers(), Names(), Clock(options, "arrival_ms")
    kinds: dict[str | None, str | None] = {None: None}
    for id, (number, line) in enumerate(decoded(lines, TraceLine)):
        try:
            for other in line.wait_for:
                if not 0 <= other < id:
                    bounds = f"0..{id - 1}, of a request above it" if id else "none: it is the first request"
                    raise Rejected(f"wait_for has {other}, must be in {bounds}")
            arrival_ms = (
                check_delay("arrival_ms", line.arrival_ms) if line.wait_for else clock.read(line.arrival_ms)
            )
            if line.delay_ms is not None:
                check_delay("delay_ms", line.delay_ms)
            length = check_length("prompt_length", line.prompt_length)
            output = check_length("output_length", line.output_length)
            blocks = number_blocks(numbers, line.block_ids, length, block_tokens, field="prompt_length")
            if line.kind not in kinds:
                kinds[line.kind] = check_name("kind", str(line.kind))
            if isinstance(line.namespace, str):
                check_name("namespace", line.namespace)
            session = None if line.session is None else sessions.number(line.session)
            request = make_request(
                id,
                arrival_ms,
                length,
                output,
                blocks,
                block_tokens,
                line.namespace,
                session,
                line.wait_for,
                line.delay_ms,
                kinds[line.kind],
                check_cached(line.cached_tokens, length),
            )
        except Rejected as error:
            raise lines.error(str(error), number) from None
        yield request


def _read_header(lines: TraceLines, options: ReadOptions) -> TraceHeader:
    number, text = next(iter(lines), (None, b""))
    try:
        header = msgspec.json.decode(text, type=TraceHeader)
        check_block_tokens("block_tokens", header.block_tokens)
    except UNREADABLE as error:
        raise lines.error(
            f"not the first line of a trace: {reason(error)}; got {excerpt(text)}", number
        ) from error
    if options.block_tokens not in (None, header.block_tokens):
        raise lines.error(
            f"block_tokens is {header.block_tokens}, must be the {options.block_tokens} of --block-tokens",
            number,
        )
    return header


def write_header(block_tokens: int) -> TraceHeader:
    """Return the first line."""
    return TraceHeader(block_tokens)


def write(request: Request) -> TraceLine:
    """Return the line of a request, with all its fields."""
    return TraceLine(
        request.arrival_ms,
        request.prompt_length,
        request.output_length,
        request.block_ids,
        request.namespace,
        request.session,
        request.wait_for,
        request.delay_ms,
        request.kind,
        request.cached_tokens,
    )
