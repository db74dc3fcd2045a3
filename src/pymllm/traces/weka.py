"""Traces of coding agents by Weka.

One JSON object for each conversation, in a file or a line of its own; a folder of such files is one trace::

    {"id": "trace_0001", "block_size": 64, "hash_id_scope": "local", "requests": [
        {"t": 0.0, "type": "n", "in": 17209, "out": 275, "hash_ids": [1, 2, ...], "api_time": 8.8},
        {"t": 100.7, "type": "subagent", "subagent_type": "Explore", "requests": [
            {"t": 0.0, "type": "s", "in": 10183, "out": 373, "hash_ids": [...], "api_time": 2.4}]}]}

All times are seconds. ``hash_ids`` name whole blocks, with ``"local"`` scope in their conversation only: two
conversations share nothing. Times of nested agents count from the agent's own ``t``, or from the
conversation's beginning; which of both, is seen where an agent's requests lie before its own time.

What a request waited for is not in the file, but when each was under way is. So a request waits for the last
one of its agent that had ended when it began, and for agents beneath it that had ended, and an agent's first
one for the last of the agent above; it arrives as long after those as it did then. A request's end is
``t + api_time``; without an ``api_time`` it is ``think_time`` before the next one, or at once.

When conversations ran beside each other is not in the files either. So many run at once (16, if not told), in
the order of their files; where one has ended, the next begins.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

import msgspec

from pymllm.errors import TraceError
from pymllm.traces.lines import (
    DOCUMENT_BYTES_MAX,
    UNREADABLE,
    Rejected,
    TraceLines,
    excerpt,
    files_of,
    reason,
)
from pymllm.traces.numbering import BlockNumbers
from pymllm.traces.records import (
    ReadOptions,
    check_block_tokens,
    check_length,
    check_name,
    make_request,
    number_blocks,
)
from pymllm.workloads.request import ARRIVAL_MS_MAX, Request

MARK = b'"hash_id_scope"'
"""A field by which a conversation is recognised, since other lines do not have it."""

NESTED_TIMES = ("auto", "relative", "absolute")
"""The origins of nested agents' times: detected, the agent's own start, or the conversation's."""

_CLOSE = 1e-6  # seconds that two readings of one moment may be apart
_DEPTH_MAX = 16
_UNNAMED_BLOCKS_MAX = 1 << 16
_SECONDS_MAX = ARRIVAL_MS_MAX / 1000


class WekaItem(msgspec.Struct, frozen=True, rename={"input": "in", "output": "out"}):
    """A request, or an agent with requests; other fields are ignored."""

    t: float
    type: str
    input: int | None = None
    output: int | None = None
    hash_ids: list[int] = []  # msgspec makes each its own
    api_time: float | None = None
    think_time: float | None = None
    subagent_type: str | None = None
    requests: list[WekaItem] | None = None


class WekaDocument(msgspec.Struct, frozen=True):
    """A conversation; other fields are ignored."""

    block_size: int
    hash_id_scope: str
    requests: list[WekaItem]


@dataclass(slots=True, eq=False)
class _Call:
    """A request of a conversation, with its times in seconds and the requests before it."""

    item: WekaItem
    kind: str
    where: str
    start: float
    end: float | None
    waits: list[_Call] = field(default_factory=list)
    delay: float = 0.0
    id: int = -1


