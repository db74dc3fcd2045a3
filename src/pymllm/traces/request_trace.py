"""The request log of dynamo's frontend, ``dynamo.request.trace.v1``.

One record per line, as it is or as the ``event`` of an object::

    {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 1100,
     "agent_context": {"session_id": "child", "parent_session_id": "main"},
     "request": {"request_id": "r1", "model": "m", "output_tokens": 4, "cached_tokens": 64,
                "request_received_ms": 1000, "total_time_ms": 99.5,
                "replay": {"trace_block_size": 64, "input_length": 130, "input_sequence_hashes": [1, 2, 3]}}}

Of a request the record comes at its end, so that all are read before the first is given, in order of
``request_received_ms``. Times are milliseconds, and begin with the first request. ``cached_tokens`` are those
that the server found in its cache. Records of payloads and tools are left out.

With ``agent_context`` a request is in a session. It waits for the last request of its session that had ended
when it began, and for sessions beneath it that had; the first of a session for the last request of its parent
that had ended. It arrives as long after those as it did. Requests to different models share nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import msgspec

from pymllm.traces.lines import Rejected, TraceLines
from pymllm.traces.numbering import BlockNumbers, Names
from pymllm.traces.records import (
    ReadOptions,
    check_block_tokens,
    check_cached,
    check_length,
    check_name,
    decoded,
    make_request,
    number_blocks,
)
from pymllm.workloads.request import ARRIVAL_MS_MAX, Request

SCHEMA = b'"dynamo.request.trace.v1"'
"""The name of the format in each record, as JSON."""


class _Replay(msgspec.Struct, frozen=True):
    trace_block_size: int
    input_length: int
    input_sequence_hashes: tuple[int, ...]


class _Metrics(msgspec.Struct, frozen=True):
    request_id: str
    output_tokens: int | None = None
    cached_tokens: int | None = None
    model: str | None = None
    request_received_ms: float | None = None
    total_time_ms: float | None = None
    replay: _Replay | None = None


class _Context(msgspec.Struct, frozen=True):
    session_id: str
    parent_session_id: str | None = None


class RequestRecord(msgspec.Struct, frozen=True):
    """A record, or an object with a record as its event; other fields are ignored."""

    event_type: str | None = None
    event_time_unix_ms: float | None = None
    agent_context: _Context | None = None
    request: _Metrics | None = None
    event: RequestRecord | None = None


@dataclass(slots=True, eq=False)
class _Served:
    """A served request: its start and end in milliseconds, and its line."""

    start: float
    end: float
    request: _Metrics
    context: _Context | None
    number: int
    id: int = -1


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file, in order of arrival."""
    served = sorted(_served(lines), key=lambda it: (it.start, it.end, it.request.request_id))
    if not served:
        return
    begin, size = served[0].start, options.block_tokens
    numbers, sessions = BlockNumbers(), Names()
    several = len({it.request.model for it in served}) > 1
    waiting = _Waiting()
    for id, it in enumerate(served):
        request, replay = it.request, it.request.replay
        assert replay is not None
        try:
            check_block_tokens("trace_block_size", replay.trace_block_size)
            if size not in (None, replay.trace_block_size):
                whose = "of --block-tokens" if options.block_tokens else "of the requests before it"
                raise Rejected(f"trace_block_size is {replay.trace_block_size}, must be the {size} {whose}")
            size = replay.trace_block_size
            if request.output_tokens is None:
                raise Rejected("output_tokens is missing")
            length = check_length("input_length", replay.input_length)
            output = check_length("output_tokens", request.output_tokens, least=0)
            blocks = number_blocks(numbers, replay.input_sequence_hashes, length, size)
            it.id = id
            waits = waiting.of(it)
            session = None if it.context is None else sessions.number(it.context.session_id)
            found = make_request(
                id,
                it.start - begin,
                length,
                output,
                blocks,
                size,
                request.model if several else None,
                session,
                tuple(other.id for other in waits),
                max(0.0, it.start - max(other.end for other in waits)) if waits else None,
                None,
                check_cached(request.cached_tokens, length),
            )
        except Rejected as error:
            raise lines.error(str(error), it.number) from None
        yield found


def _served(lines: TraceLines) -> Iterator[_Served]:
    """Yield the requests that ended, in the order of the file."""
    seen: dict[str, int] = {}
    for number, line in decoded(lines, RequestRecord):
        record = line.event or line
        if record.event_type != "request_end":
            continue
        try:
            request = record.request
            if request is None or request.replay is None:
                what = "request" if request is None else "request.replay"
                raise Rejected(f"{what} is missing: the server did not record the hashes of prompts")
            for name, text in (("request_id", request.request_id), ("model", request.model)):
                if text is not None:
                    check_name(name, text)
            if record.agent_context is not None:
                check_name("session_id", record.agent_context.session_id)
            if request.request_id in seen:
                raise Rejected(
                    f"request_id {request.request_id!r} is that of line {seen[request.request_id]}, too"
                )
            seen[request.request_id] = number
            start, end = _times(record, request)
        except Rejected as error:
            raise lines.error(str(error), number) from None
        yield _Served(start, end, request, record.agent_context, number)


def _times(record: RequestRecord, request: _Metrics) -> tuple[float, float]:
    """Return the arrival and the end of a request."""
    start, took, told = request.request_received_ms, request.total_time_ms, record.event_time_unix_ms
    if start is None:
        raise Rejected("request_received_ms is missing")
    for name, time in (("request_received_ms", start), ("total_time_ms", took), ("event_time_unix_ms", told)):
        if time is not None and not 0 <= time <= ARRIVAL_MS_MAX:
            raise Rejected(f"{name} is {time}, must be in 0..{ARRIVAL_MS_MAX:.0f} (milliseconds)")
    if took is not None:
        return start, start + took
    return start, start if told is None else max(start, told)


class _Waiting:
    """A search for the requests that each request waited for; requests come in order of their start."""

    def __init__(self) -> None:
        self._of_session: dict[str, list[_Served]] = {}
        self._beneath: dict[str, set[str]] = {}  # session -> those that it began, until it waits for them

    def of(self, it: _Served) -> list[_Served]:
        """Return the requests that one waits for."""
        if it.context is None:
            return []
        name, parent = it.context.session_id, it.context.parent_session_id
        own = self._of_session.setdefault(name, [])
        found = [self._last_ended(own, it.start)]
        if not own and parent is not None and parent != name:
            found.append(self._last_ended(self._of_session.get(parent, []), it.start))
            self._beneath.setdefault(parent, set()).add(name)
        for child in sorted(self._beneath.get(name, ())):
            last = max(self._of_session[child], key=lambda other: other.end)
            if last.end <= it.start:
                found.append(last)
                self._beneath[name].remove(child)
        own.append(it)
        return [other for other in found if other is not None]

    @staticmethod
    def _last_ended(own: list[_Served], start: float) -> _Served | None:
        return next((other for other in reversed(own) if other.end <= start), None)
