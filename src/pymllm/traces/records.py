"""The common part of all trace formats: bounds of a request's fields, and making requests from lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from pymllm.traces.lines import UNREADABLE, Rejected, TraceLines, excerpt, reason
from pymllm.traces.numbering import BlockNumbers
from pymllm.workloads.request import ARRIVAL_MS_MAX, LENGTH_MAX, OUTPUT_TOKEN_BASE, Request

REQUESTS_MAX: Final = OUTPUT_TOKEN_BASE
NAME_MAX: Final = 200
"""The greatest number of characters in a name."""

TURNS: Final = ("ask", "cumulative", "deltas")
"""Values of ``turns``: a later turn holds its whole prompt or only its new part; "ask" refuses doubtful
turns."""

_SIZES = tuple(1 << power for power in range(13))
"""Common numbers of tokens per block."""

_Line = TypeVar("_Line")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Facts that a file leaves open; ``None`` for the file's own or the format's default value.

    ``block_tokens`` is the tokens per block, ``tokenizer`` makes tokens of a text, ``nested_times`` is what
    times of nested agents count from, and ``conversations`` how many of them run beside each other.
    ``turns`` is one of `TURNS`: what a later turn of a session holds. With ``lenient``, values that
    contradict others are corrected, and counted in ``corrected`` by what was done; ``left_out`` counts what a
    file has that is no request.
    """

    block_tokens: int | None = None
    tokenizer: Callable[[Any], Sequence[int]] | None = None
    nested_times: str = "auto"
    conversations: int = 16
    turns: str = "ask"
    lenient: bool = False
    corrected: Counter[str] = field(default_factory=Counter, compare=False)
    left_out: Counter[str] = field(default_factory=Counter, compare=False)

    def corrects(self, what: str) -> bool:
        """Tell whether a value may be corrected, and count the correction."""
        if self.lenient:
            self.corrected[what] += 1
        return self.lenient


def decoded(
    lines: TraceLines, kind: type[_Line], decoder: msgspec.json.Decoder[_Line] | None = None
) -> Iterator[tuple[int, _Line]]:
    """Yield each line as a record of its format, with its number."""
    decoder = msgspec.json.Decoder(kind) if decoder is None else decoder
    for number, text in lines:
        try:
            yield number, decoder.decode(text)
        except UNREADABLE as error:
            raise lines.error(f"not a request: {reason(error)}; got {excerpt(text)}", number) from error


class Clock:
    """A reader of arrivals as milliseconds, which must not decrease; their field is ``field`` in ``unit``."""

    def __init__(self, options: ReadOptions, field: str, unit: str = "milliseconds") -> None:
        self._options, self._field, self._unit = options, field, unit
        self._factor = 1000.0 if unit == "seconds" else 1.0
        self._latest = 0.0

    def read(self, time: float) -> float:
        """Return an arrival in milliseconds, or raise an error."""
        if not 0 <= time <= ARRIVAL_MS_MAX / self._factor:
            most = f"{ARRIVAL_MS_MAX / self._factor:.0f}"
            raise Rejected(f"{self._field} is {time}, must be in 0..{most} ({self._unit})")
        if time < self._latest:
            if not self._options.corrects(f"{self._field} before that of the request above, taken as that"):
                raise Rejected(
                    f"{self._field} {time:g} lies before {self._latest:g} of the request above it; "
                    f"sort the file by {self._field}, or give --lenient to take it as that"
                )
            time = self._latest
        self._latest = time
        return time * self._factor


def check_length(field: str, length: int, least: int = 1) -> int:
    """Return a number of tokens, or raise an error; an allowed 0 becomes 1."""
    if not least <= length <= LENGTH_MAX:
        raise Rejected(f"{field} is {length}, must be in {least}..{LENGTH_MAX} (tokens)")
    return max(length, 1)


def check_delay(field: str, delay: float) -> float:
    """Return a delay in milliseconds, or raise an error."""
    if not 0 <= delay <= ARRIVAL_MS_MAX:
        raise Rejected(f"{field} is {delay}, must be in 0..{ARRIVAL_MS_MAX:.0f} (milliseconds)")
    return delay


def check_name(field: str, name: str) -> str:
    """Return a name from a trace; raise an error for an empty or too long one."""
    if not 1 <= len(name) <= NAME_MAX:
        raise Rejected(f"{field} has {len(name)} characters, must have 1..{NAME_MAX}")
    return name


