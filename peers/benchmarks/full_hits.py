"""T1 and T2: matching all of a long key, and inserting one whose first half is there."""

from __future__ import annotations

import array
import functools
from collections.abc import Iterator

import torch

from peers.benchmarks.contender import PrefixPeer
from peers.benchmarks.keys import BUFFERS, LISTS, TOKENS, drawn
from peers.benchmarks.scenario import Clock, Contest, Limit, Scenario

PAGES = (1, 16, 64)
PIECES = 256


class FullHit(Contest):
    """T1: match everything, slots included."""

    def __init__(
        self, peer: type[PrefixPeer], clock: Clock, scale: float, page_size: int, pieces: int
    ) -> None:
        super().__init__(clock)
        length = int(TOKENS * scale)
        cache = self.cache = peer(page_size, 2 * length)
        tokens = drawn(1, length)
        self.slots = cache.alloc(length)
        done = 0
        for end in range(length // pieces, length + 1, length // pieces):
            cache.insert(cache.key(tokens[:end]), self.slots[:end], done)
            done = end
        assert cache.match(cache.key(tokens)).length == length
        self.key = cache.key(tokens)
        self.facts = {"hit_tokens": length, "nodes": pieces}

    def sample(self) -> float:
        begun = self.now()
        hit = self.cache.match(self.key)
        taken = self.now() - begun
        assert hit.length == len(hit.slots) * self.slots_per_entry() == len(self.slots)
        self.last = hit.slots
        return taken / 1e3

    def slots_per_entry(self) -> int:
        """The slots for each table entry: a whole block for vLLM, one slot for the others."""
        return self.cache.page_size if self.cache.NAME == "vllm" else 1

    def holds(self) -> bool:
        """Tell whether the matched slots are the inserted ones, where a caller chooses the slots."""
        if self.cache.NAME == "vllm":
            return self.cache.nothing_is_lost()
        return torch.equal(self.last.to(torch.int64), self.slots.to(torch.int64))


def bytes_and_clone(clock: Clock, scale: float, pieces: int, listed: bool) -> Contest:
    """Compare the key's bytes, and copy the slots."""
    tokens = drawn(1, int(TOKENS * scale))
    raw, same = tokens.astype("<u4").tobytes(), tokens.astype("<u4").tobytes()
    parts = list(torch.arange(len(tokens)).chunk(pieces))
    integers = tokens.tolist()

    def work() -> object:
        key = array.array("I", integers).tobytes() if listed else same
        assert key == raw
        return torch.cat(parts) if pieces > 1 else parts[0].clone()

    return Limit(clock, work)


class HalfCached(Contest):
    """T2: insert a key whose first half is there, without a match before, and free the duplicates."""

    def __init__(self, peer: type[PrefixPeer], clock: Clock, scale: float, page_size: int) -> None:
        super().__init__(clock)
        length = int(TOKENS * scale)
        self.tokens, self.half = drawn(1, length), length // 2
        self.build = functools.partial(peer, page_size, 4 * length)
        self.facts = {"adopted_tokens": self.half, "freed_tokens": self.half}

    def sample(self) -> float:
        cache, tokens = self.build(), self.tokens
        cache.insert(cache.key(tokens[: self.half]), cache.alloc(self.half), 0)
        slots, key = cache.alloc(len(tokens)), cache.key(tokens)
        begun = self.now()
        there = cache.insert(key, slots, 0)
        taken = self.now() - begun
        assert there == self.half
        assert cache.cached() == len(tokens)
        assert cache.nothing_is_lost()
        return taken / 1e3


def half_of_the_bytes(clock: Clock, scale: float, listed: bool) -> Contest:
    """Compare one half, copy the other half of key and slots, and write the duplicates to a free list."""
    tokens = drawn(1, int(TOKENS * scale))
    integers = tokens.tolist()
    half = len(tokens) // 2
    raw = tokens.astype("<u4").tobytes()
    first, second = raw[: 2 * len(tokens)], raw[2 * len(tokens) :]
    slots, free = torch.arange(len(tokens)), torch.empty(half, dtype=torch.int64)

    def work() -> object:
        key = array.array("I", integers).tobytes() if listed else raw
        assert key.startswith(first)
        free.copy_(slots[:half])
        return bytearray(second), slots[half:].clone()

    return Limit(clock, work)


def scenarios() -> Iterator[Scenario]:
    for name, pieces, keys, target, title in (
        ("T1a", 1, BUFFERS, 150.0, "full hit of 131,072 tokens, one node"),
        ("T1b", PIECES, BUFFERS, 350.0, "full hit of 131,072 tokens, 256 nodes"),
        ("T1c", 1, LISTS, 1500.0, "full hit of a Python list of 131,072 tokens"),
    ):
        listed = keys is LISTS
        for page_size in PAGES:
            yield Scenario(
                id=f"{name}-p{page_size}",
                title=title,
                unit="us",
                statistic="median",
                target=target,
                limit_of="one memcmp and one copy of the slots" + (", array from list" if listed else ""),
                kind="prefix",
                contest=functools.partial(FullHit, page_size=page_size, pieces=pieces),
                limit=functools.partial(bytes_and_clone, pieces=pieces, listed=listed),
                rounds=200,
                burst=10,
                seconds=4.0,
                without=() if listed else ("vllm",),
                keys=keys,
            )
    for keys, target, of in ((BUFFERS, 300.0, ""), (LISTS, 1650.0, "a Python list of ")):
        listed = keys is LISTS
        for page_size in PAGES:
            yield Scenario(
                id=f"T2-{'list-' * listed}p{page_size}",
                title=f"insert of {of}131,072 tokens, the first half cached",
                unit="us",
                statistic="median",
                target=target,
                limit_of="memcmp of one half, three copies of halves" + ", array from list" * listed,
                kind="prefix",
                contest=functools.partial(HalfCached, page_size=page_size),
                limit=functools.partial(half_of_the_bytes, listed=listed),
                rounds=100,
                seconds=4.0,
                without=("vllm",),
                keys=keys,
            )
