"""Traces of texts (prompts, chats, conversations), tokenized by a function of the caller.

One request per line, with ``text``, ``prompt`` or ``messages``; the rest may be missing::

    {"text": "Once upon a time", "timestamp": 0, "output_length": 20, "session_id": "a", "type": "chat"}
    {"messages": [{"role": "user", "content": "hello"}], "timestamp": 900}
    {"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": [...], "max_tokens": 20}}

Or one conversation per line, each of whose turns is a request that waits for the one before::

    {"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "good day"}, ...]}
    {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]}
    {"turns": ["hello", "and what else?"]}
    {"turns": [{"text": "hello"}, {"text": "and what else?", "delay": 400}]}

The first is ShareGPT's form, the second that of vLLM's benchmark of conversations: messages that end with an
answer. The prompt of a turn is all messages before its answer, whose tokens are the output. ``turns`` have no
answers: a prompt is then what the user has said so far. ShareGPT's files have conversations without a
question, and empty messages: such turns are no requests, and are counted and left out.

The tokenizer is called with a text, or with a list of messages, and gives whole numbers; a ``prompt`` may be
a list of tokens. Blocks of ``--block-tokens`` tokens, 16 if not told, get equal ids where their tokens are
equal. ``timestamp`` and ``delay`` count milliseconds; without a timestamp a request arrives with the one
above it. Nothing of the text is kept.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from pymllm.errors import UsageError
from pymllm.traces.lines import Rejected, TraceLines
from pymllm.traces.numbering import BlockNumbers, Names
from pymllm.traces.records import (
    Clock,
    ReadOptions,
    check_delay,
    check_length,
    check_name,
    decoded,
    make_request,
)
from pymllm.workloads.request import Request

BLOCK_TOKENS = 16
"""The default number of tokens per block."""


class TextLine(msgspec.Struct, frozen=True):
    """A line of a trace in this format; other fields are ignored."""

    text: str | None = None
    prompt: str | list[int] | None = None
    messages: list[Any] | None = None
    conversations: list[Any] | None = None
    turns: list[Any] | None = None
    body: dict[str, Any] | None = None
    timestamp: float | None = None
    output_length: int | None = None
    session_id: str | None = None
    type: str | None = None
    message_mode: str | None = None


SOURCES = ("text", "prompt", "messages", "conversations", "turns", "body")
"""The fields of a line of which one holds its text."""

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
}
"""Roles by their names in ShareGPT's files."""


_UNASKED = "conversations without a message of a user, left out"
_EMPTY = "turns of a conversation without a token, left out"


@dataclass(frozen=True, slots=True)
class _Ask:
    """A prompt to tokenize, with its answer if known as text or as a number of tokens."""

    prompt: Any
    answer: Any = None
    output_length: int | None = None
    delay_ms: float = 0.0


