"""T8: resident bytes per cached token, each contender in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import subprocess
import sys
from collections.abc import Iterator

import psutil

from peers.benchmarks.contender import EvictingPeer
from peers.benchmarks.keys import drawn
from peers.benchmarks.scenario import Clock, Contest, Limit, Scenario

PROMPTS, LENGTH = 1_000, 4_096


class Footprint(Contest):
    """T8: 1,000 distinct prompts of 4,096 tokens."""

    def __init__(self, peer: type[EvictingPeer], clock: Clock, scale: float, page_size: int) -> None:
        super().__init__(clock)
        self.arguments = [peer.NAME, str(page_size), str(max(10, int(PROMPTS * scale)))]

    def sample(self) -> float:
        command = [sys.executable, "-m", "peers.benchmarks.footprint", *self.arguments]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        self.facts = {"cached_tokens": found["cached_tokens"]}
        return float(found["bytes_per_token"])


def four_and_eight(clock: Clock, scale: float) -> Contest:
    """Store four bytes for a token, and eight for its slot."""

    class Twelve(Limit):
        def sample(self) -> float:
            return 12.0

    return Twelve(clock, lambda: None)


def measure(peer: type[EvictingPeer], page_size: int, prompts: int) -> dict[str, float]:
    """Cache prompts, and return the process's growth per token."""
    process = psutil.Process()
    cache = peer(page_size, prompts * LENGTH)
    # The pool's own memory is there before: as many slots as it has were out once.
    for _ in range(prompts):
        cache.free(cache.alloc(LENGTH))
    warm = cache.key(drawn(0, LENGTH))
    cache.insert(warm, cache.alloc(LENGTH), 0)
    assert cache.evict(LENGTH) == LENGTH
    del warm
    gc.collect()
    trim()
    before = process.memory_info().rss
    for number in range(prompts):
        cache.insert(cache.key(drawn(number + 1, LENGTH)), cache.alloc(LENGTH), 0)
    gc.collect()
    trim()
    grown = process.memory_info().rss - before
    assert cache.cached() == prompts * LENGTH
    return {"bytes_per_token": grown / (prompts * LENGTH), "cached_tokens": prompts * LENGTH}


def trim() -> None:
    """Release the memory that the C library keeps after frees, which would hide the cached tokens."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # of glibc alone


def scenarios() -> Iterator[Scenario]:
    yield Scenario(
        id="T8",
        title="resident bytes per cached token",
        unit="bytes",
        statistic="median",
        target=12.5,
        limit_of="four bytes of a token and eight of its slot",
        kind="prefix",
        contest=functools.partial(Footprint, page_size=1),
        limit=four_and_eight,
        rounds=3,
        seconds=1.0,
        without=("vllm",),
    )


if __name__ == "__main__":
    from peers.benchmarks.contenders import CONTENDERS

    name, page_size, prompts = sys.argv[1:]
    (chosen,) = [peer for peer in CONTENDERS["prefix"] if name == peer.NAME]
    assert issubclass(chosen, EvictingPeer)
    print(json.dumps(measure(chosen, int(page_size), int(prompts))))
