"""Which situations of states a configuration must reach."""

from __future__ import annotations

import pytest
from told_program import HYBRID, ToldProgram

from pymllm.oracle.history import Header
from pymllm.oracle.operations import Evict, Inspect, Lock
from pymllm.oracle.prefix_situations import expected_situations
from pymllm.oracle.state_situations import expected_state_situations

ALL = ("mamba", "inspect", "refusals", "faults")


def expected(*claims: str, track_slots: int = 3) -> frozenset[str]:
    return expected_state_situations(Header("x", "prefix", {"track_slots": track_slots}, claims))


def test_nothing_of_states_is_expected_where_there_are_none() -> None:
    """M2: other caches have none."""
    assert expected("inspect", "refusals", "faults") == frozenset()


def test_they_are_part_of_what_is_expected() -> None:
    """M2: and a match of a cache with states never ends inside a node."""
    header = Header("x", "prefix", {"page_size": 1, "track_slots": 3}, ALL)
    assert expected(*ALL) < expected_situations(header)
    assert "a match ends inside a node" not in expected_situations(header)


@pytest.mark.parametrize(
    ("claims", "situation"),
    [
        (("inspect",), "a split of a held node leaves its state"),
        (("refusals",), "a state without a whole key is refused"),
        (("faults",), "the state pool refuses a reset"),
    ],
)
def test_a_situation_is_expected_only_where_it_can_be_met(claims: tuple[str, ...], situation: str) -> None:
    """One capability less, and it cannot be reached."""
    assert situation in expected("mamba", *claims)
    assert situation not in expected("mamba")


@pytest.mark.parametrize(
    "situation", ["a state above does not count", "the state pool refuses an eviction half-way"]
)
def test_one_track_slot_is_not_enough_for_everything(situation: str) -> None:
    """M7: two states cannot be at two places."""
    assert situation in expected(*ALL)
    assert situation not in expected(*ALL, track_slots=1)


def test_what_states_meet_is_noticed() -> None:
    """M1, M4, M5: each once, where it happens."""
    told = ToldProgram("mamba", **HYBRID)
    lower = told.put(7, 7, 7)
    told(Lock(lower))
    told.put_state(7)
    told.put_state(7, 7)
    told.put_state(7, 7, 7)
    told(Inspect())
    told(Evict(0, 1))
    told(Evict(0, 9))
    evidence, law = told.judged()
    assert law is None
    met = {name: count for name, count in evidence.reached.items() if name in expected(*ALL)}
    assert met == {
        "a state arrives at its place": 3,
        "a state arrives under a hold": 1,
        "a state above does not count": 2,
        "several states lie on one path": 1,
        "a node keeps its KV without its state": 2,
        "a state goes while its KV is held": 2,
        "an eviction spares a locked state": 2,
        "a state is left for an older one": 1,
    }


def test_a_parent_that_has_no_state_goes_with_its_child() -> None:
    """M5: seen where nodes are."""
    told = ToldProgram("mamba", **HYBRID)
    told.put_state(7, 7)
    told.put(7)
    told(Inspect())
    told(Evict(0, 1))
    evidence, law = told.judged()
    assert law is None
    assert evidence.reached["a stateless parent goes with its last child"] == 1
