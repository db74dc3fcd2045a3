"""T3: the conversation trace, one request after another through cache and allocator.

Interleaved by request: each contender serves the same one before any of them serves the next. Requests of
more than half the capacity are left out. The folder of the trace is named by PYMLLM_TRACES.
"""

from __future__ import annotations

import functools
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peers.benchmarks.contender import EvictingPeer, PrefixPeer
from peers.benchmarks.keys import BUFFERS, LISTS
from peers.benchmarks.scenario import Clock, Contest, Limit, Scenario
from pymllm.traces.trace_file import read_trace
from pymllm.workloads.request import Request

TRACE = "conversation_trace.jsonl"


@functools.cache
def conversation() -> list[Request]:
    """Read the trace; an error names the missing folder or file."""
    return read_trace(str(trace_file()))


def trace_file() -> Path:
    return Path(os.environ.get("PYMLLM_TRACES", "")) / TRACE


def missing_trace() -> str | None:
    """Return the missing folder or file, or ``None``."""
    if not os.environ.get("PYMLLM_TRACES"):
        return f"PYMLLM_TRACES does not name a folder with {TRACE}"
    return None if trace_file().is_file() else f"there is no {trace_file()}"


class Serving(Contest):
    """T3: match, hold, evict what is short, allocate, insert, give back, release."""

    def __init__(
        self, peer: type[PrefixPeer], clock: Clock, scale: float, page_size: int, slots: int
    ) -> None:
        super().__init__(clock)
        self.cache = peer(page_size, slots // page_size * page_size)
        self.requests = iter([one for one in conversation() if one.prompt_length <= slots // 2])
        self.facts = {"hit_tokens": 0.0, "prompt_tokens": 0.0, "evict_calls": 0.0, "evicted_tokens": 0.0}
        # vLLM's pool is asked for blocks, and evicts by itself.
        self.serve = self.serve_blocks if hasattr(peer, "extend") else self.serve_slots

    def sample(self) -> float:
        tokens = np.asarray(next(self.requests).prompt(), dtype=np.int64)
        self.facts["prompt_tokens"] += len(tokens)
        return self.serve(tokens) / 1e3

    def serve_slots(self, tokens: np.ndarray[Any, Any]) -> int:
        cache, key, length = self.cache, self.cache.key(tokens), len(tokens)
        assert isinstance(cache, EvictingPeer)
        page_size = cache.page_size
        whole = length // page_size * page_size
        begun = self.now()
        hit = cache.match(key)
        receipt = cache.hold(hit)
        need = -(-(length - hit.length) // page_size) * page_size
        short = need - cache.available()
        gone = cache.evict(short) if short > 0 else 0
        slots = cache.alloc(need)
        taken = self.now() - begun
        value = torch.cat((hit.slots, slots))[:whole]
        given = cache.key(tokens[:whole])
        begun = self.now()
        cache.insert(given, value, hit.length)
        if whole < length:
            cache.free(slots[whole - hit.length :])
        cache.release(hit, receipt)
        taken += self.now() - begun
        self.facts["hit_tokens"] += hit.length
        self.facts["evict_calls"] += short > 0
        self.facts["evicted_tokens"] += gone
        return taken

    def serve_blocks(self, tokens: np.ndarray[Any, Any]) -> int:
        cache: Any = self.cache
        key = cache.key(tokens)
        begun = self.now()
        hit = cache.match(key)
        cache.hold(hit)
        cache.extend(hit)
        cache.release(hit, None)
        taken = self.now() - begun
        self.facts["hit_tokens"] += hit.length
        return taken

    def holds(self) -> bool:
        self.facts["hit_rate"] = round(self.facts["hit_tokens"] / self.facts["prompt_tokens"], 6)
        return self.cache.nothing_is_lost()


class Bytes(Limit):
    """Read a prompt's bytes, and copy as many slots twice: into the cache and onto the free list."""

    def __init__(self, clock: Clock, scale: float, listed: bool) -> None:
        super().__init__(clock, self.copy)
        self.listed = listed
        self.requests = iter(conversation())
        self.key = np.zeros(0, dtype=np.uint32)
        self.slots = torch.empty(0, dtype=torch.int64)
        self.tokens: list[int] = []
        self.free = torch.empty(1 << 20, dtype=torch.int64)

    def sample(self) -> float:
        length = next(self.requests).prompt_length
        self.key, self.slots = np.zeros(length, dtype=np.uint32), torch.zeros(length, dtype=torch.int64)
        self.tokens = self.key.tolist() if self.listed else []
        return super().sample()

    def copy(self) -> object:
        self.free[: len(self.slots)] = self.slots
        return self.key.tobytes(), self.slots.clone(), array("I", self.tokens), array("I", self.tokens)


def scenarios() -> Iterator[Scenario]:
    for millions, keys, target in ((1, BUFFERS, 80.0), (1, LISTS, 400.0), (8, BUFFERS, 100.0)):
        listed = keys is LISTS
        for page_size in (1, 16, 64):
            yield Scenario(
                id=f"T3-{millions}M-{'list-' * listed}p{page_size}",
                title=f"conversation trace{', Python lists' * listed}, {millions}M slots, per request",
                unit="us",
                statistic="mean",
                target=target,
                limit_of="a prompt's bytes, and two copies of its slots" + ", two arrays from it" * listed,
                kind="prefix",
                contest=functools.partial(Serving, page_size=page_size, slots=millions << 20),
                limit=functools.partial(Bytes, listed=listed),
                rounds=11_000,
                burst=40,
                seconds=6.0 if listed else 8.0,
                without=("vllm",) if page_size == 1 else (),
                keys=keys,
            )
