"""A message as a line of JSON, and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["make_line", "read_line"]


def make_line(message: dict[str, Any]) -> bytes:
    """Return a message as a line of UTF-8 with its end.

    Notes
    -----
    Equal values are spelled alike, and the fields stand in the order of ``message``. msgspec takes a quarter
    of the time of `json` (two lists of 64 numbers: 2 us, not 9).
    """
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair is no UTF-8, but an escape
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def read_line(line: bytes) -> Any:
    """Return what a line of JSON holds; `ValueError` says why it is none."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shown = repr(bytes(line[:60]))[1:]
        raise ValueError(f"{shown} is not JSON: {error}") from None
