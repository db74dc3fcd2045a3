"""Calls that fail when they are told to, and only then."""

from __future__ import annotations

import pytest

from pymllm.adapters.failing_calls import FAILING_CALLS, FailingCalls, InjectedFault
from pymllm.adapters.own_requests import Requests
from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.history.operations import Fault


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
