"""The registry of trace formats, with functions that detect a file's format and read it."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from pymllm.errors import TraceError, UsageError
from pymllm.traces import (
    agentic_mooncake,
    applied_compute,
    bailian,
    dynamo,
    kvsim,
    mooncake,
    own,
    ragpulse,
    request_trace,
    text,
    weka,
)
from pymllm.traces.lines import UNREADABLE, TraceLines, excerpt, reason
from pymllm.traces.records import ReadOptions
from pymllm.workloads.request import OUTPUT_TOKEN_BASE, Request

logger = logging.getLogger("pymllm.traces")
"""The logger of warnings about lines that a reader corrected or left out."""

_NOTHING = "the file holds no request; expected one JSON object per line"

AUTO = "auto"
"""The name that stands for detecting the format by the first line."""

LineMaker = Callable[[Request], msgspec.Struct]
"""A function that returns the line of a request."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of traces.

    - ``reads``: What it is, in a few words.
    - ``read``: Yields the requests of a file.
    - ``write``: Makes what makes its lines; ``None`` where it is only read.
    - ``keeps``: Fields of a request that its lines have, beside those that all have; ``arrival_ms`` is there
      where one that waits may have a time before which it does not arrive, and ``parent`` where the session
      of a request is that of the only one that it waits for.
    - ``has_turns``: Whether the caller may say what later turns of a session hold (`ReadOptions.turns`).
    """

    name: str
    reads: str
    read: Callable[[TraceLines, ReadOptions], Generator[Request]]
    write: Callable[[], LineMaker] | None = None
    keeps: frozenset[str] = frozenset()
    has_turns: bool = False


FORMATS: dict[str, Format] = {
    it.name: it
    for it in (
        Format("mooncake", "Mooncake: blocks of 512 tokens", mooncake.read, lambda: mooncake.write),
        Format(
            "bailian",
            "Qwen-Bailian: blocks of 16, chats with parents, seconds",
            bailian.read,
            bailian.BailianWriter,
            frozenset({"session", "parent", "wait_for", "arrival_ms", "kind"}),
        ),
        Format("weka", "Weka's coding agents: a conversation is an object, with nested agents", weka.read),
        Format(
            "dynamo",
            "dynamo: Mooncake with sessions, or agentic",
            dynamo.read,
            dynamo.DynamoWriter,
            frozenset({"session", "wait_for", "delay_ms"}),
            has_turns=True,
        ),
        Format("agentic-mooncake", "dynamo: a header, and dependencies of requests", agentic_mooncake.read),
        Format("request-trace", "dynamo's record of requests, with what was cached", request_trace.read),
        Format(
            "applied-compute",
            "Applied Compute's agents: lengths of turns, told or by 512",
            applied_compute.read,
        ),
        Format("ragpulse", "RAGPulse: a folder of requests and the lengths of their parts", ragpulse.read),
        Format("kvsim", "kvcache-simulator: block_size on each line", kvsim.read, lambda: kvsim.write),
        Format(
            "pymllm",
            "our own, with every field",
            own.read,
            lambda: own.write,
            frozenset(
                {"session", "wait_for", "arrival_ms", "delay_ms", "kind", "namespace", "cached_tokens"}
            ),
        ),
        Format("text", "text, messages or conversations, with a tokenizer", text.read),
    )
}
"""The formats by name."""

WRITTEN = tuple(name for name, it in FORMATS.items() if it.write is not None)
"""The names of formats that can also be written."""

# The fields by which a line is told, most telling first: any of the first ones, and all of the second.
_TELLING: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = (
    ("weka", frozenset({"hash_id_scope"}), frozenset({"requests"})),
    ("bailian", frozenset({"chat_id", "parent_chat_id"}), frozenset({"hash_ids"})),
    ("kvsim", frozenset({"block_size", "block_tokens"}), frozenset({"hash_ids"})),
    # A request without the header: as one of dynamo, what it depends on would be ignored.
    ("agentic-mooncake", frozenset({"not_before_ms", "dependencies"}), frozenset({"hash_ids"})),
    (
        "dynamo",
        frozenset(
            {"request_id", "session_id", "wait_for", "branches", "delay", "delay_ms", "tool_wait_ms"}
            | {"prefix_reset", "input_tokens", "output_tokens", "created_time"}
        ),
        frozenset({"hash_ids"}),
    ),
    ("mooncake", frozenset({"hash_ids"}), frozenset({"timestamp"})),
    ("kvsim", frozenset({"hash_ids"}), frozenset({"input_length"})),
    (
        "applied-compute",
        frozenset({"assistant_response_length"}),
        frozenset({"num_turns", "input_prompt_length", "tool_call_output_length", "tool_call_latency"}),
    ),
    ("text", frozenset(text.SOURCES), frozenset()),
)


_SCHEMAS = {
    b'"pymllm.trace"': "pymllm",
    request_trace.SCHEMA: "request-trace",
    agentic_mooncake.SCHEMA: "agentic-mooncake",
}
"""The names that some formats state in their first line."""


def detect(line: bytes) -> str | None:
    """Return the name of the format of a first line; ``None`` if its fields fit no format."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        # The only one whose objects go over many lines.
        is_begun = line.strip() == b"{" or (line.startswith(b"{") and weka.MARK in line)
        return "weka" if is_begun else None
    if "event" in fields:  # a record may stand in an object
        return detect(bytes(fields["event"]))
    if bytes(fields.get("hash_ids", b"")).startswith(b"{"):
        return "ragpulse"
    schema = fields.get("schema")
    if schema is not None and (told := _SCHEMAS.get(bytes(schema))) is not None:
        return told
    return next((name for name, some, all in _TELLING if some & fields.keys() and all <= fields.keys()), None)


