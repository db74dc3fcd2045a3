"""Token ids for scenarios, in the containers that servers use."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

Tokens = np.ndarray[Any, np.dtype[np.int64]]

TOKENS = 131_072
VOCABULARY = 128_000


def as_buffer(tokens: Tokens) -> array[int]:
    """Put tokens into an array of 64-bit integers, as sglang's requests have it."""
    buffer = array("q")
    buffer.frombytes(tokens.tobytes())
    return buffer


FORMS: dict[str, Callable[[Tokens], Any]] = {
    "int64": np.copy,
    "array('q')": as_buffer,
    "uint32": lambda tokens: tokens.astype(np.uint32),
    "list": np.ndarray.tolist,
}
"""What keys are made of, by name; ``uint32`` is as our trees compare them."""
BUFFERS = ("int64", "array('q')", "uint32")
"""Where a key is timed, ours plays with each of these, and the slowest counts; peers with their own."""
LISTS = ("list",)
"""Ours and every peer begin with a Python list of the prompt, and convert it in each call that is timed."""


def drawn(seed: int, length: int = TOKENS) -> Tokens:
    """Draw tokens at random."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, length, dtype=np.int64)


def distinct_rows(rows: int, length: int) -> Tokens:
    """Make keys that differ in their first token."""
    return np.arange(rows * length, dtype=np.int64).reshape(rows, length)
