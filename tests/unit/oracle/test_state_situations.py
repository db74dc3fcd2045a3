"""When the situations of states count as met."""

from __future__ import annotations

from told_program import HYBRID, ToldProgram

from pymllm.history.operations import Evict, Inspect, Key, Lock, Match, Reset, Unlock
from pymllm.oracle.situations import situations_of


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
    of_states = {one.name for one in situations_of("prefix") if "mamba" in one.needs}
    met = {name: count for name, count in evidence.reached.items() if name in of_states}
    assert met == {
        "a hold is taken where there is no state": 1,
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


def test_what_was_there_before_a_state_is_noticed() -> None:
    """M1, M2, M4: several holds, a state that was evicted, and one that a match passes."""
    told = ToldProgram("mamba", **HYBRID)
    node = told.put(7)
    first, second = told(Lock(node)), told(Lock(node))
    told.put_state(7)
    told(Unlock(first))
    told(Unlock(second))
    told.put_state(7, 7)
    told(Match(Key((7, 7))))
    told(Evict(0, 1))  # the match has made the upper one the older
    told.put_state(7)
    evidence, law = told.judged()
    assert law is None
    assert evidence.reached["a state arrives under several holds"] == 1
    assert evidence.reached["a match passes a state"] == 1
    assert evidence.reached["a state comes back to where one was evicted"] == 1
    told(Evict(0, 1))
    told(Reset())
    told.put_state(7)
    evidence, _ = told.judged()
    assert evidence.reached["a state comes back to where one was evicted"] == 1
