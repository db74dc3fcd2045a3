"""A sound producer of events: a pool of blocks whose events are those of vLLM, and ways to get them wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

SIZE = 4

Event = dict[str, Any]


class Producer:
    """A pool of blocks with prompts of random tokens; the oldest leaf is evicted.

    A block is its path from the root, so that content and hash belong together. ``fault`` names one mistake,
    which is made in each message where it can be.
    """

    def __init__(self, seed: int, room: int = 40, fault: str = "") -> None:
        self.random = random.Random(seed)
        self.room, self.fault = room, fault
        self.there: dict[tuple[int, ...], int] = {}  # path of prompts' pieces, and the copies of its block
        self.number = -1

    def messages(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield messages as a recording has them."""
        for _ in range(count):
            events = [*self.step()]
            self.number += 1
            if self.fault == "gap" and self.number % 10 == 5:
                self.number += 1
            yield {"topic": "kv", "seq": self.number, "batch": [0.0, events, 0]}
            if self.fault == "twice" and self.number % 10 == 5:
                yield {"topic": "kv", "seq": self.number, "batch": [0.0, events, 0]}

    def step(self) -> Iterator[Event]:
        """Store a prompt of one to four blocks, behind what is cached of it; or clear."""
        if self.random.random() < 0.01:
            if self.fault != "silent clear":
                yield {"type": "AllBlocksCleared"}
            self.there.clear()
            return
        path: tuple[int, ...] = ()
        fresh: list[tuple[int, ...]] = []
        for _ in range(self.random.randint(1, 4)):
            path = (*path, self.random.randrange(3))
            if path not in self.there:
                fresh.append(path)
        parents = {path[:end] for end in range(len(path))}
        while sum(self.there.values()) + len(fresh) > self.room:
            victim = next(it for it in self.there if it not in parents and not self._has_child(it))
            del self.there[victim]
            if self.fault != "silent evictions":
                yield removed(victim if self.fault != "other block" else (*victim, 9))
        if not fresh:
            return
        for it in fresh:
            self.there[it] = 1
        event = stored(fresh)
        if self.fault == "more tokens":
            event["token_ids"] += [0] * SIZE
        if self.fault == "lost parent" and event["parent_block_hash"] is not None:
            event["parent_block_hash"] = hash_of((7, 7))
        if self.fault == "one hash" and len(fresh) > 1:
            event["block_hashes"] = [event["block_hashes"][0]] * len(fresh)
        if self.fault == "two hashes":
            yield event
            event = stored(fresh)
            event["block_hashes"] = [hash + 1 for hash in event["block_hashes"]]
        yield event
        if self.fault == "second copy":
            yield stored(fresh)
            yield removed(fresh[-1])

    def _has_child(self, path: tuple[int, ...]) -> bool:
        return any(len(it) == len(path) + 1 and it[: len(path)] == path for it in self.there)


def hash_of(path: tuple[int, ...]) -> int:
    """Return a number for a path, another one for every other path."""
    return 2 * int("1" + "".join(map(str, path)))


def stored(paths: list[tuple[int, ...]]) -> Event:
    """Return the event of blocks in a row."""
    parent = paths[0][:-1]
    return {
        "type": "BlockStored",
        "block_hashes": [hash_of(it) for it in paths],
        "parent_block_hash": hash_of(parent) if parent else None,
        "token_ids": [token for it in paths for token in [it[-1]] * SIZE],
        "block_size": SIZE,
        "medium": "GPU",
        "group_idx": 0,
    }


def removed(path: tuple[int, ...]) -> Event:
    """Return the event of a block that is gone."""
    return {"type": "BlockRemoved", "block_hashes": [hash_of(path)], "medium": "GPU", "group_idx": 0}
