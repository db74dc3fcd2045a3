"""dynamo's agentic traces with a header: requests, and the requests that each depends on.

The first line says what follows, and each line after it is a request::

    {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "local",
     "source": {"format": "dynamo", "digest": "..."}}
    {"request_id": "r2", "play_id": "p", "session_id": "child", "model": "m", "input_length": 100,
     "output_length": 9, "hash_ids": [1, 2], "not_before_ms": 100.0,
     "dependencies": [{"request_id": "r1", "trigger": "completion", "delay_ms": 20.0, "relation": "spawn"}]}

All times are milliseconds. A request is sent at ``not_before_ms``, but not before each of its dependencies
was sent (``dispatch``) or has ended (``completion``), their ``delay_ms`` later. ``hash_ids`` mean the same in
the whole file. ``play_id`` and ``relation`` are not used. Requests to different models share nothing.

Requests here wait for ends, and have one delay. So one that depends on a dispatch waits for what that waited
for. Where delays differ, or one stands beside a time, what is left out is counted, and said at the end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from pymllm.traces.lines import UNREADABLE, Rejected, TraceLines, excerpt, reason
from pymllm.traces.numbering import BlockNumbers, Names
from pymllm.traces.order import Named, parents_first
from pymllm.traces.records import (
    ReadOptions,
    check_block_tokens,
    check_delay,
    check_length,
    check_name,
    decoded,
    fit_blocks,
    make_request,
)
from pymllm.workloads.request import Request

SCHEMA = b'"dynamo.agentic_mooncake"'
"""The name of the format in the first line, as JSON."""


class AgenticHeader(msgspec.Struct, frozen=True, tag_field="schema", tag="dynamo.agentic_mooncake"):
    """The first line; other fields are ignored."""

    version: Literal[2]
    block_size: int
    hash_id_scope: Literal["local"] = "local"


class Dependency(msgspec.Struct, frozen=True):
    """A request after which another is sent; other fields are ignored."""

    request_id: str
    trigger: Literal["dispatch", "completion"]
    delay_ms: float = 0.0


class AgenticLine(msgspec.Struct, frozen=True):
    """A line of a trace in this format; other fields are ignored."""

    request_id: str
    output_length: int
    hash_ids: tuple[int, ...]
    not_before_ms: float
    session_id: str | None = None
    model: str | None = None
    input_length: int | None = None
    dependencies: tuple[Dependency, ...] = ()


@dataclass(slots=True, eq=False)
class _Placed:
    """A line with the time at which it is sent, and the delay after the requests that it waits for."""

    line: AgenticLine
    number: int
    earliest: float
    waits: dict[str, float]  # name -> how long after its end
    expected: float = 0.0  # if every answer took no time


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file, in order of the earliest time at which each can be sent."""
    block_tokens = _read_header(lines, options).block_size
    numbers, sessions = BlockNumbers(), Names()
    placed = sorted(_place(lines), key=lambda it: it.expected)  # stable: what is waited for stays before
    several = len({it.line.model for it in placed}) > 1
    ids: dict[str, int] = {}
    for id, it in enumerate(placed):
        line = it.line
        try:
            output = check_length("output_length", line.output_length, least=0)
            fitting, length = fit_blocks(line.hash_ids, line.input_length, block_tokens, options)
            delay = _delay(it, options)
            request = make_request(
                id,
                it.expected if not it.waits or delay else it.earliest,
                length,
                output,
                numbers.numbers(fitting),
                block_tokens,
                line.model if several else None,
                None if line.session_id is None else sessions.number(line.session_id),
                tuple(ids[name] for name in it.waits),
                delay or None,
            )
        except Rejected as error:
            raise lines.error(str(error), it.number) from None
        ids[line.request_id] = id
        yield request


def _delay(it: _Placed, options: ReadOptions) -> float:
    """Return the delay of a request, and count missing fields."""
    delays = set(it.waits.values())
    delay = max(delays, default=0.0)
    if len(delays) > 1:
        options.corrected["dependencies with delays of their own, taken as the longest of them"] += 1
    if delay and it.earliest:
        options.corrected["not_before_ms beside a delay, left out"] += 1
    return delay


def _place(lines: TraceLines) -> Iterator[_Placed]:
    """Yield the lines of a file, each after the lines that it depends on."""
    known: dict[str, _Placed] = {}
    for row in parents_first(_rows(lines), lines):
        line = row.line
        it = known[row.name] = _Placed(line, row.number, line.not_before_ms, {})
        for dependency in line.dependencies:
            other, delay = known[dependency.request_id], dependency.delay_ms
            if dependency.trigger == "completion":
                _wait(it, dependency.request_id, delay)
                continue
            for name, more in other.waits.items():
                _wait(it, name, delay + more)
            # What is sent together with its parent has a time of its own only where that has one.
            if other.earliest or not other.waits:
                it.earliest = max(it.earliest, other.earliest + delay)
        it.expected = max([it.earliest, *(known[name].expected + delay for name, delay in it.waits.items())])
        yield it


def _wait(it: _Placed, name: str, delay: float) -> None:
    it.waits[name] = max(delay, it.waits.get(name, 0.0))


def _rows(lines: TraceLines) -> Iterator[Named[AgenticLine]]:
    """Yield each line with its name and those of its dependencies."""
    for number, line in decoded(lines, AgenticLine):
        try:
            check_name("request_id", line.request_id)
            for name, text in (("session_id", line.session_id), ("model", line.model)):
                if text is not None:
                    check_name(name, text)
            check_delay("not_before_ms", line.not_before_ms)
            for dependency in line.dependencies:
                check_delay("delay_ms", dependency.delay_ms)
        except Rejected as error:
            raise lines.error(str(error), number) from None
        waits = tuple(dict.fromkeys(it.request_id for it in line.dependencies))
        yield Named(line.request_id, waits, number, line)


def _read_header(lines: TraceLines, options: ReadOptions) -> AgenticHeader:
    number, text = next(iter(lines), (None, b""))
    try:
        header = msgspec.json.decode(text, type=AgenticHeader)
        size = check_block_tokens("block_size", header.block_size)
        if options.block_tokens not in (None, size):
            raise Rejected(f"block_size is {size}, must be the {options.block_tokens} of --block-tokens")
    except UNREADABLE as error:
        raise lines.error(f"not the first line: {reason(error)}; got {excerpt(text)}", number) from error
    except Rejected as error:
        raise lines.error(str(error), number) from None
    return header
