"""The probe passes operations on, books their time to the right request, and checks as often as told."""

from __future__ import annotations

import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.workloads.cache_probe import CacheProbe, CacheTimes


def test_operations_reach_the_cache_and_their_time_the_request() -> None:
    """Each kind of operation has a clock of its own in the request's times."""
    probe, times = CacheProbe(RadixCache(), lambda: None, 0), CacheTimes()
    key = RadixKey([1, 2, 3])
    inserted = probe.insert(key, torch.tensor([1, 2, 3]), times)
    assert times.insert_ns > 0 == times.match_ns
    matched = probe.match(key, times)
    assert (matched.prefix_len, matched.last_node) == (3, inserted.last_node)
    assert times.match_ns > 0 == times.lock_ns
    token = probe.lock(matched.last_node, times)
    assert probe.cache.protected_size() == 3
    locked_ns = times.lock_ns
    probe.unlock(matched.last_node, token, times)
    assert times.lock_ns > locked_ns > 0 == times.evict_ns
    assert probe.cache.protected_size() == 0


def test_common_eviction_is_shared_evenly() -> None:
    """Requests that are short together pay together; what went is counted once."""
    probe, payers = (
        CacheProbe(RadixCache(sliding_window_size=2), lambda: None, 0),
        [CacheTimes(), CacheTimes()],
    )
    probe.insert(RadixKey([1, 2, 3]), torch.tensor([1, 2, 3]), payers[0])
    probe.evict(2, 0, payers)
    assert payers[0].evict_ns == payers[1].evict_ns > 0
    assert (probe.evict_calls, probe.evicted_tokens, probe.evicted_swa_tokens) == (1, 3, 3)


def test_states_pass_through() -> None:
    """M1, M5: options of an insert reach the cache, and what an eviction says of states is added up."""
    probe, times = CacheProbe(MambaRadixCache(), lambda: None, 0), CacheTimes()
    for token in (1, 2, 3):
        probe.insert(RadixKey([token]), torch.tensor([token]), times, mamba_value=torch.tensor([token]))
    probe.evict(0, 2, [times])
    assert (probe.evict_calls, probe.evicted_tokens, probe.evicted_states) == (1, 2, 2)


@pytest.mark.parametrize(("check_every", "expected"), [(0, 0), (1, 7), (3, 2)])
def test_checks_run_after_every_nth_operation(check_every: int, expected: int) -> None:
    """Zero switches checks off."""
    calls: list[int] = []
    probe = CacheProbe(RadixCache(), lambda: calls.append(1), check_every)
    for _ in range(7):
        probe.match(RadixKey([1]), CacheTimes())
    assert (len(calls), probe.checks, probe.operations) == (expected, expected, 7)


def test_failed_check_reaches_the_caller() -> None:
    """A broken law is not swallowed."""

    def fail() -> None:
        raise InvariantViolation("R7", "planted")

    probe = CacheProbe(RadixCache(), fail, 1)
    with pytest.raises(InvariantViolation, match="planted"):
        probe.match(RadixKey([1]), CacheTimes())