@dataclass(slots=True, eq=False)
class _Lane:
    """A place that one conversation occupies at a time."""

    calls: list[_Call]
    source: TraceLines
    number: int
    begins: float  # seconds of the trace
    session: int
    local: dict[int, int] | None
    after: int | None = None  # the last request of the conversation before
    place: int = 0


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file or a folder, in order of arrival."""
    documents = enumerate(_documents(lines))
    numbers = BlockNumbers()
    block_tokens = 0
    heap: list[tuple[float, int, _Lane]] = []
    id = 0

    def open_lane(begins: float, after: int | None) -> None:
        nonlocal block_tokens
        for session, (source, number, document) in documents:
            try:
                check_block_tokens("block_size", document.block_size)
                if options.block_tokens not in (None, document.block_size):
                    wanted = f"{options.block_tokens} of --block-tokens"
                    raise Rejected(f"block_size is {document.block_size}, must be the {wanted}")
                if block_tokens not in (0, document.block_size):
                    raise Rejected(
                        f"block_size is {document.block_size}, must be the {block_tokens} above it"
                    )
                block_tokens = document.block_size
                calls = _calls(document, options.nested_times)
            except Rejected as error:
                raise source.error(str(error), number) from None
            if calls:
                local: dict[int, int] = {}
                is_local = document.hash_id_scope == "local"
                lane = _Lane(calls, source, number, begins, session, local if is_local else None, after)
                heappush(heap, (begins + calls[0].start, session, lane))
                return

    for _ in range(options.conversations):
        open_lane(0.0, None)
    while heap:
        arrival, _, lane = heappop(heap)
        call = lane.calls[lane.place]
        try:
            request = _request(call, id, arrival, lane, numbers, block_tokens)
        except Rejected as error:
            raise lane.source.error(f"{call.where}: {error}", lane.number) from None
        call.id = id
        id += 1
        yield request
        lane.place += 1
        if lane.place < len(lane.calls):
            heappush(heap, (lane.begins + lane.calls[lane.place].start, lane.session, lane))
        else:
            last = max(lane.calls, key=_end_of)
            open_lane(max(lane.begins + _end_of(last), arrival), last.id)


def _request(
    call: _Call, id: int, arrival: float, lane: _Lane, numbers: BlockNumbers, block_tokens: int
) -> Request:
    """Return the request of a call; the first in a conversation waits for the last one in its lane."""
    item = call.item
    if item.input is None or item.output is None:
        raise Rejected(f"{'in' if item.input is None else 'out'} is missing")
    length = check_length("in", item.input)
    output = check_length("out", item.output, least=0)
    wait_for = tuple(dict.fromkeys(other.id for other in call.waits))
    delay = call.delay if wait_for else None
    if not wait_for and lane.after is not None:
        wait_for, delay = (lane.after,), call.start
    if item.hash_ids:
        ids: Sequence[int] = item.hash_ids
        if lane.local is not None:
            ids = _of_conversation(ids, lane.local, numbers)
            blocks = tuple(ids)
            whole = length // block_tokens
            if len(blocks) != -(-length // block_tokens) and len(blocks) != whole:
                number_blocks(BlockNumbers(), ids, length, block_tokens, names_tail=False, field="in")
            if len(blocks) * block_tokens < length:
                blocks = (*blocks, numbers.fresh())
        else:
            blocks = number_blocks(numbers, ids, length, block_tokens, names_tail=False, field="in")
    else:  # its content is not known: nobody shares it
        most = _UNNAMED_BLOCKS_MAX * block_tokens
        if length > most:
            raise Rejected(f"in is {length} without hash_ids, must be in 1..{most} (tokens)")
        blocks = tuple([numbers.fresh() for _ in range(-(-length // block_tokens))])
    return make_request(
        id,
        arrival * 1000,
        length,
        output,
        blocks,
        block_tokens,
        None,
        lane.session,
        wait_for,
        None if delay is None else delay * 1000,
        call.kind,
    )


def _of_conversation(ids: Sequence[int], local: dict[int, int], numbers: BlockNumbers) -> list[int]:
    """Return global block numbers for ids that are valid within one conversation."""
    try:
        return [local[id] for id in ids]
    except KeyError:
        pass
    found = []
    for id in ids:
        if id < 0:
            raise Rejected(f"hash_ids has {id}, must be at least 0")
        number = local.get(id)
        if number is None:
            number = local[id] = numbers.fresh()
        found.append(number)
    return found


# -- what waits for what ------------------------------------------------------------------------------------


def _calls(document: WekaDocument, nested_times: str) -> list[_Call]:
    """Return the requests of a conversation in time order, each with its predecessors."""
    if document.hash_id_scope not in ("local", "global"):
        raise Rejected(f"hash_id_scope is {document.hash_id_scope[:60]!r}, must be local or global")
    is_relative = nested_times == "relative"
    if nested_times == "auto":
        is_relative = _is_relative(document.requests)
    calls: list[_Call] = []
    _walk(document.requests, "requests", "main", 0.0, None, is_relative, calls)
    calls.sort(key=lambda call: call.start)
    return calls


def _walk(
    items: Sequence[WekaItem],
    where: str,
    kind: str,
    base: float,
    spawner: _Call | None,
    is_relative: bool,
    calls: list[_Call],
) -> None:
    """Add the requests of one agent and of its nested agents."""
    if where.count("requests") > _DEPTH_MAX:
        raise Rejected(f"{where}: more than {_DEPTH_MAX} agents stand inside each other")
    own: list[_Call] = []
    beneath: list[list[_Call]] = []
    for place, item in enumerate(items):
        here, start = f"{where}[{place}]", base + item.t
        if not 0 <= start <= _SECONDS_MAX or item.t < 0:
            raise Rejected(f"{here}: t is {item.t}, must be in 0..{_SECONDS_MAX:.0f} (seconds)")
        before = _last_ended(own, start, item) or spawner
        if item.type == "subagent":
            first = len(calls)
            name = check_name(f"{here}: subagent_type", item.subagent_type or "subagent")
            _walk(
                item.requests or [],
                f"{here}.requests",
                name,
                start if is_relative else base,
                before,
                is_relative,
                calls,
            )
            beneath.append(calls[first:])
        elif item.type in ("n", "s"):
            for name, seconds in (("api_time", item.api_time), ("think_time", item.think_time)):
                if seconds is not None and not 0 <= seconds <= _SECONDS_MAX:
                    raise Rejected(f"{here}: {name} is {seconds}, must be in 0..{_SECONDS_MAX:.0f} (seconds)")
            call = _Call(item, kind, here, start, None if item.api_time is None else start + item.api_time)
            done = [each for each in beneath if each and max(map(_end_of, each)) <= start + _CLOSE]
            beneath = [each for each in beneath if each not in done]
            call.waits = [it for it in (before, *(max(each, key=_end_of) for each in done)) if it is not None]
            if call.waits:
                call.delay = max(0.0, start - max(map(_end_of, call.waits)))
            own.append(call)
            calls.append(call)
        else:
            raise Rejected(f"{here}: type is {item.type[:60]!r}, must be one of n, s, subagent")


def _last_ended(own: Sequence[_Call], start: float, following: WekaItem) -> _Call | None:
    """Return the last request of an agent that had ended at a given time."""
    for call in reversed(own):
        end = call.end
        if end is None:
            think = following.think_time
            end = call.start if think is None else max(call.start, start - think)
            if following.type != "subagent":
                call.end = end
        if end <= start + _CLOSE:
            return call
    return None


def _end_of(call: _Call) -> float:
    return call.start if call.end is None else call.end


def _is_relative(items: Sequence[WekaItem]) -> bool:
    """Tell whether the times of nested agents are relative, as far as they show it."""
    seen = {"relative": "", "absolute": ""}
    left = [("requests", items)]
    while left:
        where, inside = left.pop()
        for place, item in enumerate(inside):
            if item.type != "subagent" or not item.requests:
                continue
            here = f"{where}[{place}]"
            left.append((f"{here}.requests", item.requests))
            if item.t > _CLOSE:
                earliest = min(it.t for it in item.requests)
                seen["relative" if earliest < item.t - _CLOSE else "absolute"] = here
    if all(seen.values()):
        raise Rejected(
            f"{seen['relative']} has requests before its own time, and {seen['absolute']} has none; "
            "give --format weka,nested-times=relative, or =absolute"
        )
    return bool(seen["relative"])


# -- files -------------------------------------------------------------------------------------------------


def _documents(lines: TraceLines) -> Iterator[tuple[TraceLines, int, WekaDocument]]:
    """Yield each conversation with its place in the file."""
    if os.path.isdir(lines.place) and not lines.files:
        for path in conversation_files(lines.place):
            yield from _documents(TraceLines(path))
        return
    lines.limit = DOCUMENT_BYTES_MAX
    decoder = msgspec.json.Decoder(WekaDocument)
    for number, text in lines:
        try:
            try:
                document = decoder.decode(text)
            except msgspec.DecodeError as error:
                if "truncated" not in str(error):
                    raise
                document = decoder.decode(_whole(text, lines))  # an object that goes over many lines
        except UNREADABLE as error:
            raise lines.error(f"not a conversation: {reason(error)}; got {excerpt(text)}", number) from error
        yield lines, number, document


def conversation_files(folder: str) -> list[Path]:
    """Return the files of a folder that is a trace, in order of their names."""
    found = files_of(folder, (".json", ".json.gz"))
    if not found:
        raise TraceError(folder, None, "the folder has no file *.jsonl, and no *.json of a conversation")
    return found


def _whole(first: bytes, lines: TraceLines) -> bytes:
    """Return the unread part of a file that holds a single JSON object."""
    parts, size = [first], len(first)
    for _, text in lines:
        parts.append(text)
        size += len(text)
        if size > DOCUMENT_BYTES_MAX:
            raise lines.error(f"longer than {DOCUMENT_BYTES_MAX:,} bytes, the most of a conversation")
    return b"".join(parts)
