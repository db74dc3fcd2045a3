"""Adapter of `MambaRadixCache`."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.own_caches import Mamba
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Evict,
    Fault,
    FreeTrack,
    Insert,
    Inspect,
    Key,
    Match,
    ReadStates,
    Reset,
    Span,
    WriteState,
)
from pymllm.history.outcomes import (
    Done,
    Effect,
    Evicted,
    Inserted,
    Inspected,
    Matched,
    NoRoom,
    Slots,
    States,
)
from pymllm.oracle.laws import LAWS, Way

each_configuration = pytest.mark.parametrize("config", Mamba.CONFIGURATIONS)
STRUCTURAL = {law.id for law in LAWS if Way.STRUCTURE in law.ways}
STATE = Span(2, 0, 1)


def make(config: Any = None) -> Mamba:
    return Mamba("mamba", config or Mamba.CONFIGURATIONS[0])


def fill(adapter: Mamba, tokens: int = 4) -> Mamba:
    """Cache one key and the state at its end; the steps are 1 to 3."""
    slots: tuple[Span, ...] = (Span(0, 1000, 1000 + tokens),)
    if adapter.pool is not None:
        adapter.apply(1, Alloc(tokens))
        slots = (Span(1, 0, tokens),)
    adapter.apply(2, AllocTrack())
    adapter.apply(3, Insert(Key((7,) * tokens), slots, state=STATE))
    return adapter


@each_configuration
def test_every_configuration_is_built_as_it_says(config: dict[str, Any]) -> None:
    """Page, pool and track slots are the configuration's, and what is claimed is known."""
    adapter = make(config)
    assert adapter.cache.page_size == config["page_size"]
    assert (adapter.pool is None) == (config["pool"] == "none")
    assert adapter.states.inner.max_track_slots == config["track_slots"]
    assert {"mamba", "lru_lists"} < adapter.capabilities <= set(CAPABILITIES)
    assert ("pool" in adapter.capabilities) == ("engine" in adapter.capabilities) == bool(adapter.pool)


def test_small_and_large_pools_of_states_are_examined() -> None:
    """M7: one track slot, a few, and more than there are pages, for both page sizes."""
    found = {(config["page_size"], config["track_slots"]) for config in Mamba.CONFIGURATIONS}
    assert found == {(page, slots) for page in (1, 4) for slots in (1, 3, 32)}


def test_track_slots_are_those_of_the_pool() -> None:
    """P5, M7: handed out, given back, and gone when there are none."""
    adapter = make()
    assert [adapter.apply(step, AllocTrack()).result for step in (1, 2, 3, 4)] == [
        *(Slots((slot,)) for slot in (2, 3, 4)),
        NoRoom(),
    ]
    freed = adapter.apply(5, FreeTrack(Span(3, 0, 1)))
    assert (freed.result, freed.effects) == (Done(), ())
    assert freed.sizes["available_track_slots"] == 1


def test_track_slots_hold_what_was_written() -> None:
    """E1: row 0, the one working row, and the track slots; a read changes nothing that an audit would see."""
    adapter = make()
    adapter.apply(2, AllocTrack())
    assert adapter.apply(3, WriteState(0, STATE, 5, -6)).result == Done()
    read = adapter.apply(4, ReadStates(0)).result
    assert isinstance(read, States)
    assert read.recurrent == ((0,), (0,), (5,), (0,), (0,))
    assert read.conv == ((0,), (0,), (-6,), (0,), (0,))
    assert adapter.audit() == ()


def test_a_free_names_exactly_one() -> None:
    """P5: several at once have no meaning."""
    with pytest.raises(ProgramError, match="one"):
        make().apply(1, FreeTrack(Span(0, 2, 4)))


@pytest.mark.parametrize("slots", [2, 3])
def test_a_state_is_handed_over_and_found(slots: int) -> None:
    """M1, M2: as either integer; the tensor is overwritten at once (X5)."""
    adapter = make()
    for step in range(10, 8 + slots):
        adapter.apply(step, AllocTrack())
    fill(adapter)
    matched = adapter.apply(4, Match(Key((7,) * 4))).result
    assert isinstance(matched, Matched)
    assert (matched.prefix_len, matched.state, matched.branching) == (4, slots, None)
    beyond = adapter.apply(5, Insert(Key((7,) * 4), (Span(4, 0, 4),))).result
    assert beyond == Inserted(4, (), 4, False)


def test_kv_without_a_state_is_told() -> None:
    """M2: how long it is; the root has no state."""
    adapter = make()
    adapter.apply(1, Alloc(2))
    adapter.apply(2, Insert(Key((7, 7)), (Span(1, 0, 2),)))
    assert adapter.apply(3, Match(Key((7, 7)))).result == Matched((), 0, 0, "int64", None, 2)


def test_what_goes_back_is_seen() -> None:
    """M5, X2: the state first, then its KV."""
    outcome = fill(make()).apply(4, Evict(0, 1))
    assert outcome.result == Evicted(4, 0, 1)
    assert [effect.call for effect in outcome.effects] == ["free_state", "free", "callback"]
    assert outcome.effects[0] == Effect("free_state", (2,))
    assert outcome.sizes["available_track_slots"] == 3


def test_a_call_of_the_pool_of_states_can_fail() -> None:
    """X2, X7: it has taken nothing, and the next works again."""
    adapter = fill(make())
    adapter.apply(4, Fault("free_state"))
    refused = adapter.apply(5, Evict(0, 1))
    assert (refused.result.error, refused.effects) == ("InjectedFault", ())
    assert refused.sizes["mamba_evictable_size"] == 1
    assert adapter.apply(6, Reset()).effects == (Effect("free_state", (2,)), Effect("free", (1, 2, 3, 4)))


def test_nodes_and_lists_are_shown() -> None:
    """M3, M8: with the states at their ends."""
    adapter = fill(make())
    adapter.apply(4, Insert(Key((7,) * 3), (Span(1, 0, 3),)))
    shown = adapter.apply(5, Inspect()).result
    assert isinstance(shown, Inspected)
    upper, lower = shown.nodes
    assert [(view.tokens, view.state) for view in shown.nodes] == [((7,) * 3, None), ((7,), 2)]
    assert (shown.full_lru, shown.mamba_lru) == ((upper.id, lower.id), (lower.id,))


@each_configuration
def test_audits_walk_tree_lists_and_pools(config: dict[str, Any]) -> None:
    """M8, A2: the ids are of laws with a structural check; without a state nothing is said of states."""
    adapter = make(config)
    empty = set(adapter.audit())
    laws = set(fill(adapter).audit())
    assert empty < laws <= STRUCTURAL
    assert empty == ({"A1", "A2"} & laws)
    assert laws >= {"M4", "M5", "M6", "M7", "M8", "R9"}
    assert ("R1" in laws) == (bool(adapter.pool) and adapter.is_checked)
    adapter.apply(4, Inspect())
    assert adapter.audit() == ()


def test_an_audit_finds_what_is_wrong_inside() -> None:
    """M6: the walk is the one of `pymllm.invariants`."""
    adapter = fill(make())
    adapter.cache._states.evictable += 1
    with pytest.raises(InvariantViolation, match="M6"):
        adapter.audit()
