"""Applied Compute's traces of agents, which have only the lengths of the turns of conversations.

One conversation per line::

    {"num_turns": 2, "input_prompt_length": 900, "assistant_response_length": [50, 60],
     "tool_call_output_length": [200, 10], "tool_call_latency": [1.5, 0.2],
     "final_assistant_response_length": 300}

The first prompt has ``input_prompt_length`` tokens, and each further one those of the one before, its answer
and the output of a tool, which took some seconds; the last answer calls none. A conversation shares its
prompts with itself alone. When conversations ran beside each other is not in the file: so many run at once
(16, if not told), each of them a turn after the other, and where one has ended, the next begins. Blocks have
512 tokens unless ``--block-tokens`` says otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import msgspec

from pymllm.traces.lines import Rejected, TraceLines
from pymllm.traces.numbering import BlockNumbers
from pymllm.traces.records import ReadOptions, check_delay, check_length, decoded, make_request
from pymllm.workloads.request import Request

BLOCK_TOKENS = 512
"""The default number of tokens per block."""

_BLOCKS_MAX = 1 << 16


class AppliedComputeLine(msgspec.Struct, frozen=True):
    """A line of a trace in this format; other fields are ignored."""

    num_turns: int
    input_prompt_length: int
    assistant_response_length: tuple[int, ...]
    tool_call_output_length: tuple[int, ...]
    tool_call_latency: tuple[float, ...]
    final_assistant_response_length: int


@dataclass(slots=True)
class _Conversation:
    """A running conversation: its turns to come, and the tokens read so far."""

    number: int
    session: int
    turns: Iterator[tuple[int, int, float]]
    after: int | None  # the request that the next turn waits for
    blocks: list[int] = field(default_factory=list)


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file, where parallel conversations take turns."""
    block_tokens = options.block_tokens or BLOCK_TOKENS
    numbers = BlockNumbers()
    coming = enumerate(decoded(lines, AppliedComputeLine))
    running: deque[_Conversation] = deque()
    id = 0

    def begin(after: int | None) -> None:
        for session, (number, line) in coming:
            running.append(_Conversation(number, session, _turns(line), after))
            return

    for _ in range(options.conversations):
        begin(None)
    while running:
        it = running.popleft()
        try:
            turn = next(it.turns, None)
            if turn is None:
                begin(it.after)
                continue
            length, output, delay = turn
            most = _BLOCKS_MAX * block_tokens
            if length > most:
                raise Rejected(f"a prompt of it has {length} tokens, must be in 1..{most}")
            while len(it.blocks) * block_tokens < length:
                it.blocks.append(numbers.fresh())
            wait_for = () if it.after is None else (it.after,)
            request = make_request(
                id,
                0.0,
                length,
                output,
                tuple(it.blocks),
                block_tokens,
                None,
                it.session,
                wait_for,
                delay if wait_for else None,
            )
        except Rejected as error:
            raise lines.error(str(error), it.number) from None
        it.after = id
        id += 1
        yield request
        running.append(it)


def _turns(line: AppliedComputeLine) -> Iterator[tuple[int, int, float]]:
    """Yield the length of each prompt and answer, and the milliseconds since the previous turn."""
    length, delay = check_length("input_prompt_length", line.input_prompt_length), 0.0
    fields = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
    for name in fields:
        count = len(getattr(line, name))
        if count != line.num_turns:
            raise Rejected(f"{name} has {count} values, must have {line.num_turns}, as num_turns says")
    for answer, tool, seconds in zip(*(getattr(line, name) for name in fields), strict=True):
        check_length("assistant_response_length", answer, least=0)
        check_length("tool_call_output_length", tool, least=0)
        yield length, max(1, answer), delay
        length += answer + tool
        delay = check_delay("tool_call_latency", seconds * 1000)
    final = check_length("final_assistant_response_length", line.final_assistant_response_length, least=0)
    yield length, final, delay
