"""Traces in the format of kvcache-simulator.

One request per line::

    {"block_size": 64, "hash_ids": [2001, 2002], "input_length": 128}

``hash_ids`` are whole numbers or texts, "7" being 7; ``block_size`` is the same on every line, or given by
``--block-tokens``. The simulator ignores ``timestamp``, which is read here as milliseconds, and
``output_length``; without them every request arrives at once and produces one token. ``block_tokens``, the
tokens of each block, must be what the length says: a request has blocks of one size here.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec

from pymllm.traces.lines import Rejected, TraceLines
from pymllm.traces.numbering import BlockNumbers, Names
from pymllm.traces.records import (
    Clock,
    ReadOptions,
    check_block_tokens,
    check_length,
    check_name,
    decoded,
    make_request,
    number_blocks,
)
from pymllm.workloads.request import Request


class KvsimLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A line of a trace in this format; other fields are ignored."""

    hash_ids: tuple[int | str, ...]
    input_length: int
    block_size: int | None = None
    timestamp: float | None = None
    output_length: int | None = None
    block_tokens: tuple[int, ...] | None = None


def read(lines: TraceLines, options: ReadOptions) -> Generator[Request]:
    """Yield the requests of a file."""
    numbers, texts, clock = BlockNumbers(), Names(), Clock(options, "timestamp")
    block_tokens, arrival_ms = options.block_tokens, 0.0
    for id, (number, line) in enumerate(decoded(lines, KvsimLine)):
        try:
            block_tokens = _block_tokens(line.block_size, block_tokens, options.block_tokens)
            if line.timestamp is not None:
                arrival_ms = clock.read(line.timestamp)
            length = check_length("input_length", line.input_length)
            output = 1 if line.output_length is None else check_length("output_length", line.output_length, 0)
            ids = _as_numbers(line.hash_ids, texts)
            blocks = number_blocks(numbers, ids, length, block_tokens, names_tail=False)
            if line.block_tokens is not None:
                _check_weights(line.block_tokens, length, block_tokens, len(ids))
            request = make_request(id, arrival_ms, length, output, blocks, block_tokens)
        except Rejected as error:
            raise lines.error(str(error), number) from None
        yield request


def write(request: Request) -> KvsimLine:
    """Return the line of a request, without namespace, session, kind and dependencies."""
    return KvsimLine(
        request.block_ids,
        request.prompt_length,
        request.block_tokens,
        request.arrival_ms,
        request.output_length,
    )


def _block_tokens(declared: int | None, known: int | None, given: int | None) -> int:
    """Return the tokens per block, which must be equal on all lines."""
    if declared is None:
        if known is None:
            raise Rejected("block_size is missing; give --block-tokens")
        return known
    check_block_tokens("block_size", declared)
    if known is not None and declared != known:
        whose = "of --block-tokens" if given == known else "of the lines above it"
        raise Rejected(f"block_size is {declared}, must be the {known} {whose}")
    return declared


_FAR = 1 << 62
"""The first id that stands for a text."""


def _as_numbers(ids: Sequence[int | str], texts: Names) -> Sequence[int]:
    """Return ids as non-negative integers, where texts get integers far from all others."""
    if {*map(type, ids)} <= {int} and (not ids or 0 <= min(ids) <= max(ids) < _FAR):  # type: ignore[operator]
        return ids  # type: ignore[return-value]
    return [_as_number(str(id), texts) for id in ids]


def _as_number(text: str, texts: Names) -> int:
    if text.isascii() and text.isdecimal() and len(text) < len(str(_FAR)) and str(int(text)) == text:
        return int(text)
    return _FAR + texts.number(check_name("hash_ids", text))


def _check_weights(weights: Sequence[int], length: int, block_tokens: int, blocks: int) -> None:
    """Raise an error if the tokens of blocks do not follow from the length and the block size."""
    wanted = [min(block_tokens, length - place * block_tokens) for place in range(blocks)]
    if list(weights) == wanted:
        return
    if len(weights) != blocks:
        raise Rejected(
            f"block_tokens has {len(weights)} numbers, must have {blocks}, one for each of hash_ids"
        )
    place = next(place for place, pair in enumerate(zip(weights, wanted, strict=True)) if pair[0] != pair[1])
    raise Rejected(
        f"block_tokens has {weights[place]} at place {place}, must be {wanted[place]}: blocks have "
        f"{block_tokens} tokens, but for the end of the prompt"
    )
