"""Values that stand for KV content: what a cold run would write at each token (law E1).

A fingerprint depends on the namespace, every token up to and including its own, the layer, and the part of
the KV it stands for: a row that aliases, lags or belongs to somebody else reads wrong.
"""

from __future__ import annotations

import enum
import functools
import hashlib

import numpy as np

# Constants of the splitmix64 generator (Steele, Lea, Flood 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_TOKEN = np.uint64(0xD6E8FEB86659FD93)
_PARTS_PER_LAYER = 4


class KVPart(enum.IntEnum):
    """Which of a layer's buffers a fingerprint is for."""

    FULL_K = 0
    FULL_V = 1
    SWA_K = 2
    SWA_V = 3

    # That of an enumeration is a call in Python: naming buffers by their parts took a tenth of a small write.
    __hash__ = int.__hash__


def prefix_fingerprints(tokens: np.ndarray, namespace: str | int | None = None) -> np.ndarray:
    """Fingerprint every prefix of a sequence of tokens below ``2**32``: uint64, shape ``(n,)`` (law E1).

    Entry i depends on the namespace (``1`` and ``"1"`` differ) and tokens ``0 .. i``, with their order.
    """
    positions = np.arange(len(tokens), dtype=np.uint64)
    mixed = scatter(tokens.astype(np.uint64) * _TOKEN + positions * _STEP)
    sums: np.ndarray = np.cumsum(mixed, dtype=np.uint64) + _seed(namespace)
    return sums


def token_fingerprints(tokens: np.ndarray, namespace: str | int | None = None) -> np.ndarray:
    """Fingerprint each token below ``2**32`` with the namespace, wherever it stands: uint64, ``(n,)``."""
    return scatter(tokens.astype(np.uint64) * _TOKEN + _seed(namespace))


@functools.cache
def _seed(namespace: str | int | None) -> np.uint64:
    digest = hashlib.sha256(f"{type(namespace).__name__}:{namespace}".encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def kv_fingerprints(prefixes: np.ndarray, places: tuple[tuple[int, KVPart], ...]) -> np.ndarray:
    """Turn prefix fingerprints ``(n,)`` into what places, layer and part, hold: int64, ``(places, n)``."""
    return scatter(prefixes ^ _salts(places)).view(np.int64)


@functools.cache
def _salts(places: tuple[tuple[int, KVPart], ...]) -> np.ndarray:
    numbers = [layer * _PARTS_PER_LAYER + part + 1 for layer, part in places]
    return np.array(numbers, dtype=np.uint64)[:, None] * _STEP


def scatter(values: np.ndarray) -> np.ndarray:
    """Mix uint64 values of any shape so that each input bit moves every output bit; a bijection."""
    mixed: np.ndarray = values >> _SHIFT_1
    mixed ^= values
    mixed *= _MIX_1
    mixed ^= mixed >> _SHIFT_2
    mixed *= _MIX_2
    mixed ^= mixed >> _SHIFT_3
    return mixed
