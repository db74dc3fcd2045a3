"""Token ids for scenarios."""

from __future__ import annotations

import numpy as np

from benchmarks.peers.contender import Tokens

TOKENS = 131_072
VOCABULARY = 128_000


def drawn(seed: int, length: int = TOKENS) -> Tokens:
    """Draw tokens at random."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, length, dtype=np.int64)


def distinct_rows(rows: int, length: int) -> Tokens:
    """Make keys of which no two begin alike."""
    return np.arange(rows * length, dtype=np.int64).reshape(rows, length)
