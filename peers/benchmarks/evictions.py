"""T4: evicting one leaf of many, and then everything."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch

from peers.benchmarks.contender import EvictingPeer
from peers.benchmarks.keys import distinct_rows
from peers.benchmarks.scenario import Clock, Contest, Limit, Scenario

LEAF = 16


def plant(peer: type[EvictingPeer], leaves: int) -> EvictingPeer:
    """Build a tree of leaves of 16 distinct tokens below the root, none of them held."""
    cache = peer(1, leaves * LEAF)
    for row in distinct_rows(leaves, LEAF):
        cache.insert(cache.key(row), cache.alloc(LEAF), 0)
    assert cache.available() == 0
    return cache


class EvictOne(Contest):
    """T4: evict one leaf, again and again."""

    def __init__(self, peer: type[EvictingPeer], clock: Clock, scale: float, leaves: int) -> None:
        super().__init__(clock)
        self.cache = plant(peer, max(LEAF, int(leaves * scale)))
        self.facts = {"leaves": leaves * scale, "evicted_tokens": 0}

    def sample(self) -> float:
        evict = self.cache.evict
        begun = self.now()
        gone = evict(1)
        taken = self.now() - begun
        assert gone == LEAF
        self.facts["evicted_tokens"] += gone
        return taken / 1e3

    def holds(self) -> bool:
        return self.cache.nothing_is_lost()


class EvictAll(Contest):
    """T4: evict all leaves in one call."""

    def __init__(self, peer: type[EvictingPeer], clock: Clock, scale: float, leaves: int) -> None:
        super().__init__(clock)
        self.build = functools.partial(plant, peer, int(leaves * scale))
        self.facts = {"evicted_tokens": int(leaves * scale) * LEAF}

    def sample(self) -> float:
        cache = self.build()
        wanted = int(self.facts["evicted_tokens"])
        begun = self.now()
        gone = cache.evict_much(wanted)
        taken = self.now() - begun
        assert gone == cache.available() == wanted
        assert cache.cached() == 0
        return taken / 1e6


def one_free(clock: Clock, scale: float) -> Contest:
    """Remove the first entry of a heap, and write 16 slots to a free list."""
    free, slots = np.zeros(1 << 20, dtype=np.int64), np.arange(LEAF)
    children = {number: number for number in range(100_000)}
    entries = iter(range(100_000))

    def work() -> None:
        del children[next(entries)]
        free[:LEAF] = slots

    return Limit(clock, work)


def all_free(clock: Clock, scale: float, leaves: int) -> Contest:
    """Put the slots of all leaves into one tensor, and forget the leaves."""
    count = int(leaves * scale)
    values = list(torch.arange(count * LEAF).chunk(count))

    def work() -> object:
        children = dict.fromkeys(range(count))
        for number in range(count):
            del children[number]
        return torch.cat(values)

    return Limit(clock, work, 1e6)


def scenarios() -> Iterator[Scenario]:
    for leaves, target in ((2_000, 10.0), (20_000, 10.0), (200_000, 12.0)):
        yield Scenario(
            id=f"T4-{leaves // 1000}k",
            title=f"evict one of {leaves:,} leaves",
            unit="us",
            statistic="median",
            target=target,
            limit_of="one deletion from a dict, 16 slots into a free list",
            kind="prefix",
            contest=functools.partial(EvictOne, leaves=leaves),
            limit=one_free,
            rounds=1000,
            burst=25,
            seconds=3.0,
            without=("vllm",),
        )
    for leaves, target in ((20_000, 60.0), (200_000, 700.0)):
        yield Scenario(
            id=f"T4-all-{leaves // 1000}k",
            title=f"evict all of {leaves:,} leaves",
            unit="ms",
            statistic="median",
            target=target,
            limit_of="as many deletions from a dict, one cat of the slots",
            kind="prefix",
            contest=functools.partial(EvictAll, leaves=leaves),
            limit=functools.partial(all_free, leaves=leaves),
            rounds=7,
            seconds=6.0,
            without=("vllm",),
        )
