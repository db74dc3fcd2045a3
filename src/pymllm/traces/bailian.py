"""The anonymous usage traces of Qwen on Aliyun Bailian (USENIX ATC 2025).

One request per line::

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, ...]}

``timestamp`` counts seconds, ``parent_chat_id`` names the request that this one goes on from, -1 for none,
and ``hash_ids`` name blocks of 16 tokens. A request is in the session of its parent, its ``type`` is its
kind, and it arrives at its timestamp, but not before its parent has ended. It has no parent where no line
above has that, as where the recording began later.
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
    check_name,
    decoded,
    make_request,
    number_blocks,
)
from pymllm.workloads.request import Request

BLOCK_TOKENS = 16
"""Tokens per block in the published traces."""

_NO_PARENT = -1


class BailianLine(msgspec.Struct, frozen=True, gc=False):
    """A line of a trace in this format; other fields are ignored."""

    chat_id: int
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    parent_chat_id: int = _NO_PARENT
    type: str | None = None
    turn: int = 1


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file."""
    block_tokens = options.block_tokens or BLOCK_TOKENS
    numbers, clock = BlockNumbers(), Clock(options, "timestamp", "seconds")
    chats: dict[int, tuple[int, int]] = {}  # chat -> request and session
    kinds: dict[str | None, str | None] = {None: None}
    sessions = 0
    for id, (number, line) in enumerate(decoded(lines, BailianLine)):
        try:
            arrival_ms = clock.read(line.timestamp)
            length = check_length("input_length", line.input_length)
            output = check_length("output_length", line.output_length, least=0)
            if line.chat_id in chats:
                raise Rejected(f"chat_id {line.chat_id} is that of request {chats[line.chat_id][0]}, too")
            if line.parent_chat_id == line.chat_id:
                raise Rejected(f"parent_chat_id is {line.chat_id}, the chat itself; -1 is for none")
            parent = chats.get(line.parent_chat_id)
            session = sessions if parent is None else parent[1]
            sessions += parent is None
            if line.type not in kinds:
                kinds[line.type] = check_name("type", str(line.type))
            blocks = number_blocks(numbers, line.hash_ids, length, block_tokens, names_tail=False)
            request = make_request(
                id,
                arrival_ms,
                length,
                output,
                blocks,
                block_tokens,
                None,
                session,
                () if parent is None else (parent[0],),
                None,
                kinds[line.type],
            )
        except Rejected as error:
            raise lines.error(str(error), number) from None
        chats[line.chat_id] = id, session
        yield request


class BailianWriter:
    """A writer of lines, without namespaces, delays, and all but one of a request's dependencies."""

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}

    def __call__(self, request: Request) -> BailianLine:
        """Return the line of a request, whose parent must have been written."""
        parent = request.wait_for[0] if request.wait_for else _NO_PARENT
        turn = self._turns.get(parent, 0) + 1
        self._turns[request.request_id] = turn
        return BailianLine(
            request.request_id,
            request.arrival_ms / 1000,
            request.prompt_length,
            request.output_length,
            request.block_ids,
            parent,
            request.kind or "text",
            turn,
        )
