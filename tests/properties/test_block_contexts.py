"""Whole requests through the block contexts: what a warm run reads is what a cold run would have written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from block_server import BlockServer, InjectedFault
from exact_recurrence import PRIMES, ExactRecurrence

from pymllm.core.inference.contexts.kv_block_allocator import PrefixCachingEvictionPolicy

LRU, REF_ZERO = PrefixCachingEvictionPolicy.LRU, PrefixCachingEvictionPolicy.REF_ZERO


@pytest.mark.parametrize("policy", [LRU, REF_ZERO])
@pytest.mark.parametrize("slots", [1, 3, 64])
@pytest.mark.parametrize(("block_size", "chunk_size"), [(4, 2), (6, 4)])
def test_warm_equals_cold(
    policy: PrefixCachingEvictionPolicy, slots: int, block_size: int, chunk_size: int
) -> None:
    """E1: KV rows, live and cached states of every request, after hits, chunks, evictions and pauses."""
    server = BlockServer(
        slots, block_size=block_size, mamba_chunk_size=chunk_size, slots=slots, policy=policy, check_every=3
    )
    server.run(800)
    assert server.seen["extracted"] > 0
    assert server.seen["refused"] > 0
    assert server.seen["paused"] > 0
    assert server.seen["most states"] >= min(slots, 5)
    assert server.seen["largest batch"] > 1
    assert server.seen["recomputed shared tokens"] > 0
    assert server.seen["resumed"] > 0


@pytest.mark.parametrize("policy", [LRU, REF_ZERO])
@pytest.mark.parametrize("digits", [1, 2])
def test_colliding_hashes_share_nothing_wrong(policy: PrefixCachingEvictionPolicy, digits: int) -> None:
    """C3: with hashes of 4 and 8 bits, a hit is confirmed by the parent's identity and by the tokens."""
    server = BlockServer(
        7, block_size=4, mamba_chunk_size=2, slots=8, policy=policy, hash_digits=digits, check_every=3
    )
    server.run(1000)
    assert server.seen["resumed"] > 0


def test_attention_alone_skips_what_is_cached() -> None:
    """E4: without recurrent layers every cached block but the last may be skipped."""
    server = BlockServer(
        5, block_size=4, mamba_chunk_size=2, slots=0, policy=LRU, is_recurrent=False, check_every=3
    )
    server.run(400)
    assert server.seen["resumed"] > 0


@dataclass
class NthFails:
    """A call that does what it always did, but for the ``nth`` time (0: never)."""

    call: Callable[..., Any]
    nth: int
    fault: Callable[[], Any]
    calls: int = 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return self.fault() if self.calls == self.nth else self.call(*arguments, **options)


def no_memory() -> None:
    raise InjectedFault("no memory")


# Which call fails, how, and in how many steps it is made often enough.
FAULTS: dict[str, tuple[str, str, Callable[[], Any], int]] = {
    "no blocks": ("kv_block_allocator", "allocate_memory_blocks", lambda: None, 60),
    "no memory for blocks": ("kv_block_allocator", "allocate_memory_blocks", no_memory, 60),
    "no memory for a restore": ("mamba_slot_allocator", "restore_to_live", no_memory, 200),
    "no memory for a commit": ("mamba_slot_allocator", "allocate_slots_batch", no_memory, 100),
    "no memory for a copy": ("mamba_slot_allocator", "_copy_intermediate_to_cache", no_memory, 100),
    "no memory for a live state": ("mamba_slot_allocator", "store_from_live_batch", no_memory, 100),
}


def calls_with_fault(kind: str, nth: int) -> int:
    """Run requests while the nth call fails, and return how often it was made."""
    owner, name, fault, steps = FAULTS[kind]
    server = BlockServer(11, block_size=4, mamba_chunk_size=2, slots=3, policy=LRU)
    part = getattr(server.context, owner)
    failing = NthFails(getattr(part, name), nth, fault)
    setattr(part, name, failing)
    server.run(steps)
    return failing.calls


@pytest.mark.parametrize("kind", FAULTS)
def test_whichever_allocation_fails_the_context_stays_sound(kind: str) -> None:
    """X1, X2, E3: the n-th, for every n; all checks pass after every act, and all is given back."""
    calls = calls_with_fault(kind, 0)
    assert calls > 5
    reached = [calls_with_fault(kind, nth) >= nth for nth in range(1, calls + 1)]
    assert all(reached), "up to the fault every run is the same"


@pytest.mark.gpu
def test_warm_equals_cold_on_a_gpu() -> None:
    """E1, C7: with the states on a device."""
    server = BlockServer(
        3, block_size=4, mamba_chunk_size=2, slots=8, policy=LRU, device="cuda", check_every=10
    )
    server.run(200)
    assert server.seen["resumed"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("hash_digits", [None, 2])
@pytest.mark.parametrize("policy", [LRU, REF_ZERO])
@pytest.mark.parametrize("slots", [1, 3, 64])
@pytest.mark.parametrize(("block_size", "chunk_size"), [(4, 2), (256, 128)])
def test_warm_equals_cold_for_long(
    policy: PrefixCachingEvictionPolicy, slots: int, block_size: int, chunk_size: int, hash_digits: int | None
) -> None:
    """E1: 20,000 steps of each kind."""
    server = BlockServer(
        slots,
        block_size=block_size,
        mamba_chunk_size=chunk_size,
        slots=slots,
        policy=policy,
        hash_digits=hash_digits,
        check_every=20,
    )
    server.run(20_000)
    assert server.seen["resumed"] > 0


@pytest.mark.parametrize("dtype", PRIMES)
def test_a_folded_chunk_is_the_loop_over_its_tokens(dtype: torch.dtype) -> None:
    """The recurrence is exact in its dtype, however the tokens are cut, and depends on their order."""
    model = ExactRecurrence(2, (3,), dtype, salt=5)
    tokens = np.random.default_rng(1).integers(0, 2**32, 100).astype(np.uint32)
    cold = model.one_by_one(tokens)
    assert torch.equal(model.cold(tokens), cold)
    for cut in (0, 1, 50, 99, 100):
        state = model.advance(np.zeros(6, np.int64), tokens[:cut])
        state = model.advance(model.read(model.write(state)), tokens[cut:])
        assert torch.equal(model.write(state), cold)
    assert not torch.equal(model.cold(tokens[::-1]), cold)
    assert not torch.equal(model.cold(np.concatenate(([7], tokens[1:]))), cold)
