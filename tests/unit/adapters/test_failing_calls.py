"""Calls that are written down, and that fail when they are told to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.adapters.failing_calls import (
    FAILING_CALLS,
    FailingCalls,
    InjectedFault,
    RecordingPool,
    record_around,
)
from pymllm.adapters.own_requests import Requests
from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.history.operations import Fault
from pymllm.history.outcomes import Effect
from pymllm.mem_cache.memory_pool import SWATokenToKVPoolAllocator, TokenToKVPoolAllocator

# -- The pool that writes down what a cache gives back -------------------------------------------------------


@pytest.fixture
def effects() -> list[Effect]:
    return []


@pytest.fixture
def pool(effects: list[Effect]) -> RecordingPool:
    return record_around(TokenToKVPoolAllocator(8, "cpu"), effects.append)


@pytest.fixture
def windowed(effects: list[Effect]) -> Any:
    return record_around(SWATokenToKVPoolAllocator(8, 8, "cpu"), effects.append)


def test_what_the_pool_took_is_written_down_in_order(windowed: Any, effects: list[Effect]) -> None:
    """X2: a judge sees every call, its slots as they were given."""
    slots = windowed.inner.alloc(4)
    windowed.free_swa(slots[:2])
    windowed.move_swa(slots[2:3], slots[:1])
    windowed.free(slots[[3, 1]])
    assert effects == [Effect("free_swa", (1, 2)), Effect("move_swa", (3,), (1,)), Effect("free", (4, 2))]
    assert windowed.full_available_size() == 6
    assert windowed.swa_available_size() == 7


def test_pages_are_written_down_as_all_their_slots(effects: list[Effect]) -> None:
    """X2: by whichever call a cache names them; a fault of the one is a fault of the other."""
    pool: Any = record_around(SWATokenToKVPoolAllocator(16, 16, "cpu", 4), effects.append)
    slots = pool.inner.alloc(16)
    pool.free_swa_pages(slots[:8:4])
    pool.free_pages(slots[4:8:4])
    assert effects == [Effect("free_swa", tuple(range(4, 12))), Effect("free", tuple(range(8, 12)))]
    pool.fault = Fault("free_swa")
    with pytest.raises(InjectedFault):
        pool.free_swa_pages(slots[8::4])
    assert (pool.full_available_size(), pool.swa_available_size()) == (4, 8)


def test_a_refused_call_is_not_written_down(pool: RecordingPool, effects: list[Effect]) -> None:
    """X2: what the pool did not take has not happened."""
    with pytest.raises(ValueError, match="handed out"):
        pool.free(torch.tensor([3]))
    assert effects == []


@pytest.mark.parametrize("call", ["free", "free_swa", "move_swa"])
def test_the_named_call_fails_and_takes_nothing(windowed: Any, effects: list[Effect], call: str) -> None:
    """X2: a pool that raises has taken nothing."""
    slots = windowed.inner.alloc(4)
    windowed.inner.free_swa(slots[:2])
    windowed.fault = Fault(call)
    arguments = {"free": (slots,), "free_swa": (slots[2:],), "move_swa": (slots[2:], slots[:2])}[call]
    with pytest.raises(InjectedFault):
        getattr(windowed, call)(*arguments)
    assert effects == []
    assert windowed.swa_available_size() == 6
    windowed.fault = None
    getattr(windowed, call)(*arguments)
    assert [effect.call for effect in effects] == [call]


def test_only_the_nth_call_of_that_name_fails(pool: RecordingPool) -> None:
    """X2: counting starts when the fault is set, and the call after it works again."""
    slots = pool.alloc(4)
    pool.free(slots[:1])
    pool.fault = Fault("free", 2)
    assert pool.fault == Fault("free", 2)
    pool.free(slots[1:2])
    with pytest.raises(InjectedFault):
        pool.free(slots[2:3])
    pool.free(slots[2:3])
    assert pool.available_size() == 7


def test_a_pool_without_halves_gets_no_calls_about_them(pool: RecordingPool) -> None:
    """S2: caches ask whether there is a ``free_swa``."""
    assert not hasattr(pool, "free_swa")
    assert pool.page_size == 1


def test_pages_given_back_are_written_down_by_their_slots() -> None:
    """X2: a judge sees the `free` that it stands for, and it fails when that is told to."""
    effects: list[Effect] = []
    pool: Any = record_around(TokenToKVPoolAllocator(16, "cpu", 4), effects.append)
    slots = pool.inner.alloc(12)
    pool.fault = Fault("free")
    with pytest.raises(InjectedFault):
        pool.free_pages(slots[::4])
    assert (effects, pool.available_size()) == ([], 4)
    pool.fault = None
    pool.free_pages(slots[[8, 0]])
    assert effects == [Effect("free", (12, 13, 14, 15, 4, 5, 6, 7))]
    assert pool.available_size() == 12


def test_pool_that_takes_no_pages_gets_no_such_call() -> None:
    """X2: caches look for it, as they do for `free_swa`."""

    class Foreign:
        def free(self, indices: torch.Tensor) -> None:
            raise AssertionError(f"{indices} are not given back")

    assert not hasattr(record_around(Foreign(), [].append), "free_pages")


# -- Calls that fail when they are told to, and only then ----------------------------------------------------


def build() -> tuple[DynamicInferenceContext, FailingCalls]:
    adapter = Requests("x", dict(Requests.CONFIGURATIONS[0]))
    return adapter.context, adapter.calls


def test_the_nth_call_fails_and_has_done_nothing() -> None:
    """X2: calls that ask for nothing do not count."""
    context, calls = build()
    blocks = context.kv_block_allocator
    calls.arm(Fault("allocate_blocks", 2))
    assert blocks.allocate_memory_blocks(0) is not None
    assert blocks.allocate_memory_blocks(1) is not None
    with pytest.raises(InjectedFault, match="allocate_memory_blocks"):
        blocks.allocate_memory_blocks(1)
    assert blocks.allocate_memory_blocks(1) is not None
    assert (blocks.pool_avail, calls.made["allocate_blocks"], calls.made["no_blocks"]) == (10, 3, 3)


def test_an_allocation_answers_nothing_where_it_is_told_so() -> None:
    """X4: as it does when blocks run out."""
    context, calls = build()
    calls.arm(Fault("no_blocks"))
    assert context.kv_block_allocator.allocate_memory_blocks(1) is None
    assert context.kv_block_allocator.pool_avail == 12


def test_what_is_disarmed_or_named_otherwise_goes_through() -> None:
    """X2: one fault is one call."""
    context, calls = build()
    slots = context.mamba_slot_allocator
    assert slots is not None
    calls.arm(Fault("allocate_slots"))
    assert context.kv_block_allocator.allocate_memory_blocks(1) is not None
    with pytest.raises(InjectedFault):
        slots.allocate_slots_batch([0])
    calls.arm(Fault("allocate_slots"))
    calls.disarm()
    assert slots.allocate_slots_batch([0]) == slots.allocate_slots_batch([0])


@pytest.mark.parametrize("call", FAILING_CALLS)
def test_every_call_is_one_of_the_context(call: str) -> None:
    """X2: a name that nothing has would never fail."""
    context, _ = build()
    owner, names = FAILING_CALLS[call]
    assert all(callable(getattr(getattr(context, owner), name)) for name in names)


def test_a_context_without_states_has_only_blocks_to_fail() -> None:
    """X2: nothing else is touched."""
    adapter = Requests("x", {**Requests.CONFIGURATIONS[0], "layers": 0, "mamba_slots": 0})
    assert adapter.context.mamba_slot_allocator is None
    adapter.calls.arm(Fault("restore_state"))
    assert adapter.context.kv_block_allocator.allocate_memory_blocks(1) is not None