def _lacking(line: bytes) -> str:
    """Return words for the fields of each format that a line lacks, or for why it is no object."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except UNREADABLE as error:
        return f"not a JSON object ({reason(error)})"
    lacks: dict[str, list[str]] = {}
    for name, some, all in _TELLING:
        missing = sorted(all - fields.keys())
        if not some & fields.keys():
            missing.append(("one of " if len(some) > 1 else "") + ", ".join(sorted(some)))
        if name not in lacks or len(missing) <= len(
            lacks[name]
        ):  # of two ways, the shorter one, or the later
            lacks[name] = missing
    each = "; ".join(f"{name} lacks {' and '.join(missing)}" for name, missing in lacks.items())
    return f"no format has these fields: {each}"


class Trace:
    """The requests of a trace, to be iterated once; ``format`` is their format in the file.

    Ids of requests, blocks and sessions count from 0 in the order in which they first appear, times are
    milliseconds, and what a request waits for stands before it. ``corrected`` counts what a lenient reader
    corrected, ``left_out`` what is no request; both are logged at the end.
    """

    def __init__(self, lines: TraceLines, format: Format, options: ReadOptions, requests: int | None) -> None:
        self.lines = lines
        self.format = format.name
        self.corrected: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._requests = format.read(
            lines, replace(options, corrected=self.corrected, left_out=self.left_out)
        )
        self._most = requests
        self._given = 0

    def close(self) -> None:
        """Close the file, which its end also does."""
        self._requests.close()
        self.lines.close()

    @property
    def source(self) -> str:
        """The name of the file, for messages."""
        return self.lines.source

    def __iter__(self) -> Iterator[Request]:
        """Yield each request; raise `TraceError` if there is none."""
        try:
            for request in self._requests:
                self._given += 1
                yield request
                if self._given == self._most:
                    break
        finally:
            self.close()
        left_out = [f"{what}: {count:,}" for what, count in self.left_out.items()]
        if not self._given:
            why = f"the file holds no request; {', '.join(left_out)}" if left_out else _NOTHING
            raise TraceError(self.source, None, why)
        for said in left_out:
            logger.warning(f"{self.source}: {said}")
        for what, count in self.corrected.items():
            logger.warning(f"{self.source}: {what}: {count:,} of {self._given:,} requests")


def open_trace(
    path: str | os.PathLike[str],
    *,
    format: str = AUTO,
    requests: int | None = None,
    options: ReadOptions | None = None,
) -> Trace:
    """Open a trace: a plain or gzip file or pipe, standard input (``-``), or a folder.

    A folder has files ``*.jsonl``, which are read in order of their names, or Weka's conversations. Only the
    first line is read, and only where the format is to be told by it. Of ``requests``, the first so many are
    given.
    """
    if requests is not None and requests < 1:
        raise ValueError(f"requests must be at least 1, got {requests}")
    if format not in (AUTO, *FORMATS):
        raise UsageError(f"format is {format!r}; choose one of {', '.join((AUTO, *FORMATS))}")
    lines = TraceLines(path)
    if format in (AUTO, "ragpulse") and any(it.name == ragpulse.REQUESTS for it in lines.files):
        lines = TraceLines(os.path.join(lines.place, ragpulse.REQUESTS))  # of a folder that has more
    options = options or ReadOptions()
    try:
        chosen = _chosen(lines, format, options)
    except BaseException:
        lines.close()  # else a later collection warns of an open file
        raise
    return Trace(lines, chosen, options, requests)


def read_requests(trace: Trace) -> list[Request]:
    """Return the requests of a trace that an engine can replay."""
    return list(replayable(trace))


def replayable(trace: Trace) -> Iterator[Request]:
    """Yield requests, and raise an error for one whose number an engine cannot use."""
    for request in trace:
        if not request.has_tokens:
            most = OUTPUT_TOKEN_BASE // request.block_tokens
            raise TraceError(
                trace.source,
                None,
                f"request {request.request_id + 1:,} brings more than {most:,} blocks of "
                f"{request.block_tokens:,} tokens, the most that an engine can name; replay the first "
                f"{request.request_id} requests with --requests",
            )
        yield request


def _chosen(lines: TraceLines, format: str, options: ReadOptions) -> Format:
    """Return the format of a file or folder; raise an error for options that do not apply."""
    is_of_conversations = os.path.isdir(lines.place) and not lines.files
    if format == AUTO:
        format = "weka" if is_of_conversations else _detected(lines)
    elif format != "weka" and is_of_conversations:
        raise TraceError(lines.source, None, "the folder has no file *.jsonl")
    if options.turns != "ask" and not FORMATS[format].has_turns:
        having = " and ".join(name for name, it in FORMATS.items() if it.has_turns)
        raise UsageError(
            f"--{options.turns} is about sessions of {having}, and {lines.source} is {format}; leave it out"
        )
    return FORMATS[format]


def _detected(lines: TraceLines) -> str:
    lines.mark = weka.MARK  # a conversation may be longer than a line of the others
    first = lines.peek()
    lines.mark = None
    if first is None:
        raise lines.error(_NOTHING)
    found = detect(first[1])
    if found is None:
        raise lines.error(f"{_lacking(first[1])}; got {excerpt(first[1])}", first[0])
    return found


def written_lines(requests: Iterable[Request], format: str) -> Iterator[bytes]:
    """Yield the lines of a file in a format of `WRITTEN`, without fields that the format lacks."""
    maker = FORMATS[format].write
    assert maker is not None
    make, encoder = maker(), msgspec.json.Encoder()
    for place, request in enumerate(requests):
        if not place and format == "pymllm":
            yield encoder.encode(own.write_header(request.block_tokens)) + b"\n"
        yield encoder.encode(make(request)) + b"\n"
