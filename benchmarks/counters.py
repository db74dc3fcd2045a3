"""Counting what an operation does, where timing it would measure the machine: nodes visited, tensor calls.

``python -m benchmarks.counters`` prints the counts as `benchmarks/counters.json` has them. They do not depend
on the machine, so a change that visits more nodes or calls torch more often is seen at once, on any of them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pymllm.mem_cache import GDNPool, MambaRadixCache, RadixCache, RadixKey, TokenToKVPoolAllocator

LEDGER = Path(__file__).with_name("counters.json")
LINK = 16


@dataclass(slots=True)
class Counts:
    """The counts of an operation."""

    visited: set[int] = field(default_factory=set)
    tensor_calls: int = 0

    def as_entry(self) -> dict[str, int]:
        return {"nodes": len(self.visited), "tensor_calls": self.tensor_calls}


class _CountCalls(TorchDispatchMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts.tensor_calls += 1
        return func(*args, **(kwargs or {}))


class Watched:
    """A cache whose nodes tell when they are looked at."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.counts: Counts | None = None
        tree, watched = cache._tree, self
        base = tree._make_node

        class Node(base):  # type: ignore[misc,valid-type]
            __slots__ = ()

            def __getattribute__(self, name: str) -> Any:
                if watched.counts is not None:
                    watched.counts.visited.add(id(self))
                return super().__getattribute__(name)

        tree._make_node = Node

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counts]:
        """Count what is done inside; the root, which every call looks at, is no node of the tree's making."""
        self.counts = counts = Counts()
        try:
            with _CountCalls(counts):
                yield counts
        finally:
            self.counts = None


def radix(capacity: int, page_size: int = 1) -> Watched:
    pool = TokenToKVPoolAllocator(capacity, "cpu", page_size, need_sort=False, check_ownership=False)
    return Watched(RadixCache(page_size, token_to_kv_pool_allocator=pool))


def hybrid(tokens: int, states: int) -> Watched:
    kv = TokenToKVPoolAllocator(tokens, "cpu", 1, need_sort=False, check_ownership=False)
    pool = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=states)
    return Watched(MambaRadixCache(1, kv, pool))


def chain(links: int) -> tuple[Watched, np.ndarray[Any, Any], torch.Tensor]:
    """Cache one key in inserts that grow by a link."""
    watched = radix(2 * links * LINK)
    tokens = np.arange(links * LINK, dtype=np.uint32)
    slots = watched.cache.pool.alloc(links * LINK)
    for end in range(LINK, links * LINK + 1, LINK):
        watched.cache.insert(RadixKey(tokens[:end]), slots[:end])
    return watched, tokens, slots


def leaves(count: int) -> Watched:
    """Cache keys of which no two begin alike."""
    watched = radix(count * LINK)
    for row in np.arange(count * LINK, dtype=np.uint32).reshape(count, LINK):
        watched.cache.insert(RadixKey(row), watched.cache.pool.alloc(LINK))
    return watched


def full_hit(links: int) -> Counts:
    watched, tokens, _ = chain(links)
    with watched.counting() as counts:
        assert watched.cache.match_prefix(RadixKey(tokens)).prefix_len == len(tokens)
    return counts


def hold_and_release(links: int) -> Counts:
    watched, tokens, _ = chain(links)
    node = watched.cache.match_prefix(RadixKey(tokens)).last_node
    with watched.counting() as counts:
        watched.cache.inc_lock_ref(node)
        watched.cache.dec_lock_ref(node)
    return counts


def lengthen(links: int) -> Counts:
    watched, tokens, slots = chain(links)
    longer = np.concatenate((tokens, tokens[:LINK] + np.uint32(1 << 20)))
    more = torch.cat((slots, watched.cache.pool.alloc(LINK)))
    with watched.counting() as counts:
        assert watched.cache.insert(RadixKey(longer), more).prefix_len == len(tokens)
    return counts


def split_a_node() -> Counts:
    watched, tokens, _ = chain(1)
    with watched.counting() as counts:
        assert watched.cache.match_prefix(RadixKey(tokens[: LINK // 2])).prefix_len == LINK // 2
    return counts


def evict_one(count: int) -> Counts:
    watched = leaves(count)
    watched.cache.evict(1)
    with watched.counting() as counts:
        assert watched.cache.evict(1).full_evicted == LINK
    return counts


def evict_all(count: int) -> Counts:
    watched = leaves(count)
    with watched.counting() as counts:
        assert watched.cache.evict(count * LINK).full_evicted == count * LINK
    return counts


def free_and_alloc(pieces: int, **switches: bool) -> Counts:
    pool = TokenToKVPoolAllocator(4 * pieces, "cpu", **switches)
    slots = pool.alloc(pieces)
    counts = Counts()
    with _CountCalls(counts):
        pool.free(slots)
        assert pool.alloc(pieces) is not None
    return counts


def hybrid_call(call: str) -> Counts:
    """One of the calls of a cache with a thousand paths, a state at the end of each."""
    paths = 1_000
    watched = hybrid((paths + 1) * LINK, paths + 1)
    cache = watched.cache
    rows = np.arange((paths + 1) * LINK, dtype=np.uint32).reshape(-1, LINK)

    def arguments(row: Any) -> tuple[RadixKey, torch.Tensor, torch.Tensor]:
        state = torch.tensor([cache.mamba_pool.alloc_track_slot()])
        return RadixKey(row), cache.pool.alloc(LINK), state

    for row in rows[:-1]:
        key, slots, state = arguments(row)
        cache.insert(key, slots, mamba_value=state)
    key, slots, state = arguments(rows[-1])
    with watched.counting() as counts:
        if call == "insert":
            cache.insert(key, slots, mamba_value=state)
        elif call == "match":
            assert cache.match_prefix(RadixKey(rows[7])).prefix_len == LINK
        else:
            gone = cache.evict(*((1, 0) if call == "leaf" else (0, 1)))
            assert gone.mamba_evicted == 1
    return counts


COUNTED: dict[str, Callable[[], Counts]] = {
    "full hit, 1 node": lambda: full_hit(1),
    "full hit, 256 nodes": lambda: full_hit(256),
    "hold and release, 256 nodes": lambda: hold_and_release(256),
    "insert below 1 node": lambda: lengthen(1),
    "insert below 256 nodes": lambda: lengthen(256),
    "match that splits": split_a_node,
    "evict 1 of 1,000 leaves": lambda: evict_one(1_000),
    "evict 1 of 4,000 leaves": lambda: evict_one(4_000),
    "evict 1,000 leaves": lambda: evict_all(1_000),
    "free and alloc, a queue": lambda: free_and_alloc(4_096, need_sort=False, check_ownership=False),
    "free and alloc, sorted": lambda: free_and_alloc(4_096, check_ownership=False),
    "free and alloc, checked": lambda: free_and_alloc(4_096),
    "hybrid insert": lambda: hybrid_call("insert"),
    "hybrid match": lambda: hybrid_call("match"),
    "hybrid evict a leaf": lambda: hybrid_call("leaf"),
    "hybrid evict a state": lambda: hybrid_call("state"),
}
"""By name: builds something, and counts one operation on it."""


if __name__ == "__main__":
    print(json.dumps({name: count().as_entry() for name, count in COUNTED.items()}, indent=1))
