"""Lines of text, of which a tokenizer of the caller's makes tokens.

One request per line, with ``text`` or ``messages``; the rest may be missing::

    {"text": "Once upon a time", "timestamp": 0, "output_length": 20, "session_id": "a", "type": "chat"}
    {"messages": [{"role": "user", "content": "hello"}], "timestamp": 900}

The tokenizer is called with the text, or with the list of messages, and gives whole numbers. Blocks of
``--block-tokens`` tokens, 16 if not told, get equal ids where their tokens are equal. ``timestamp`` counts
milliseconds; without it a request arrives with the one above it. Nothing of the text is kept.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Generator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from pymllm.errors import UsageError
from pymllm.traces.lines import Rejected, TraceLines
from pymllm.traces.numbering import BlockNumbers, Names
from pymllm.traces.records import (
    Clock,
    ReadOptions,
    check_length,
    check_name,
    decoded,
    make_request,
)
from pymllm.workloads.request import Request

BLOCK_TOKENS = 16
"""Tokens per block where nothing else is said."""


class TextLine(msgspec.Struct, frozen=True):
    """A line; more fields are ignored."""

    text: str | None = None
    messages: list[Any] | None = None
    timestamp: float | None = None
    output_length: int = 1
    session_id: str | None = None
    type: str | None = None


def find_tokenizer(named: str) -> Callable[[Any], Sequence[int]]:
    """Return the function that ``module:function`` names; `UsageError` where there is none."""
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
    for id, (number, line) in enumerate(decoded(lines, TextLine)):
        try:
            if line.timestamp is not None:
                arrival_ms = clock.read(line.timestamp)
            output = check_length("output_length", line.output_length, least=0)
            session = None
            if line.session_id is not None:
                session = sessions.number(check_name("session_id", line.session_id))
            kind = None if line.type is None else check_name("type", line.type)
            tokens = _tokens(line, options.tokenizer)
            blocks = _blocks(tokens, block_tokens, numbers)
            request = make_request(
                id, arrival_ms, len(tokens), output, blocks, block_tokens, None, session, (), None, kind
            )
        except Rejected as error:
            raise lines.error(str(error), number) from None
        yield request


def _tokens(line: TextLine, tokenizer: Callable[[Any], Sequence[int]]) -> array[int]:
    if (line.text is None) == (line.messages is None):
        raise Rejected("a line must have one of text and messages")
    try:
        tokens = array("q", tokenizer(line.messages if line.text is None else line.text))
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise Rejected(f"the tokenizer gave no whole numbers for it: {said}") from error
    if not tokens:
        raise Rejected("the tokenizer gave no token for it, must be at least 1")
    check_length("the number of tokens", len(tokens))
    return tokens


def _blocks(tokens: array[int], block_tokens: int, numbers: BlockNumbers) -> tuple[int, ...]:
    pieces = (tokens[start : start + block_tokens] for start in range(0, len(tokens), block_tokens))
    return tuple(numbers.number_of(blake2b(piece.tobytes(), digest_size=16).digest()) for piece in pieces)
