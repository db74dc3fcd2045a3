"""RAGPulse: a week of a university's questions, with the passages that were retrieved for them.

A folder has the requests, ``0_trace.jsonl``, and beside them files that say how many tokens each part has::

    {"timestamp": "27", "input_length": 3861, "output_length": 127, "session_id": "1758081660427-xa8r",
     "hash_ids": {"sys_prompt": [8325, 8326], "passages_ids": [6123], "history": [15215], "web_search": [],
                  "user_input": [23648]}}
    {"passage_id": 6123, "token_length": 286}

``timestamp`` counts seconds of a week: the published file has two weeks, and where its times begin anew, the
next week does. A prompt is its parts in the order of the line, each of its own length; what ``input_length``
has beyond them, a few tokens in the published file, is at its end and nobody else's. It is cut into blocks of
``--block-tokens``, 16 if not told.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from pymllm.errors import TraceError
from pymllm.traces.lines import LINES, Rejected, TraceLines, files_of
from pymllm.traces.numbering import BlockNumbers, Names, Part, Pieces
from pymllm.traces.records import Clock, ReadOptions, check_length, check_name, decoded, make_request
from pymllm.workloads.request import Request

BLOCK_TOKENS = 16
"""The default number of tokens per block."""

_WEEK = 7 * 86_400.0

REQUESTS = "0_trace.jsonl"
"""The name of the file with requests in the folder."""


class RagPulseLine(msgspec.Struct, frozen=True):
    """A line of a trace in this format; other fields are ignored."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: dict[str, tuple[int, ...]]
    session_id: str | None = None


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file, whose folder also has the lengths of parts."""
    lengths = _lengths(lines)
    block_tokens = options.block_tokens or BLOCK_TOKENS
    numbers, sessions, clock = BlockNumbers(), Names(), Clock(options, "timestamp", "seconds")
    pieces, weeks, before = Pieces(numbers, block_tokens), 0, 0.0
    decoder = msgspec.json.Decoder(RagPulseLine, strict=False)  # the published times are texts
    for id, (number, line) in enumerate(decoded(lines, RagPulseLine, decoder)):
        try:
            # Only as far as that, so that a line out of order is still refused.
            weeks += line.timestamp < before - _WEEK / 2
            before = line.timestamp
            arrival_ms = clock.read(line.timestamp + weeks * _WEEK)
            length = check_length("input_length", line.input_length)
            output = check_length("output_length", line.output_length, least=0)
            parts: list[Part] = []
            for part in (part for ids in line.hash_ids.values() for part in ids):
                if part not in lengths:
                    raise Rejected(f"hash_ids has {part}, whose token_length no file of the folder has")
                parts.append((part, lengths[part]))
            rest = length - sum(tokens for _, tokens in parts)
            if rest < 0:
                raise Rejected(
                    f"input_length is {length}, must be at least the {length - rest} tokens of its parts"
                )
            if rest:
                parts.append((("rest", id), rest))
            session = None
            if line.session_id is not None:
                session = sessions.number(check_name("session_id", line.session_id))
            blocks = pieces.blocks(parts)
            request = make_request(id, arrival_ms, length, output, blocks, block_tokens, None, session)
        except Rejected as error:
            raise lines.error(str(error), number) from None
        yield request


def _lengths(lines: TraceLines) -> dict[Hashable, int]:
    """Return the number of tokens of each part, from the other files of the folder."""
    folder = Path(lines.place).parent
    found: dict[Hashable, int] = {}
    for path in files_of(str(folder), LINES):
        if path.name == Path(lines.place).name:
            continue
        others = TraceLines(path)
        with closing(others):
            found.update(_parts(others))
    if not found:
        raise TraceError(
            lines.source,
            None,
            "the lengths of its parts are in files beside it, such as 2_passages.jsonl, and none is there",
        )
    return found


def _parts(lines: TraceLines) -> Iterator[Part]:
    """Yield the number of each part in a file, and its token count."""
    for number, line in decoded(lines, dict[str, Any]):
        names = [name for name in line if name.endswith("_id")]
        try:
            if len(names) != 1 or not all(isinstance(line.get(it), int) for it in (*names, "token_length")):
                raise Rejected("a part must have one field ..._id and token_length, both whole numbers")
            yield line[names[0]], check_length("token_length", line["token_length"])
        except Rejected as error:
            raise lines.error(str(error), number) from None
