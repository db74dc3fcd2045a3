"""What callers do with states."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pymllm.conformance.acting import acts_of, make_machine
from pymllm.conformance.prefix_machine import PrefixMachine, StateActs
from pymllm.history.operations import AllocTrack, Evict, Fault, FreeTrack, Insert, Lock, Match, Reset
from pymllm.history.outcomes import Failed, Inserted

CONFIG = {"page_size": 2, "window": None, "pool": "token", "slots": 24, "track_slots": 2}


@pytest.fixture
def machine() -> Any:
    made: Any = make_machine(PrefixMachine, "mamba", CONFIG)()
    yield made
    made.teardown()


def types(machine: Any) -> Counter[type]:
    return Counter(type(step.operation) for step in machine.examiner.history.steps)


def inserts(machine: Any) -> list[tuple[Insert, Any]]:
    steps = machine.examiner.history.steps
    return [(step.operation, step.outcome.result) for step in steps if isinstance(step.operation, Insert)]


def serve(machine: Any, pages: int = 4, keep: int = 1) -> None:
    PrefixMachine.serve(machine, pages=pages, turn=1, other=1, style=0, keep=keep)


@pytest.mark.parametrize("name", acts_of(StateActs))
def test_they_are_acts_only_where_there_are_states(name: str) -> None:
    """M1: the machine of another cache never plays them."""
    assert acts_of(PrefixMachine)[name].act_needs in ("has_states", "can_fail_states")
    other: Any = make_machine(PrefixMachine, "radix", {**CONFIG, "swa_slots": 0})()
    assert (other.has_states, other.can_fail_states) == (False, False)
    other.teardown()


def test_a_request_is_matched_held_computed_and_handed_over(machine: Any) -> None:
    """M1, M2: the second finds the state of the first."""
    serve(machine, pages=4)
    serve(machine, pages=8)
    assert [operation.state is not None for operation, _ in inserts(machine)] == [True, True]
    assert types(machine)[Lock] == 3
    assert machine.judge.books.tracks.ends.slots.keys() == {
        path for path in machine.model.pages if len(path.tokens) in (4, 8)
    }


def test_a_request_without_a_track_slot_caches_kv_only(machine: Any) -> None:
    """M1: a state is a bonus."""
    PrefixMachine.hoard_track_slots(machine, quarters=4)
    serve(machine, keep=0)
    ((operation, result),) = inserts(machine)
    assert operation.state is None
    assert isinstance(result, Inserted)


def test_a_request_may_evict_a_state_for_its_own(machine: Any) -> None:
    """M5: the least recent one."""
    for pages in (4, 6, 8):
        serve(machine, pages=pages, keep=2)
    assert [operation.state is not None for operation, _ in inserts(machine)] == [True, True, True]
    assert types(machine)[Evict] == 1


def test_a_state_may_come_later(machine: Any) -> None:
    """M1, M4: to KV that is stored, and to a node that is held."""
    PrefixMachine.add_state_to_stored(machine, pages=4, turn=1, other=1, style=0)
    PrefixMachine.add_state_under_hold(machine, pick=0, style=0)
    assert not inserts(machine)
    PrefixMachine.insert_fresh(machine, pages=4, turn=1, other=1, style=0)
    machine.lock(machine.live[-1].step)
    PrefixMachine.add_state_under_hold(machine, pick=0, style=0)
    PrefixMachine.add_state_to_stored(machine, pages=4, turn=1, other=1, style=0)
    assert [result.state_exists for _, result in inserts(machine)] == [False, False, True]
    assert machine.model.sizes()["mamba_protected_size"] == 1
    assert types(machine)[AllocTrack] == 2


def test_a_state_comes_under_several_holds(machine: Any) -> None:
    """M4: the last hold still protects it; where there is no key or no room nothing is done."""
    PrefixMachine.add_state_under_holds(machine, pages=0, turn=1, style=0, keep=0)
    assert not inserts(machine)
    PrefixMachine.add_state_under_holds(machine, pages=4, turn=1, style=0, keep=3)
    assert [operation.state is not None for operation, _ in inserts(machine)] == [False, True]
    assert len(machine.model.holds) == 3
    assert machine.model.sizes()["mamba_protected_size"] == 1
    PrefixMachine.add_state_under_holds(machine, pages=2, turn=0, style=0, keep=1)
    assert len(machine.model.holds) == 3


def test_fresh_slots_bring_a_state_unmatched(machine: Any) -> None:
    """M1: an empty key brings none."""
    PrefixMachine.insert_with_state(machine, pages=0, turn=1, other=1, style=0)
    PrefixMachine.insert_with_state(machine, pages=4, turn=1, other=1, style=0)
    assert [operation.state is not None for operation, _ in inserts(machine)] == [False, True]
    assert not types(machine)[Match]


@pytest.mark.parametrize("pages", [0, 4])
def test_a_bad_state_is_refused(machine: Any, pages: int) -> None:
    """M1, X1: and its track slot goes back."""
    PrefixMachine.insert_state_badly(machine, pages=pages, turn=1, style=0)
    ((operation, result),) = inserts(machine)
    assert operation.state is not None
    assert isinstance(result, Failed)
    assert types(machine)[FreeTrack] == 1


def test_hoarded_track_slots_go_back(machine: Any) -> None:
    """M7: those of the caller's only."""
    serve(machine)
    PrefixMachine.hoard_track_slots(machine, quarters=1)
    assert machine.judge.books.tracks.room() == 0
    PrefixMachine.give_hoarded_tracks_back(machine)
    assert machine.judge.books.tracks.room() == 1


def test_the_pool_of_states_is_let_fail(machine: Any) -> None:
    """X2, X7: in an eviction, and now and then in a reset."""
    serve(machine, keep=2)
    PrefixMachine.evict_refused_by_state_pool(machine, tokens=0, states=1, nth=1)
    assert machine.examiner.judge.evidence.reached["the state pool refuses an eviction"] == 1
    PrefixMachine.reset_refused_by_state_pool(machine, rare=1, nth=1)
    assert not types(machine)[Reset]
    PrefixMachine.reset_refused_by_state_pool(machine, rare=0, nth=1)
    assert machine.examiner.judge.evidence.reached["the state pool refuses a reset"] == 1
    assert types(machine)[Fault] == 2
