"""The adapter of block allocators and cached states."""

from __future__ import annotations

import pytest
import torch

from pymllm.adapters.malformed import MALFORMED_BLOCKS
from pymllm.adapters.own_blocks import BlockContext, Blocks
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out

# -- The adapter of the block allocators: what was asked arrives, and what came back is told -----------------


ONE, BOTH = (ops.Span(1, 0, 1),), (ops.Span(1, 0, 2),)
CACHED: list[ops.Operation] = [
    ops.AllocBlocks(2),
    ops.RegisterBlocks(BOTH, (11, 22)),
    ops.ReleaseBlocks(BOTH),
]


def play(*operations: ops.Operation, **changes: int | str | bool | None) -> list[out.Outcome]:
    adapter = Blocks("x", {**Blocks.CONFIGURATIONS[0], "blocks": 3, **changes})
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


def test_blocks_are_told_with_their_sizes() -> None:
    """C1, X4: as the allocator chose them, and `None` as no room."""
    taken, failed, cached = play(ops.AllocBlocks(2), ops.AllocBlocks(2), ops.RegisterBlocks(BOTH, (11, 22)))
    sizes = {"pool_avail": 1, "evictable_blocks": 0, "free_count": 3}
    assert taken == out.Outcome(out.Slots((0, 1)), (), sizes)
    assert (failed.result, cached.result) == (out.NoRoom(), out.Done())


def test_the_observer_is_told_and_tells_the_slots() -> None:
    """C6: blocks, hashes and what it saw; the slot is free afterwards."""
    *_, evicted = play(ops.AllocBlocks(2), ops.AllocSlots(ONE), *CACHED[1:], ops.AllocBlocks(3))
    inside = {"pool_avail": 3, "evictable_blocks": 0}
    assert evicted.effects == (out.Effect("callback", (1, 0), (11, 22), sizes=inside),)
    assert evicted.sizes["free_count"] == 3


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


@pytest.mark.parametrize("form", ["list", "tuple", "int32", "int64", "tensor32", "tensor64"])
def test_ids_come_in_any_container_that_is_the_callers_again_afterwards(form: str) -> None:
    """X5: whatever is done to it then."""
    *_, books = play(
        ops.AllocBlocks(2),
        ops.RetainBlocks(BOTH, form),
        ops.RegisterBlocks(BOTH, (11, 22), (0, 11), form),
        ops.SetClock(7),
        ops.StampBlocks(BOTH, form),
        ops.ReleaseBlocks(BOTH, form),
        ops.Inspect(),
        slots=None,
    )
    assert books.result == out.BlockBooks((1, 1, 0, 0), (11, 22, -1, -1), (7, 7, 0, 0), ((11, 0), (22, 1)))


def test_another_container_is_no_program() -> None:
    """X1: an unknown form is the program's fault."""
    with pytest.raises(ProgramError, match="form is 'sack'"):
        play(ops.RetainBlocks((), "sack"))


def test_every_view_is_told() -> None:
    """C2, C4: of blocks and of slots."""
    *_, named, books, found = play(
        *CACHED[:2],
        ops.AllocSlots(BOTH),
        ops.NameStates(ONE, (11,)),
        ops.Inspect(),
        ops.FindSlots((ops.Span(0, 0, 3),)),
    )
    assert named.result == out.Done()
    assert isinstance(books.result, out.BlockBooks)
    assert books.result.slot_of_block == (1, 2, -1, -1)
    assert books.result.block_of_slot == (-1, 0, 1)
    assert (books.result.free_slots, books.result.block_of_state) == ((0,), ((11, 0),))
    assert found.result == out.FoundSlots((1, 2, -1), (True, True, False))


@pytest.mark.parametrize("how", ["one by one", "batch", "deregistered"])
def test_states_are_dropped_in_three_ways(how: str) -> None:
    """C4: the slots are free each time."""
    *_, dropped = play(ops.AllocBlocks(2), ops.AllocSlots(BOTH), ops.DropStates(BOTH, how, (5,)))
    assert (dropped.result, dropped.sizes["free_count"]) == (out.Done(), 3)


def test_states_are_copied_by_request() -> None:
    """C7: told in the order of requests, whatever row each has."""
    *_, restored, missed, live, cached = play(
        ops.AllocBlocks(2),
        ops.AllocSlots(ONE),
        ops.WriteLive(2, 1, 5, -1, 2),
        ops.SaveLive((ops.Span(2, 0, 1),), (2,)),
        ops.RestoreLive(0, ONE[0]),
        ops.RestoreLive(1, ops.Span(1, 1, 2)),
        ops.ReadLive(1),
        ops.ReadStates(1),
    )
    full, conv = (5, 7, 9), (-1, 1, 3, 5)
    assert (restored.result, missed.result) == (out.Number(1), out.Number(0))
    assert isinstance(live.result, out.States)
    assert live.result.recurrent == (full, (0, 0, 0), full, (0, 0, 0))
    assert live.result.conv_shape == (4, 2, 2)
    assert isinstance(cached.result, out.States)
    assert (cached.result.conv[2], cached.result.recurrent_dtype) == (conv, "float32")


def test_a_state_is_stored_by_layer() -> None:
    """C7: from tensors that are the caller's again."""
    *_, first, second = play(
        ops.AllocBlocks(1), ops.AllocSlots(ONE), ops.StoreState(ONE[0], 1, 3, 4), *map(ops.ReadStates, (0, 1))
    )
    assert isinstance(first.result, out.States)
    assert isinstance(second.result, out.States)
    assert (first.result.conv[2], second.result.conv[2]) == ((0,) * 4, (4,) * 4)


def test_a_reset_begins_anew_with_the_callers_part() -> None:
    """C9: clock, live states, and slots in hand."""
    program: list[ops.Operation] = [
        *(
            ops.Inspect(),
            ops.ReadLive(0),
            ops.SetClock(3),
            ops.AllocBlocks(1),
            ops.AllocSlots((ops.Span(4, 0, 1),)),
        ),
        *(
            ops.WriteLive(0, 0, 5, 6),
            ops.ReleaseBlocks((ops.Span(4, 0, 1),)),
            ops.Reset(),
            ops.Inspect(),
            ops.ReadLive(0),
        ),
    ]
    first, live, *_, again, live_again = play(*program)
    assert (again, live_again) == (first, live)


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


# -- The least context that block allocators can be in -------------------------------------------------------


def make(requests: int = 4) -> BlockContext:
    return BlockContext(requests, 4, "lru", torch.device("cpu"))


# -- Calls of the block allocators that no caller may make ---------------------------------------------------


REFUSALS = {"TypeError", "ValueError", "IndexError"}
OF_BLOCKS = {"alloc_blocks", "retain_blocks", "release_blocks", "stamp_blocks", "register_blocks"}


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
