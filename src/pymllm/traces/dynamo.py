"""dynamo's Mooncake traces with sessions, and dynamo's agentic traces.

One request per line: the fields of Mooncake, by these names or as ``input_tokens``, ``output_tokens`` and
``created_time``, and beside them ::

    {"session_id": "a", "delay": 250, ...}
    {"request_id": "r2", "session_id": "a", "wait_for": ["r1"], "branches": [], "delay": 20,
     "tool_wait_ms": 30, ...}

All times are milliseconds. A request arrives when those that it waits for have ended, ``delay`` (or
``delay_ms``) plus ``tool_wait_ms`` later; its ``timestamp`` is then only what was recorded. One without them
arrives at its timestamp. In a session without ``request_id`` each line waits for the one before it; without a
delay, as long as their timestamps are apart. ``branches`` name requests that begin after this one; those of
them without ``wait_for`` wait for it. Blocks have 512 tokens unless ``--block-tokens`` says otherwise.

dynamo's ``mooncake-delta`` and AIPerf's sessions have the same fields, and later turns of a session hold only
the new tokens. Where a later turn shares no block with the first, either may be meant: the reader asks. As
deltas, a prompt is what the turns of its session hold up to it, token after token; answers are left out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from pymllm.traces.lines import Rejected, TraceLines
from pymllm.traces.numbering import BlockNumbers, Names, Part, Pieces
from pymllm.traces.order import Named, parents_first
from pymllm.traces.records import (
    Clock,
    ReadOptions,
    check_delay,
    check_length,
    check_name,
    decoded,
    fit_blocks,
    make_request,
)
from pymllm.workloads.request import Request

BLOCK_TOKENS = 512
"""The default number of tokens per block, as in dynamo."""


class DynamoLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A line of a trace in this format; other fields are ignored."""

    hash_ids: tuple[int, ...]
    input_length: int | None = None
    input_tokens: int | None = None
    output_length: int | None = None
    output_tokens: int | None = None
    timestamp: float | None = None
    created_time: float | None = None
    request_id: str | None = None
    session_id: str | None = None
    wait_for: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    delay: float | None = None
    delay_ms: float | None = None
    tool_wait_ms: float | None = None


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file, each after the requests that it waits for."""
    block_tokens = options.block_tokens or BLOCK_TOKENS
    numbers, sessions, clock = BlockNumbers(), Names(), Clock(options, "timestamp")
    turns = _Turns(options, numbers, block_tokens)
    ids: dict[str, int] = {}
    arrivals: list[float] = []
    for id, row in enumerate(parents_first(_rows(lines), lines)):
        line, wait_for = row.line.line, tuple(ids[name] for name in row.waits)
        try:
            length = line.input_tokens if line.input_length is None else line.input_length
            output = line.output_tokens if line.output_length is None else line.output_length
            if output is None:
                raise Rejected("output_length is missing")
            check_length("output_length", output)
            arrival_ms, delay = _arrival(row.line, [arrivals[other] for other in wait_for], clock)
            blocks, length = turns.prompt(line, length)
            session = None if line.session_id is None else sessions.number(line.session_id)
            request = make_request(
                id, arrival_ms, length, output, blocks, block_tokens, None, session, wait_for, delay
            )
        except Rejected as error:
            raise lines.error(str(error), row.number) from None
        ids[row.name] = id
        arrivals.append(arrival_ms)
        yield request


class _Turns:
    """The prompts of turns, which lines hold in whole, or without the beginning from earlier turns."""

    def __init__(self, options: ReadOptions, numbers: BlockNumbers, block_tokens: int) -> None:
        self._options, self._numbers, self._block_tokens = options, numbers, block_tokens
        self._firsts: dict[str, int] = {}  # session -> the first block of its first turn
        self._pieces = Pieces(numbers, block_tokens)
        self._parts: dict[str, list[Part]] = {}  # session -> what its turns hold so far

    def prompt(self, line: DynamoLine, length: int | None) -> tuple[tuple[int, ...], int]:
        """Return the blocks of a line's prompt and its length in tokens."""
        ids, length = fit_blocks(line.hash_ids, length, self._block_tokens, self._options)
        if self._options.turns == "deltas":
            return self._accumulated(line, ids, length)
        blocks = self._numbers.numbers(ids)
        # Lines with names say by them what they go on from, and hold whole prompts.
        if self._options.turns == "ask" and line.session_id is not None and line.request_id is None:
            first = self._firsts.setdefault(line.session_id, blocks[0])
            if blocks[0] != first:
                raise Rejected(
                    f"this turn of session_id {line.session_id!r} shares no block with its first turn: "
                    "if later turns have only their new tokens, give --deltas; if whole prompts, --cumulative"
                )
        return blocks, length

    def _accumulated(self, line: DynamoLine, ids: Sequence[int], length: int) -> tuple[tuple[int, ...], int]:
        size = self._block_tokens
        parts: list[Part] = [(id, min(size, length - place * size)) for place, id in enumerate(ids)]
        if line.session_id is not None:
            before = self._parts.setdefault(line.session_id, [])
            before += parts
            parts = before
        total = check_length("input_length of all turns so far", sum(tokens for _, tokens in parts))
        return self._pieces.blocks(parts), total


