"""Whichever call fails below the block and the slot allocator, nothing is lost and nothing wrong is found."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from block_caller import BlockCaller, InjectedFault

from pymllm.core.inference.contexts import PrefixCachingEvictionPolicy

PROGRAMS = {
    "a prompt that is cached, found, and pushed out": """
        admit 0 a3 3; compute 0; release 0; admit 1 a3 4; resume 1; compute 1; release 1; admit 0 b4 4;
        compute 0; admit 1 c3 4; compute 1; release 0; release 1; admit 2 a3 3; resume 2; compute 2;
        release 2; admit 0 d5 8; compute 0; release 0; admit 0 a2 2; resume 0; release 0
    """,
    "three requests in one step, with too few slots for all": """
        admit 0 a2 3; admit 1 b2 2; admit 2 c1 1; compute 0 1 2; release 1; admit 1 b2 3; resume 1; compute 1;
        release 0; release 2; admit 0 d2 2; compute 0 1; admit 2 e2 2; compute 1 2; resume 2; release 0;
        release 1; release 2; admit 0 f4 8; compute 0; release 0
    """,
    "one prompt twice in a step": """
        admit 0 a3 3; admit 1 a3 3; compute 0 1; release 0; admit 0 a3 3; resume 0; compute 0; release 0;
        release 1; admit 2 b8 8; compute 2; release 2; admit 0 a1 2; compute 0; release 0
    """,
    "slots that callers ask for and hold in hand": """
        admit 0 a3 3; take_slots 0 0 1 2; invalidate 0 1; take_slots 0 1; compute 0; release 0; hand 1;
        admit 1 b2 3; compute 1; store 1; hand 1; resume 1; release 1; hand 2; admit 2 a3 4; take_slots 2 0 3;
        compute 2; release 2
    """,
    "a reset while everything is in use": """
        admit 0 a3 4; compute 0; admit 1 a3 3; resume 1; hand 0; reset; admit 0 b2 3; compute 0; release 0;
        admit 1 b2 2; resume 1; admit 2 c6 6; compute 2; release 1; release 2; reset; admit 0 a2 2; compute 0
    """,
}

# What fails, and the module-level names through which it is called; none where it is the observer itself.
FAULTS: dict[str, tuple[str, ...]] = {
    "an observer": (),
    "memory for an index": ("slot_states.row_index", "live_states.row_index"),
    "memory for rows": ("device_copies.gather_rows",),
    "a copy to the device": ("device_copies.send", "snapshot_offsets.send"),
    "reading a table": (
        "block_slots.host_array",
        "live_states.host_array",
        "mamba_slot_allocator.host_array",
    ),
}


class Countdown:
    """Let calls through but for the ``nth`` one (0: all of them)."""

    def __init__(self, nth: int) -> None:
        self.nth, self.calls = nth, 0

    def tick(self) -> None:
        self.calls += 1
        if self.calls == self.nth:
            raise InjectedFault(f"call {self.nth}")

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.tick()
            return call(*arguments)

        return counted


@contextlib.contextmanager
def failing(fault: str, countdown: Countdown) -> Iterator[None]:
    """Route the calls of a kind through a countdown."""
    with pytest.MonkeyPatch.context() as patch:
        for place in FAULTS[fault]:
            module_name, name = place.split(".")
            module = sys.modules[f"pymllm.core.inference.contexts.{module_name}"]
            patch.setattr(module, name, countdown.around(getattr(module, name)))
        yield


def run(program: str, fault: str, policy: PrefixCachingEvictionPolicy, nth: int) -> tuple[int, Counter[str]]:
    """Run a program with the nth call of a kind failing; return how many there were, and what was seen."""
    countdown = Countdown(nth)
    caller = BlockCaller(policy, (lambda: None) if FAULTS[fault] else countdown.tick)
    with failing(fault, countdown):
        seen = caller.run(PROGRAMS[program])
    return countdown.calls, seen


@pytest.mark.parametrize("policy", list(PrefixCachingEvictionPolicy), ids=lambda policy: policy.value)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_whichever_call_fails_nothing_is_lost(
    program: str, fault: str, policy: PrefixCachingEvictionPolicy
) -> None:
    """X2, C1, C2, C4, C7: the n-th, for every n; references, slots, hashes and the states behind them."""
    calls, seen = run(program, fault, policy, 0)
    assert calls > 0
    assert seen["states"] > 0
    for nth in range(1, calls + 1):
        reached, seen = run(program, fault, policy, nth)
        assert seen["faults"] == 1, f"of {reached} calls none was the {nth}th: runs differ before the fault"


REFUSING: dict[str, Callable[[BlockCaller], object]] = {
    "allocate_slots_batch": lambda caller: caller.slots.allocate_slots_batch(caller.blocks[1][:2]),
    "_evict_lru_slots_batch": lambda caller: caller.slots._evict_lru_slots_batch(1),
    "register_block_hashes_batch": lambda caller: caller.slots.register_block_hashes_batch(
        caller.blocks[0], caller.hashes[0]
    ),
    "store_from_live_batch": lambda caller: caller.slots.store_from_live_batch([0, 1], [2, 0]),
    "restore_to_live": lambda caller: caller.slots.restore_to_live(2, caller.blocks[0][0]),
    "_copy_intermediate_to_cache": lambda caller: caller.slots._copy_intermediate_to_cache([1, 2], [0, 2]),
}


def make_busy_caller() -> BlockCaller:
    """Every slot has a state; one of the blocks is referenced, two are not."""
    caller = BlockCaller(PrefixCachingEvictionPolicy.LRU)
    caller.play("admit 0 a3 3; compute 0; release 0; admit 0 a1 1; admit 1 b3 3")
    assert caller.slots.free_count == 0
    return caller


def trace_of(caller: BlockCaller) -> list[Any]:
    """Books, and every bit that a copy may reach."""
    slots, context = caller.slots, caller.context
    states = [slots.conv_states, slots.ssm_states, context.mamba_conv_states, context.mamba_ssm_states]
    books = [slots.block_to_slot, slots.slot_to_block, slots.free_slots[: slots.free_count]]
    return [*(each.tolist() for each in states + books), dict(slots.hash_to_block_id)]


@pytest.mark.parametrize("act", REFUSING)
def test_a_single_call_that_fails_below_has_changed_nothing(act: str) -> None:
    """X2, C5, C7: neither books nor a bit of a state, wherever in the call it fails."""
    failures = 0
    for fault in [each for each, names in FAULTS.items() if names]:
        caller, counted = make_busy_caller(), Countdown(0)
        with failing(fault, counted):
            REFUSING[act](caller)
        for nth in range(1, counted.calls + 1):
            caller = make_busy_caller()
            before = trace_of(caller)
            with failing(fault, Countdown(nth)), pytest.raises(InjectedFault):
                REFUSING[act](caller)
            assert trace_of(caller) == before
            caller.check()
            failures += 1
    assert failures > 0