def check_cached(tokens: int | None, length: int) -> int | None:
    """Return the number of a prompt's tokens that were cached (if known), or raise an error."""
    if tokens is not None and not 0 <= tokens <= length:
        raise Rejected(f"cached_tokens is {tokens}, must be in 0..{length}, the prompt (tokens)")
    return tokens


def check_block_tokens(field: str, tokens: int) -> int:
    """Return the tokens per block, or raise an error."""
    if not 1 <= tokens <= LENGTH_MAX:
        raise Rejected(f"{field} is {tokens}, must be in 1..{LENGTH_MAX} (tokens per block)")
    return tokens


def number_blocks(
    numbers: BlockNumbers,
    ids: Sequence[int],
    length: int,
    block_tokens: int,
    *,
    names_tail: bool = True,
    field: str = "input_length",
) -> tuple[int, ...]:
    """Return the numbers of a prompt's blocks; raise an error for ids that do not fit its length.

    The last block may be partial. Where a format gives that no id (``names_tail`` is false), or may, it
    becomes a block of its own, which nobody shares.
    """
    if check_blocks(ids, length, block_tokens, names_tail=names_tail, field=field) and not ids:
        return (numbers.fresh(),)
    found = numbers.numbers(ids)
    return found if len(ids) * block_tokens >= length else (*found, numbers.fresh())


def check_blocks(
    ids: Sequence[int],
    length: int,
    block_tokens: int,
    *,
    names_tail: bool = True,
    field: str = "input_length",
) -> bool:
    """Check that ids fit a length, and return whether a partial last block has no id."""
    blocks, has_tail = len(ids), False
    if not (blocks - 1) * block_tokens < length <= blocks * block_tokens:
        has_tail = not names_tail and blocks == length // block_tokens
        if not has_tail:
            raise Rejected(_misfit(field, length, blocks, block_tokens, names_tail))
    if ids and min(ids) < 0:
        raise Rejected(f"hash_ids has {min(ids)}, must be at least 0")
    return has_tail


def _misfit(field: str, length: int, blocks: int, block_tokens: int, names_tail: bool) -> str:
    first = max(blocks - 1, 0) * block_tokens + 1
    last = blocks * block_tokens if names_tail else blocks * block_tokens + block_tokens - 1
    bounds = f"{first}..{last}" if last >= first else "none"
    return (
        f"{field} {length} does not fit {blocks} hash_ids of {block_tokens} tokens "
        f"(possible lengths: {bounds})"
    )


def fit_blocks(
    ids: Sequence[int], length: int | None, block_tokens: int, options: ReadOptions
) -> tuple[Sequence[int], int]:
    """Return the ids and length of a prompt whose block size is unknown, or raise an error.

    Where they do not fit, a lenient reader takes what both have, as dynamo's does; a length that is missing
    is that of the blocks.
    """
    capacity = len(ids) * block_tokens
    if length is None:
        if not options.corrects("input_length missing, taken as that of its blocks"):
            raise Rejected("input_length is missing; give --lenient to take that of its blocks")
        length = capacity
    check_length("input_length", length)
    if not ids or capacity - block_tokens < length <= capacity:
        check_blocks(ids, length, block_tokens)
        return ids, length
    if length > capacity:
        if options.corrects("input_length above that of its blocks, cut to them"):
            return ids, check_length("input_length", capacity)
    elif options.corrects("input_length below that of its blocks, which were cut to it"):
        return ids[: -(-length // block_tokens)], length
    said = _misfit("input_length", length, len(ids), block_tokens, names_tail=True)
    raise Rejected(f"{said}; {_advice(length, len(ids))}")


def _advice(length: int, blocks: int) -> str:
    """Return advice on reading a prompt that does not fit its blocks."""
    sizes = [size for size in _SIZES if (blocks - 1) * size < length <= blocks * size]
    if len(sizes) == 1:
        return f"give --block-tokens {sizes[0]}, which would fit, or --lenient to cut the longer of both"
    return "give the tokens of a block by --block-tokens, or --lenient to cut the longer of both"


def make_request(
    number: int, arrival_ms: float, length: int, output: int, blocks: tuple[int, ...], *rest: Any
) -> Request:
    """Return a request from checked values; ``rest`` is as of `Request`."""
    if number >= REQUESTS_MAX:
        raise Rejected(f"this is request {number + 1:,} of the trace, of at most {REQUESTS_MAX:,}")
    return Request(number, arrival_ms, length, output, blocks, *rest)
