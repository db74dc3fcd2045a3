"""A message as a line of JSON, and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from pymllm.history.codec import Record, encode
from pymllm.text_file import TOO_DEEP, demand_strict, has_long_number

_DEPTH = 8
"""More than any message has of objects and lists inside each other."""
_CONTAINERS = (dict, list)


def make_line(message: dict[str, Any] | Record) -> bytes:
    """Return a message as a line of UTF-8 with its end.

    Notes
    -----
    Equal values are spelled alike, and the fields stand in the order of ``message``. msgspec takes a quarter
    of the time of `json` (two lists of 64 numbers: 2 us, not 9).
    """
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair is no UTF-8, but an escape
        return json.dumps(encode(message), separators=(",", ":")).encode() + b"\n"


def read_line(line: bytes) -> Any:
    """Return what a line of JSON holds; `ValueError` says why it is none."""
    try:
        plain = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shown = repr(bytes(line[:60]))[1:]
        raise ValueError(f"{shown} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if line.count(b":") != _count_fields(plain) or has_long_number(line):
        demand_strict(line.decode(), plain)
    return plain


def _count_fields(plain: Any) -> int:
    """Count the fields of a message and of what messages have inside; of anything deeper none.

    Fewer than there are colons, and the line is looked at more closely: a name stands there twice, or a colon
    in a string, or something is too deep. To ask that takes less than a look at every value.
    """
    count = 0
    level = [plain]
    for _ in range(_DEPTH):
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                count += len(item)
                below += [value for value in item.values() if type(value) in _CONTAINERS]
            elif type(item) is list and item and type(item[0]) in _CONTAINERS:
                below += item
        if not below:
            return count
        level = below
    return -1
