"""The common part of all formats: the bounds of a request's fields, and how a line becomes a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from pymllm.traces.lines import UNREADABLE, Rejected, TraceLines, excerpt, reason
from pymllm.traces.numbering import BlockNumbers
from pymllm.workloads.request import ARRIVAL_MS_MAX, LENGTH_MAX, OUTPUT_TOKEN_BASE, Request

REQUESTS_MAX: Final = OUTPUT_TOKEN_BASE
NAME_MAX: Final = 200
"""Most characters of a name in a trace."""

TURNS: Final = ("ask", "cumulative", "deltas")
"""What a later turn of a session holds: its whole prompt, or what is new; doubtful ones are refused."""

_Line = TypeVar("_Line")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The facts that a file leaves open; ``None`` if the file gives the fact, or for the format's own value.

    ``block_tokens`` is the tokens per block, ``tokenizer`` makes tokens of a text, ``nested_times`` is what
    times of nested agents count from, and ``conversations`` how many of them run beside each other.
    ``turns`` is one of `TURNS`: what a later turn of a session holds.
    """

    block_tokens: int | None = None
    tokenizer: Callable[[Any], Sequence[int]] | None = None
    nested_times: str = "auto"
    conversations: int = 16
    turns: str = "ask"


def decoded(lines: TraceLines, kind: type[_Line]) -> Iterator[tuple[int, _Line]]:
    """Yield each line as a record of its format, with its number."""
    decoder = msgspec.json.Decoder(kind)
    for number, text in lines:
        try:
            yield number, decoder.decode(text)
        except UNREADABLE as error:
            raise lines.error(f"not a request: {reason(error)}; got {excerpt(text)}", number) from error


class Clock:
    """Arrivals in milliseconds, which never go back; a file calls them ``field`` and counts in ``unit``."""

    def __init__(self, field: str, unit: str = "milliseconds") -> None:
        self._field, self._unit = field, unit
        self._factor = 1000.0 if unit == "seconds" else 1.0
        self._latest = 0.0

    def read(self, time: float) -> float:
        """Return an arrival in milliseconds, or refuse it."""
        if not 0 <= time <= ARRIVAL_MS_MAX / self._factor:
            most = f"{ARRIVAL_MS_MAX / self._factor:.0f}"
            raise Rejected(f"{self._field} is {time}, must be in 0..{most} ({self._unit})")
        if time < self._latest:
            raise Rejected(
                f"{self._field} {time:g} lies before {self._latest:g} of the request above it; "
                f"sort the file by {self._field}"
            )
        self._latest = time
        return time * self._factor


def check_length(field: str, length: int, least: int = 1) -> int:
    """Return a number of tokens, or refuse it; where 0 is allowed it counts as 1."""
    if not least <= length <= LENGTH_MAX:
        raise Rejected(f"{field} is {length}, must be in {least}..{LENGTH_MAX} (tokens)")
    return max(length, 1)


def check_delay(field: str, delay: float) -> float:
    """Return a delay in milliseconds, or refuse it."""
    if not 0 <= delay <= ARRIVAL_MS_MAX:
        raise Rejected(f"{field} is {delay}, must be in 0..{ARRIVAL_MS_MAX:.0f} (milliseconds)")
    return delay


def check_name(field: str, name: str) -> str:
    """Return a name from a trace, or refuse a name that is empty or too long."""
    if not 1 <= len(name) <= NAME_MAX:
        raise Rejected(f"{field} has {len(name)} characters, must have 1..{NAME_MAX}")
    return name


def check_block_tokens(field: str, tokens: int) -> int:
    """Return the tokens per block, or refuse them."""
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
    """Return the numbers of a prompt's blocks, or refuse ids that do not fit its length.

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
    """Refuse ids that do not fit a length; tell whether the last block, which is partial, has none."""
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


def make_request(
    number: int, arrival_ms: float, length: int, output: int, blocks: tuple[int, ...], *rest: Any
) -> Request:
    """Make a request of checked values; ``rest`` is as of `Request`."""
    if number >= REQUESTS_MAX:
        raise Rejected(f"this is request {number + 1:,} of the trace, of at most {REQUESTS_MAX:,}")
    return Request(number, arrival_ms, length, output, blocks, *rest)
