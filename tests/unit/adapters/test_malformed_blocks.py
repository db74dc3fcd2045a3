"""Calls of the block allocators that no caller may make."""

from __future__ import annotations

import pytest

from pymllm.adapters.malformed import MALFORMED_BLOCKS
from pymllm.adapters.own_blocks import Blocks
from pymllm.history.operations import AllocBlocks, AllocSlots, Inspect, Malformed, ReadStates, Span
from pymllm.history.outcomes import Failed, Unsupported

REFUSALS = {"TypeError", "ValueError", "IndexError"}
OF_BLOCKS = {"alloc_blocks", "retain_blocks", "release_blocks", "stamp_blocks", "register_blocks"}


def with_a_state(**changes: int | str | bool | None) -> Blocks:
    made = Blocks("x", {**Blocks.CONFIGURATIONS[0], **changes})
    made.apply(1, AllocBlocks(2))
    made.apply(2, AllocSlots((Span(1, 0, 1),)))
    return made


@pytest.mark.parametrize(("call", "wrong"), MALFORMED_BLOCKS)
def test_each_is_refused_and_changes_nothing(call: str, wrong: str) -> None:
    """X1: with everything that the call needs at hand, it raises what malformed arguments raise."""
    adapter = with_a_state()
    looks = (Inspect(), ReadStates(0), ReadStates(1))
    before = [adapter.apply(3 + at, look) for at, look in enumerate(looks)]
    result = adapter.apply(9, Malformed(call, wrong)).result
    assert isinstance(result, Failed)
    assert result.error in REFUSALS
    assert [adapter.apply(10 + at, look) for at, look in enumerate(looks)] == before


@pytest.mark.parametrize(("call", "wrong"), [call for call in MALFORMED_BLOCKS if call[0] not in OF_BLOCKS])
def test_what_is_about_slots_is_asked_only_where_there_are_some(call: str, wrong: str) -> None:
    """X1: the adapter cannot make such a call without."""
    assert isinstance(with_a_state(slots=None).apply(3, Malformed(call, wrong)).result, Unsupported)


def test_a_store_needs_a_slot() -> None:
    """X1: else it would be refused for another reason."""
    fresh = Blocks("x", Blocks.CONFIGURATIONS[0])
    assert isinstance(fresh.apply(1, Malformed("store_state", "a list")).result, Unsupported)
    assert isinstance(fresh.apply(2, Malformed("store_state", "a teapot")).result, Unsupported)
