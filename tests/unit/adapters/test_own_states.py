"""The adapter of `GDNPool`: what was asked arrives, and what came back is told."""

from __future__ import annotations

import pytest

from pymllm.adapters.own_pools import GDNStates
from pymllm.errors import InvariantViolation
from pymllm.history.operations import (
    AllocTrack,
    Clear,
    CopyStates,
    FreeTrack,
    Operation,
    ReadStates,
    ResetStates,
    Span,
    WriteState,
)
from pymllm.history.outcomes import Done, Failed, NoRoom, Outcome, Slots, States

CONFIG: dict[str, int | str | bool | None] = {
    **{"max_reqs": 1, "layers": 2, "v_heads": 1, "k_dim": 2, "v_dim": 1, "conv_dim": 1, "kernel": 3},
    **{"dtype": "bfloat16", "track_slots": 1},
}
WORKING, TRACK = Span(0, 1, 2), Span(1, 0, 1)
NO_SLOT = {"max_track_slots": 1, "available_track_slots": 0}
ONE_SLOT = {"max_track_slots": 1, "available_track_slots": 1}


def make() -> GDNStates:
    return GDNStates("x", CONFIG)


def play(adapter: GDNStates, *operations: Operation) -> list[Outcome]:
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


def test_track_slots_are_told_with_what_is_available() -> None:
    """P5, X4: the slot as the pool chose it, and `None` as no room."""
    taken, failed, freed, twice = play(make(), AllocTrack(), AllocTrack(), FreeTrack(TRACK), FreeTrack(TRACK))
    assert taken == Outcome(Slots((2,)), (), NO_SLOT)
    assert failed == Outcome(NoRoom(), (), NO_SLOT)
    assert freed == Outcome(Done(), (), ONE_SLOT)
    assert isinstance(twice.result, Failed)
    assert (twice.result.error, twice.sizes) == ("OwnershipError", ONE_SLOT)


@pytest.mark.parametrize("form", ["int64", "int32", "uint8", "int16 strided"])
def test_states_are_written_copied_and_reset(form: str) -> None:
    """P4, P5: every element in its place, and the form of both views told."""
    write = WriteState(1, WORKING, 4, -3, 2)
    copy, reset = CopyStates((WORKING,), (TRACK,), form), ResetStates((WORKING,), form)
    *_, copied, _, zeroed, other = play(
        make(), AllocTrack(), write, copy, ReadStates(1), reset, ReadStates(1), ReadStates(0)
    )
    shapes = ((3, 1, 1, 2), (3, 1, 2), "float32", "bfloat16")
    blank = (0, 0)
    assert copied.result == States((blank, (4, 6), (4, 6)), (blank, (-3, -1), (-3, -1)), *shapes)
    assert zeroed.result == States((blank, blank, (4, 6)), (blank, blank, (-3, -1)), *shapes)
    assert other.result == States((blank,) * 3, (blank,) * 3, *shapes)


def test_a_clear_takes_everything_back() -> None:
    """X7: slots and states."""
    *_, cleared, read = play(make(), AllocTrack(), WriteState(0, WORKING, 1, 1), Clear(), ReadStates(0))
    assert cleared == Outcome(Done(), (), ONE_SLOT)
    assert isinstance(read.result, States)
    assert read.result.recurrent == read.result.conv == ((0, 0),) * 3


def test_the_audit_looks_inside() -> None:
    """P5: the books of the track slots."""
    adapter = make()
    assert set(adapter.audit()) == {"P4", "P5", "X3"}
    adapter.pool._free_track_slots.clear()
    with pytest.raises(InvariantViolation, match="P5"):
        adapter.audit()