@dataclass(slots=True)
class _Turn:
    """A line, with its delay after the end of the lines that it waits for."""

    line: DynamoLine
    delay_ms: float


def _arrival(turn: _Turn, awaited: list[float], clock: Clock) -> tuple[float, float | None]:
    """Return the arrival and the delay of a line; a missing arrival becomes the earliest possible one."""
    time = _time(turn.line)
    if awaited:
        earliest = max(awaited) + turn.delay_ms
        return check_delay("timestamp", earliest if time is None else time), turn.delay_ms
    if time is None:
        raise Rejected("timestamp is missing, of a request that waits for no other")
    return clock.read(time), None


def _rows(lines: TraceLines) -> Iterator[Named[_Turn]]:
    """Yield each line with its name and the names of requests that it waits for."""
    latest: dict[str, tuple[str, float | None]] = {}  # session -> its last line and when that arrived
    spawned: dict[str, str] = {}
    for number, line in decoded(lines, DynamoLine):
        try:
            for name in (*line.wait_for, *line.branches):
                check_name("wait_for", name)
            name = (
                f"(line {number})" if line.request_id is None else check_name("request_id", line.request_id)
            )
            time, waits, before = _time(line), tuple(dict.fromkeys(line.wait_for)), None
            if line.session_id is not None:
                before = latest.get(check_name("session_id", line.session_id))
                latest[line.session_id] = name, time
            if not waits and name in spawned:
                waits = (spawned.pop(name),)
            elif not waits and before is not None and (time is None or line.request_id is None):
                waits = (before[0],)
            yield Named(name, waits, number, _Turn(line, _delay(line, before if waits else None)))
        except Rejected as error:
            raise lines.error(str(error), number) from None
        for child in line.branches:
            spawned[child] = name


def _delay(line: DynamoLine, before: tuple[str, float | None] | None) -> float:
    """Return the delay of a line, or the difference of its timestamp from the previous line's."""
    given = line.delay if line.delay is not None else line.delay_ms
    if given is not None or line.tool_wait_ms is not None:
        return check_delay("delay", given or 0.0) + check_delay("tool_wait_ms", line.tool_wait_ms or 0.0)
    time = _time(line)
    if line.request_id is not None or before is None or before[1] is None or time is None:
        return 0.0
    if time < before[1]:
        raise Rejected(f"timestamp {time:g} lies before {before[1]:g} of the request above it in its session")
    return time - before[1]


def _time(line: DynamoLine) -> float | None:
    return line.timestamp if line.timestamp is not None else line.created_time


class DynamoWriter:
    """A writer of agentic lines, without namespaces and kinds.

    A request without a delay arrives as long after those that it waits for as was recorded: the format knows
    no other arrival of one that waits.
    """

    def __init__(self) -> None:
        self._arrivals: list[float] = []

    def __call__(self, request: Request) -> DynamoLine:
        """Return the line of a request, after those of the requests that it waits for."""
        delay = request.delay_ms
        if request.wait_for and delay is None:
            delay = max(0.0, request.arrival_ms - max(self._arrivals[other] for other in request.wait_for))
        self._arrivals.append(request.arrival_ms)
        return DynamoLine(
            request.block_ids,
            input_length=request.prompt_length,
            output_length=request.output_length,
            timestamp=request.arrival_ms,
            request_id=f"r{request.request_id}",
            session_id=None if request.session is None else f"s{request.session}",
            wait_for=tuple(f"r{other}" for other in request.wait_for),
            delay=delay,
        )
