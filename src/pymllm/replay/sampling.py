"""Curves from samples, for very long traces: a share of the blocks, in proportionally smaller caches.

A block is drawn by a hash of itself and of all blocks before it. So it is in the sample wherever it occurs,
or nowhere. How often it is used again, and how much of the sample is used in between, is as in the whole
trace: a cache with a hundredth of the room hits a hundredth of the blocks as often. Source: Waldspurger et
al., Efficient MRC Construction with SHARDS, FAST 2015, also for the adjustment: a few blocks are used so
often that it matters whether they were drawn. They are used again at once, so the uses that the sample has
too few are added to the hits of every cache, and those that it has too many are taken from them.

How far off an estimate may be is told by parts of the sample, with caches that are smaller still: 1.96 times
the standard error of their mean, and how far that mean lies beside the estimate.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pymllm.replay.curve import LruCurve
from pymllm.traces.forest import PrefixForest
from pymllm.workloads.request import Request

PARTS: Final = 8
"""The number of parts into which a sample is divided to estimate its error."""

_RANGE: Final = 1 << 64
_ID_BYTES: Final = 8
_CONFIDENCE: Final = 1.96

_Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SampledPoint:
    """The counts of a serial replay at one capacity, estimated from a sample.

    Requests and prompt tokens are exact; the hit rate lies between ``low`` and ``high``, most likely.
    """

    capacity: int
    requests: int
    skipped: int
    prompt_tokens: int
    hit_tokens: int
    token_hit_rate: float
    low: float
    high: float


class SampledCurve:
    """The estimated hits of caches of several capacities, from a share of the blocks.

    ``rate``: that share, above 0 and at most 1. A capacity must leave a block of room to each of the `PARTS`.
    """

    def __init__(
        self, capacities: Sequence[int], page_size: int, block_tokens: int, *, rate: float, seed: int = 0
    ) -> None:
        if not 0 < rate <= 1:
            raise ValueError(f"rate must be above 0 and at most 1, got {rate}")
        least = least_capacity(rate, page_size, block_tokens)
        if min(capacities) < least:
            raise ValueError(
                f"capacity {min(capacities)} is too small for a sample of {rate}: at least {least}"
            )
        self._rate = rate
        self._block_tokens = block_tokens
        self._seed = seed
        self._whole = LruCurve(
            capacities, page_size, block_tokens, unlimited=False, id_bytes=_ID_BYTES, rate=rate
        )
        self._parts = [
            LruCurve(
                capacities, page_size, block_tokens, unlimited=False, id_bytes=_ID_BYTES, rate=rate / PARTS
            )
            for _ in range(PARTS)
        ]
        self._halves = [capacity // 2 for capacity in self._whole.capacities]
        self._requests = [0] * (len(self._halves) + 1)
        self._tokens = [0] * (len(self._halves) + 1)

    def add(self, request: Request) -> None:
        """Have every cache read the sampled blocks of a request."""
        length, block_tokens = request.prompt_length, self._block_tokens
        left_out = bisect_left(self._halves, length)
        self._requests[left_out] += 1
        self._tokens[left_out] += length
        hashes = hash_places(request, self._seed)
        drawn = hashes <= np.uint64(min(_RANGE - 1, int(self._rate * _RANGE)))
        if not drawn.any():
            return
        _read(self._whole, hashes, drawn, length, block_tokens, request.namespace)
        parts = _mix(hashes) % np.uint64(PARTS)
        for part in set(parts[drawn].tolist()):
            _read(self._parts[part], hashes, drawn & (parts == part), length, block_tokens, request.namespace)

    def points(self) -> list[SampledPoint]:
        """Return the estimates at each capacity, in order."""
        whole = self._rates(self._whole, self._rate)
        parts = [self._rates(part, self._rate / PARTS) for part in self._parts]
        found = []
        for place, capacity in enumerate(self._whole.capacities):
            rates = [part[place] for part in parts]
            error = _CONFIDENCE * stdev(rates) / sqrt(PARTS)
            # The parts' caches are small, so that their mean may be off by more than the whole sample is.
            error += abs(fmean(rates) - whole[place])
            rate = min(1.0, max(0.0, whole[place]))
            tokens = sum(self._tokens[: place + 1])
            found.append(
                SampledPoint(
                    capacity=capacity,
                    requests=sum(self._requests[: place + 1]),
                    skipped=sum(self._requests[place + 1 :]),
                    prompt_tokens=tokens,
                    hit_tokens=round(rate * tokens),
                    token_hit_rate=rate,
                    low=max(0.0, whole[place] - error),
                    high=min(1.0, whole[place] + error),
                )
            )
        return found

    def _rates(self, curve: LruCurve, rate: float) -> list[float]:
        """Return the adjusted hit rates of one part of the sample."""
        rates = []
        for place, point in enumerate(curve.points()):
            expected = rate * sum(self._tokens[: place + 1])
            hits = point.hit_tokens + expected - point.prompt_tokens
            rates.append(hits / expected if expected else 0.0)
        return rates


def least_capacity(rate: float, page_size: int, block_tokens: int) -> int:
    """Return the least capacity at which each part of a sample has room for a block."""
    return -int(-max(page_size, block_tokens) * PARTS // rate)


def _read(
    curve: LruCurve, hashes: _Hashes, drawn: Any, length: int, block_tokens: int, namespace: str | int | None
) -> None:
    places = np.flatnonzero(drawn)
    tokens = places.size * block_tokens
    if places[-1] == hashes.size - 1:
        tokens -= hashes.size * block_tokens - length
    curve.read(hashes[places].tobytes(), tokens, length, namespace)


# -- how large a trace is ------------------------------------------------------------------------------------

_MOST_PLACES: Final = 1 << 20


class TraceExtent:
    """The size of a trace, from which capacities are chosen.

    ``requests``, ``longest_prompt``: what their names say; ``block_tokens``: those of the first request.
    Different prefixes are counted by a forest. Of a trace that is to be sampled they are hashed instead and
    counted in bounded memory, which takes seven times as long: 2.8 s of 50,000 requests of 24 blocks, not
    0.4 s.
    """

    def __init__(self, *, is_sampled: bool = False) -> None:
        self.requests = 0
        self.longest_prompt = 0
        self.block_tokens = 1
        self._forest = None if is_sampled else PrefixForest()
        self._limit = _RANGE - 1
        self._places: set[int] = set()

    def add(self, request: Request) -> None:
        """Count a request."""
        if not self.requests:
            self.block_tokens = request.block_tokens
        self.requests += 1
        self.longest_prompt = max(self.longest_prompt, request.prompt_length)
        if self._forest is not None:
            self._forest.add(request)
            return
        hashes = hash_places(request)
        self._places.update(hashes[hashes <= np.uint64(self._limit)].tolist())
        while len(self._places) > _MOST_PLACES:  # from now on half as many are looked at
            self._limit //= 2
            self._places = {place for place in self._places if place <= self._limit}

    @property
    def footprint(self) -> int:
        """The tokens of all different prefixes, in whole blocks; for a large sample an estimate."""
        if self._forest is not None:
            return len(self._forest) * self.block_tokens
        return round(len(self._places) * (_RANGE / (self._limit + 1))) * self.block_tokens

    def choose_capacities(self, points: int, page_size: int) -> list[int]:
        """Choose capacities by equal factors, from one that reads every request to one without evictions."""
        low = max(2 * self.longest_prompt + 2 * page_size, page_size)
        high = max(low, self.footprint + 2 * self.longest_prompt)
        steps = max(1, points - 1)
        chosen = (int(low * (high / low) ** (step / steps)) for step in range(points))
        return list(dict.fromkeys(capacity // page_size * page_size for capacity in chosen))


# -- hashes --------------------------------------------------------------------------------------------------


def hash_places(request: Request, seed: int = 0) -> _Hashes:
    """Hash each block with all blocks before it and the namespace; hashes are equal on all machines."""
    ids = np.asarray(request.block_ids, dtype=np.uint64)
    with np.errstate(over="ignore"):
        terms = _mix(ids + np.uint64(seed)) * _weights(1 << (max(1, ids.size) - 1).bit_length())[: ids.size]
        return _mix(np.cumsum(terms, dtype=np.uint64) + np.uint64(_of_namespace(request.namespace)))


@lru_cache(maxsize=64)
def _weights(count: int) -> _Hashes:
    """Return odd factors, one for each block position in a prompt."""
    return _mix(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


@lru_cache(maxsize=4096)
def _of_namespace(namespace: str | int | None) -> int:
    digest = hashlib.blake2b(f"{type(namespace).__name__} {namespace}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _mix(values: _Hashes) -> _Hashes:
    """Mix numbers over all 64 bits (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        mixed = values + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