def find_tokenizer(named: str) -> Callable[[Any], Sequence[int]]:
    """Return the function that ``module:function`` names; raise `UsageError` if it is missing."""
    module, colon, name = named.partition(":")
    if not colon or not module or not name:
        raise UsageError(f"no tokenizer {named[:60]!r}: write module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"no tokenizer {named[:60]!r}: {said}") from error
    if not callable(found):
        raise UsageError(f"tokenizer {named[:60]!r} is {type(found).__name__}, must be a function of a text")
    encode: Callable[[Any], Sequence[int]] = found
    return encode


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file."""
    if options.tokenizer is None:
        raise UsageError("lines of text need a tokenizer; give --format text,tokenizer=MODULE:FUNCTION")
    block_tokens = options.block_tokens or BLOCK_TOKENS
    numbers, sessions, clock, arrival_ms = BlockNumbers(), Names(), Clock(options, "timestamp"), 0.0
    id = 0
    for number, line in decoded(lines, TextLine):
        try:
            if line.timestamp is not None:
                arrival_ms = clock.read(line.timestamp)
            kind = None if line.type is None else check_name("type", line.type)
            asked, is_conversation = _asks(line)
            owner: str | int | None = number if is_conversation else None
            if line.session_id is not None:
                owner = check_name("session_id", line.session_id)
            if not asked:
                options.left_out[_UNASKED] += 1
            first = id
            for ask in asked:
                output = _output(ask, options.tokenizer)
                tokens = _tokens(ask.prompt, options.tokenizer)
                if not tokens:
                    if not is_conversation:
                        raise Rejected("the tokenizer gave no token for it, must be at least 1")
                    options.left_out[_EMPTY] += 1
                    continue
                check_length("the number of tokens", len(tokens))
                blocks = _blocks(tokens, block_tokens, numbers)
                session = None if owner is None else sessions.number(owner)
                waits, delay = ((id - 1,), ask.delay_ms) if id > first else ((), None)
                request = make_request(
                    id,
                    arrival_ms,
                    len(tokens),
                    output,
                    blocks,
                    block_tokens,
                    None,
                    session,
                    waits,
                    delay,
                    kind,
                )
                id += 1
                yield request
        except Rejected as error:
            raise lines.error(str(error), number) from None


def _asks(line: TextLine) -> tuple[list[_Ask], bool]:
    """Return the prompts of a line in order, and whether they form a conversation."""
    found = [name for name in SOURCES if getattr(line, name) is not None]
    if len(found) != 1:
        has = f"it has {' and '.join(found)}" if found else "it has none"
        raise Rejected(f"a line must have one of {', '.join(SOURCES)}; {has}")
    if line.message_mode == "delta":
        raise Rejected(
            "message_mode is delta: the answers between its messages are not in the file, so that prompts "
            "are not known"
        )
    if line.body is not None:
        return [_of_body(line.body)], False
    if line.conversations is not None:
        return _turns([_message(item, "conversations") for item in line.conversations]), True
    if line.turns is not None:
        return _of_turns(line.turns), True
    if line.messages is not None:
        messages = [_message(item, "messages") for item in line.messages]
        if not messages or messages[-1]["role"] == "assistant":  # with an answer for every turn
            return _turns(messages), True
    whole = next(it for it in (line.text, line.prompt, line.messages) if it is not None)
    return [_Ask(whole, output_length=line.output_length)], False


def _of_body(body: dict[str, Any]) -> _Ask:
    """Return the prompt in a request body of OpenAI's batch interface."""
    content = [body[name] for name in ("messages", "prompt") if body.get(name) is not None]
    if len(content) != 1 or not isinstance(content[0], (list, str)):
        raise Rejected("body must have one of messages and prompt")
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    if most is not None and not isinstance(most, int):
        raise Rejected(f"body.max_tokens is {str(most)[:60]!r}, must be a whole number of tokens")
    return _Ask(content[0], output_length=most)


def _of_turns(turns: list[Any]) -> list[_Ask]:
    """Return the prompts from the successive inputs of a user, or from messages."""
    if any(isinstance(item, dict) and "role" in item for item in turns):
        return _turns([_message(item, "turns") for item in turns])
    asked: list[_Ask] = []
    said: list[dict[str, Any]] = []
    for item in turns:
        text, delay = (item.get("text"), item.get("delay")) if isinstance(item, dict) else (item, None)
        if not isinstance(text, str):
            raise Rejected(f"turns has {str(item)[:60]!r}, must be a text, or have one as text")
        if not isinstance(delay, (int, float, type(None))):
            raise Rejected(f"delay is {str(delay)[:60]!r}, must be a number of milliseconds")
        said = [*said, {"role": "user", "content": text}]
        asked.append(_Ask(said, delay_ms=check_delay("delay", delay or 0.0)))
    return asked


def _message(item: Any, field: str) -> dict[str, Any]:
    """Return a message in chat completions' form; ShareGPT's fields are ``from`` and ``value``."""
    if isinstance(item, dict):
        if isinstance(item.get("role"), str):
            return item
        if isinstance(item.get("from"), str) and isinstance(item.get("value"), str):
            return {"role": _ROLES.get(item["from"], item["from"]), "content": item["value"]}
    raise Rejected(
        f"{field} has {str(item)[:60]!r}, must be a message with role and content, or from and value"
    )


def _turns(messages: list[dict[str, Any]]) -> list[_Ask]:
    """Return a prompt for each answer: all messages before it."""
    asked: list[_Ask] = []
    answered = 0
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            if any(it["role"] == "user" for it in messages[answered:place]):
                asked.append(_Ask(messages[:place], message.get("content") or [message]))
            answered = place + 1
    if any(it["role"] == "user" for it in messages[answered:]):  # nobody answered
        asked.append(_Ask(messages))
    return asked


def _output(ask: _Ask, tokenizer: Callable[[Any], Sequence[int]]) -> int:
    if ask.answer is not None:
        return check_length(
            "the number of tokens of an answer", len(_encoded(ask.answer, tokenizer)), least=0
        )
    return 1 if ask.output_length is None else check_length("output_length", ask.output_length, least=0)


def _tokens(prompt: Any, tokenizer: Callable[[Any], Sequence[int]]) -> array[int]:
    # A prompt may be given as tokens already.
    is_tokens = isinstance(prompt, list) and bool(prompt) and all(isinstance(it, int) for it in prompt)
    return _encoded(prompt, list if is_tokens else tokenizer)


def _encoded(content: Any, tokenizer: Callable[[Any], Sequence[int]]) -> array[int]:
    try:
        return array("q", tokenizer(content))
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise Rejected(f"the tokenizer gave no whole numbers for it: {said}") from error


def _blocks(tokens: array[int], block_tokens: int, numbers: BlockNumbers) -> tuple[int, ...]:
    pieces = (tokens[start : start + block_tokens] for start in range(0, len(tokens), block_tokens))
    return tuple(numbers.number_of(blake2b(piece.tobytes(), digest_size=16).digest()) for piece in pieces)
