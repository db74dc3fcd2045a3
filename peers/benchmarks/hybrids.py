"""T6: prefix caches with recurrent states, many short paths or one long chain."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from peers.benchmarks.contender import HybridPeer
from peers.benchmarks.keys import BUFFERS, LISTS, distinct_rows, drawn
from peers.benchmarks.scenario import Clock, Contest, Limit, Scenario

PATHS, PATH = 10_000, 64
CHAIN, LINK, LAST = 1_000, 8, 50
UNCHECKED = (
    "ours looks whether each integer is a token, which takes a tenth of a short match; theirs does not"
)

UNCOPIED = "mllm files the very list that it is passed, without a look at its tokens, and ours a copy"
AS_IT_GOES = "mllm evicts as it goes, and ours first makes all that can fail, so that nothing is lost then"


class Paths(Contest):
    """T6a: many paths of 64 tokens, each with a state."""

    def __init__(self, peer: type[HybridPeer], clock: Clock, scale: float, act: str) -> None:
        super().__init__(clock)
        paths = int(PATHS * scale)
        self.cache = peer(paths * PATH, paths)
        self.rows = list(distinct_rows(paths, PATH))
        self.act = act
        self.next = 0
        if act != "insert":
            for row in self.rows:
                cache = self.cache
                cache.insert(cache.key(row), cache.alloc(PATH), cache.alloc_state(), 0)
        self.facts = {"paths": paths}

    def sample(self) -> float:
        return getattr(self, f"sample_{self.act}")() / 1e3

    def sample_insert(self) -> int:
        cache = self.cache
        if self.next == len(self.rows):
            cache.evict(len(self.rows) * PATH, 0)
        row = self.rows[self.next % len(self.rows)]
        self.next += 1
        key, slots = cache.key(row), cache.alloc(PATH)
        begun = self.now()
        there = cache.insert(key, slots, cache.alloc_state(), 0)
        taken = self.now() - begun
        assert there == 0
        return taken

    def sample_match(self) -> int:
        key = self.cache.key(self.rows[self.next * 7919 % len(self.rows)])
        self.next += 1
        begun = self.now()
        hit = self.cache.match(key)
        taken = self.now() - begun
        assert hit.length == PATH == len(hit.slots)
        return taken

    def sample_state(self) -> int:
        return self._evict(0, 1)

    def sample_leaf(self) -> int:
        return self._evict(1, 0)

    def _evict(self, tokens: int, states: int) -> int:
        begun = self.now()
        gone = self.cache.evict(tokens, states)
        taken = self.now() - begun
        assert gone[1] == 1
        assert gone[0] == PATH or not tokens
        return taken

    def holds(self) -> bool:
        return self.cache.nothing_is_lost()


class Chain(Contest):
    """T6b: one chain of 1,000 nodes of 8 tokens, a state at each."""

    def __init__(self, peer: type[HybridPeer], clock: Clock, scale: float, act: str) -> None:
        super().__init__(clock)
        self.links = int(CHAIN * scale)
        self.build = functools.partial(peer, 2 * self.links * LINK, self.links)
        self.tokens = drawn(1, self.links * LINK)
        self.act = act
        self.cache: HybridPeer = self.build()
        self.slots = torch.empty(0)
        self.done = 0
        self.begin(self.links - LAST if act == "insert" else self.links)
        self.facts = {"nodes": self.links}

    def begin(self, links: int) -> None:
        """Insert prefixes that grow by a link, each with the slots of all earlier links."""
        self.cache = self.build()
        self.slots = self.cache.alloc(self.links * LINK)
        self.done = 0
        for _ in range(links):
            self.lengthen()

    def lengthen(self) -> int:
        cache, end = self.cache, (self.done + 1) * LINK
        key, state, slots = cache.key(self.tokens[:end]), cache.alloc_state(), self.slots[:end]
        begun = self.now()
        there = cache.insert(key, slots, state, self.done * LINK)
        taken = self.now() - begun
        assert there == self.done * LINK
        self.done += 1
        return taken

    def sample(self) -> float:
        if self.act == "insert":
            if self.done == self.links:
                self.begin(self.links - LAST)
            return self.lengthen() / 1e3
        call: Any = self.whole_match if self.act == "match" else self.last_leaf
        taken: float = call() / 1e3
        return taken

    def whole_match(self) -> int:
        key = self.cache.key(self.tokens)
        begun = self.now()
        hit = self.cache.match(key)
        taken = self.now() - begun
        assert hit.length == len(hit.slots) == len(self.tokens)
        return taken

    def last_leaf(self) -> int:
        if self.done <= self.links // 2:
            self.begin(self.links)
        begun = self.now()
        gone = self.cache.evict(1, 0)
        taken = self.now() - begun
        assert gone == (LINK, 1)
        self.done -= 1
        return taken


def bookkeeping(clock: Clock, scale: float, tokens: int) -> Contest:
    """Read the bytes of a key, look it up, and copy its slots."""
    key = drawn(1, tokens).astype("<u4")
    known, slots = {key.tobytes(): 1}, np.arange(tokens)

    def work() -> object:
        return known[key.tobytes()], slots.copy()

    return Limit(clock, work)


def scenarios() -> Iterator[Scenario]:
    for act, keys, title, target, accepted, because in (
        (
            "insert",
            BUFFERS,
            "hybrid: take a state's slot, insert 64 tokens and the state",
            13.0,
            1.9,
            UNCOPIED,
        ),
        ("match", BUFFERS, "hybrid: match one of 10,000 paths of 64 tokens", 8.0, 1.15, UNCHECKED),
        ("insert-list", LISTS, "hybrid: insert a list of 64 tokens and a state", 14.0, 2.2, UNCOPIED),
        ("match-list", LISTS, "hybrid: match one of 10,000 paths by a list", 9.0, 1.15, UNCHECKED),
        ("state", (), "hybrid: evict one state of 10,000", 5.0, 1.8, AS_IT_GOES),
        ("leaf", (), "hybrid: evict one leaf of 10,000", 8.0, 1.0, ""),
    ):
        yield Scenario(
            id=f"T6a-{act}",
            title=title,
            unit="us",
            statistic="median",
            target=target,
            limit_of="one look-up by bytes, one copy of 64 slots",
            kind="hybrid",
            contest=functools.partial(Paths, act=act.removesuffix("-list")),
            limit=functools.partial(bookkeeping, tokens=PATH),
            rounds=1000,
            burst=25,
            seconds=3.0,
            keys=keys,
            accepted=accepted,
            because=because,
        )
    for act, keys, title, target in (
        ("insert", BUFFERS, "hybrid: lengthen a chain of 1,000 nodes", 1500.0),
        ("match", BUFFERS, "hybrid: match a chain of 1,000 nodes", 800.0),
        ("insert-list", LISTS, "hybrid: lengthen a chain of 1,000 nodes by a list", 1600.0),
        ("match-list", LISTS, "hybrid: match a chain of 1,000 nodes by a list", 900.0),
        ("leaf", (), "hybrid: evict the end of a chain of 1,000 nodes", 15.0),
    ):
        yield Scenario(
            id=f"T6b-{act}",
            title=title,
            unit="us",
            statistic="median",
            target=target,
            limit_of="one look-up by bytes, one copy of 8,000 slots",
            kind="hybrid",
            contest=functools.partial(Chain, act=act.removesuffix("-list")),
            limit=functools.partial(bookkeeping, tokens=CHAIN * LINK),
            rounds=200,
            burst=5,
            seconds=3.0,
            keys=keys,
        )
