"""The adapter of block allocators and cached states: what no program of tests/properties shows of it."""

from __future__ import annotations

import pytest
import torch

from pymllm.adapters.malformed import MALFORMED_BLOCKS
from pymllm.adapters.own_blocks import Blocks
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out

ONE, BOTH = (ops.Span(1, 0, 1),), (ops.Span(1, 0, 2),)
CACHED: list[ops.Operation] = [
    ops.AllocBlocks(2),
    ops.RegisterBlocks(BOTH, (11, 22)),
    ops.ReleaseBlocks(BOTH),
]


def play(*operations: ops.Operation, **changes: int | str | bool | None) -> list[out.Outcome]:
    adapter = Blocks("x", {**Blocks.CONFIGURATIONS[0], "blocks": 3, **changes})
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


def test_a_fault_strikes_the_next_operation_only() -> None:
    """X2, X6: the observer raises at the end, or meets an error at every call that it makes."""
    *_, struck = play(ops.AllocBlocks(1), ops.Fault("callback"), ops.ReleaseBlocks(ONE))
    assert getattr(struck.result, "error", "") == out.INJECTED
    assert struck.sizes["pool_avail"] == 3
    *_, met = play(ops.AllocBlocks(1), ops.Fault("reenter"), ops.ReleaseBlocks(ONE))
    assert (met.result, met.effects[0].note) == (out.Done(), "RuntimeError")
    *_, late = play(ops.AllocBlocks(1), ops.Fault("callback", 2), ops.ReleaseBlocks(ONE))
    assert late.result == out.Done()
    *_, forgotten = play(
        ops.AllocBlocks(1), ops.Fault("callback"), ops.RetainBlocks(()), ops.ReleaseBlocks(ONE)
    )
    assert forgotten.result == out.Done()


def test_an_observer_that_is_let_in_is_found_out() -> None:
    """X6: the note says what was not refused."""
    adapter = Blocks("x", Blocks.CONFIGURATIONS[0])
    adapter._fault, adapter._calls = ops.Fault("reenter"), 0
    adapter._observe([], set())
    assert adapter.effects[0].note == "none"


def test_another_container_is_no_program() -> None:
    """X1: an unknown form is the program's fault."""
    with pytest.raises(ProgramError, match="form is 'sack'"):
        play(ops.RetainBlocks((), "sack"))


def test_without_slots_only_blocks_are_known() -> None:
    """C1: an attention model; what is asked of slots or live states is unsupported."""
    for operation in (
        ops.AllocSlots(()),
        ops.EvictSlots(0),
        ops.ReadLive(0),
        ops.WriteLive(0, 0, 1, 1),
        ops.ReadStates(0),
    ):
        (outcome,) = play(operation, slots=None)
        assert isinstance(outcome.result, out.Unsupported)
        assert "free_count" not in outcome.sizes


def test_the_audit_looks_inside_both() -> None:
    """C1 to C4, C6: slots in hand are known."""
    adapter = Blocks("x", Blocks.CONFIGURATIONS[0])
    for step, operation in enumerate([*CACHED, ops.AllocSlots(BOTH), ops.EvictSlots(1)], 1):
        assert not isinstance(adapter.apply(step, operation).result, out.Failed)
    assert adapter.audit() == ("C1", "C2", "C3", "C4", "C6")
    assert Blocks("x", {**Blocks.CONFIGURATIONS[0], "slots": None}).audit() == ("C1", "C3")
    adapter.slots.block_to_slot.fill_(-1)
    with pytest.raises(InvariantViolation, match="C2"):
        adapter.audit()


@pytest.mark.gpu
def test_states_are_on_the_device_and_books_on_the_host() -> None:
    """C7: the same answers with CUDA."""
    adapter = Blocks("x", {**Blocks.CONFIGURATIONS[0], "device": "cuda"})
    assert adapter.slots.ssm_states.device.type == "cuda"
    assert adapter.pool.block_ref_counts.device == torch.device("cpu")


# -- Calls of the block allocators that no caller may make ---------------------------------------------------


REFUSALS = {"TypeError", "ValueError", "IndexError"}
OF_BLOCKS = {call for call, _ in MALFORMED_BLOCKS if call.endswith("_blocks")} | {"begin_transfer"}


def with_a_state(**changes: int | str | bool | None) -> Blocks:
    made = Blocks("x", {**Blocks.CONFIGURATIONS[0], **changes})
    made.apply(1, ops.AllocBlocks(2))
    made.apply(2, ops.AllocSlots((ops.Span(1, 0, 1),)))
    return made


@pytest.mark.parametrize(("call", "wrong"), MALFORMED_BLOCKS)
def test_each_is_refused_and_changes_nothing(call: str, wrong: str) -> None:
    """X1: with everything that the call needs at hand, it raises what malformed arguments raise."""
    adapter = with_a_state()
    looks = (ops.Inspect(), ops.ReadStates(0), ops.ReadStates(1))
    before = [adapter.apply(3 + at, look) for at, look in enumerate(looks)]
    result = adapter.apply(9, ops.Malformed(call, wrong)).result
    assert isinstance(result, out.Failed)
    assert result.error in REFUSALS
    assert [adapter.apply(10 + at, look) for at, look in enumerate(looks)] == before


@pytest.mark.parametrize(("call", "wrong"), [call for call in MALFORMED_BLOCKS if call[0] not in OF_BLOCKS])
def test_what_is_about_slots_is_asked_only_where_there_are_some(call: str, wrong: str) -> None:
    """X1: the adapter cannot make such a call without."""
    assert isinstance(with_a_state(slots=None).apply(3, ops.Malformed(call, wrong)).result, out.Unsupported)


def test_a_store_needs_a_slot() -> None:
    """X1: else it would be refused for another reason."""
    fresh = Blocks("x", Blocks.CONFIGURATIONS[0])
    assert isinstance(fresh.apply(1, ops.Malformed("store_state", "a list")).result, out.Unsupported)
    assert isinstance(fresh.apply(2, ops.Malformed("store_state", "a teapot")).result, out.Unsupported)
