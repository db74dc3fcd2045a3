"""When the situations of matches and evictions count as met."""

from __future__ import annotations

from told_program import ToldProgram

from pymllm.oracle.operations import Evict, Inspect, Key, Lock, Match


def test_situations_of_matches_are_met() -> None:
    """R2, S1, K1: equal tokens elsewhere, and a dead window that leaves nothing."""
    told = ToldProgram("radix-window", window=2)
    told.put(5, extra_key="a")
    told.put(7, 7, 7)
    for tokens in ((7,), (7, 7, 7), (5,)):
        told(Match(Key(tokens)))
    told(Evict(0, 2))
    told(Match(Key((7, 7))))
    evidence, law = told.judged()
    assert law is None
    assert evidence.reached["equal tokens are cached in another space only"] == 1
    assert evidence.reached["a dead window leaves no match"] == 1


def test_a_match_may_end_inside_a_node_or_before_a_dead_window() -> None:
    """R2, S1: which only who was shown the nodes can tell."""
    told = ToldProgram("radix-window", window=2)
    told.put(9, 9, 9, 9)
    told(Inspect())
    told(Lock(told(Match(Key((9,))))))
    for tokens in ((9, 9, 9), (9, 9, 9, 9)):
        told(Match(Key(tokens)))
    told(Evict(0, 2))
    told(Match(Key((9, 9, 9))))
    evidence, law = told.judged()
    assert law is None
    assert evidence.reached["a match ends inside a node"] == 2
    assert evidence.reached["a match ends before a dead window"] == 1
