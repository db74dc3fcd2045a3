"""A wrapper of a prefix cache that times each operation for its request and checks invariants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch

from pymllm.mem_cache.base_prefix_cache import BasePrefixCache, InsertResult, MatchResult, RadixKey


@dataclass(slots=True)
class CacheTimes:
    """The nanoseconds that one request spent in the cache, by kind of operation."""

    match_ns: int = 0
    insert_ns: int = 0
    evict_ns: int = 0
    lock_ns: int = 0


class CacheProbe:
    """A wrapper that times a cache's operations, and calls ``check`` after every ``check_every`` of them."""

    def __init__(self, cache: BasePrefixCache, check: Callable[[], None], check_every: int) -> None:
        self.cache = cache
        self.operations = 0
        self.checks = 0
        self.evict_calls = 0
        self.evicted_tokens = 0
        self.evicted_swa_tokens = 0
        self.evicted_states = 0
        self._check = check
        self._check_every = check_every

    def match(self, key: RadixKey, times: CacheTimes) -> MatchResult:
        """Match ``key`` for a request, and add the time to its ``times``."""
        start = perf_counter_ns()
        result = self.cache.match_prefix(key)
        times.match_ns += perf_counter_ns() - start
        self._count()
        return result

    def insert(self, key: RadixKey, value: torch.Tensor, times: CacheTimes, **options: Any) -> InsertResult:
        """Insert ``key``; ``options`` are passed on, such as ``swa_evicted_seqlen`` or ``mamba_value``."""
        start = perf_counter_ns()
        result = self.cache.insert(key, value, **options)
        times.insert_ns += perf_counter_ns() - start
        self._count()
        return result

    def lock(self, node: Any, times: CacheTimes) -> Any:
        """Take a hold at ``node``, and return the token that `unlock` needs."""
        start = perf_counter_ns()
        token = self.cache.inc_lock_ref(node)
        times.lock_ns += perf_counter_ns() - start
        self._count()
        return token

    def unlock(self, node: Any, token: Any, times: CacheTimes) -> None:
        """Release the hold at ``node`` that has this ``token``."""
        start = perf_counter_ns()
        self.cache.dec_lock_ref(node, swa_boundary_id=token)
        times.lock_ns += perf_counter_ns() - start
        self._count()

    def evict(self, tokens: int, secondary: int, payers: Sequence[CacheTimes]) -> None:
        """Evict tokens, and SWA halves or states (``secondary``); charge the time evenly to ``payers``."""
        start = perf_counter_ns()
        result = self.cache.evict(tokens, secondary)
        share = (perf_counter_ns() - start) // len(payers)
        for times in payers:
            times.evict_ns += share
        self.evict_calls += 1
        self.evicted_tokens += result.full_evicted
        self.evicted_swa_tokens += result.swa_evicted
        self.evicted_states += result.mamba_evicted
        self._count()

    def _count(self) -> None:
        self.operations += 1
        if self._check_every and self.operations % self._check_every == 0:
            self.checks += 1
            self._check()
