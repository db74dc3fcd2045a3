"""The samples of the smoke test."""

from __future__ import annotations

import pytest

from pymllm.adapters.base import CAPABILITIES
from pymllm.conformance.smoke import LEGAL_RESULTS, make_sample
from pymllm.history.operations import KINDS, OPERATIONS_OF, AllocTrack, FreeTrack, Insert
from pymllm.history.outcomes import RESULTS


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_speaks_the_language_of_its_kind(kind: str) -> None:
    """Only operations of the kind, each with results that exist."""
    for step in make_sample(kind, {"page_size": 4, "track_slots": 1}, frozenset(CAPABILITIES)).values():
        assert type(step.operation) in OPERATIONS_OF[kind]
        assert set(LEGAL_RESULTS[type(step.operation)]) <= set(RESULTS)
        assert step.is_claimed


def test_what_is_not_claimed_is_asked_for_all_the_same() -> None:
    """It must be answered as unsupported; a cache without a pool stores the tokens themselves."""
    steps = make_sample("prefix", {"page_size": 1}, frozenset()).values()
    assert {step.needs for step in steps if not step.is_claimed} == {
        "pool",
        "hashes",
        "inspect",
        "faults",
        "mamba",
    }
    assert [step.operation.slots for step in steps if isinstance(step.operation, Insert)] == [None]


def test_a_key_comes_with_a_state_where_it_must() -> None:
    """M1: the state is the first track slot, and the second is given back after the reset."""
    for claims, has_state in (({"mamba"}, True), ({"mamba", "bare_inserts"}, False)):
        steps = make_sample("prefix", {"page_size": 1, "track_slots": 1}, claims)
        (insert,) = [step.operation for step in steps.values() if isinstance(step.operation, Insert)]
        assert (insert.state is not None) == has_state
        freed = [step.operation.slot.step for step in steps.values() if isinstance(step.operation, FreeTrack)]
        taken = [number for number, step in steps.items() if isinstance(step.operation, AllocTrack)]
        assert freed == taken[-1:]
        assert len(taken) == 1 + has_state


def test_track_slots_are_asked_for_where_there_are_some() -> None:
    """A pool without any has none to give."""
    for count in (0, 2):
        steps = make_sample("states", {"track_slots": count}, frozenset()).values()
        assert any(isinstance(step.operation, AllocTrack) for step in steps) == bool(count)
