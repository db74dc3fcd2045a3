"""Which situations a configuration must reach."""

from __future__ import annotations

from typing import Any

import pytest
from told_program import ToldProgram

from pymllm.oracle.history import Header
from pymllm.oracle.operations import Evict, Inspect, Key, Lock, Match
from pymllm.oracle.prefix_situations import expected_situations

ALL = ("pool", "swa", "extra_key", "hashes", "refusals", "faults", "callbacks", "inspect", "exact_lru")


def expected(*claims: str, **config: Any) -> frozenset[str]:
    return expected_situations(Header("x", "prefix", {"page_size": 1, "pool": "none", **config}, claims))


def test_more_is_expected_of_who_claims_more() -> None:
    """What cannot happen without a capability is not asked for."""
    assert expected() < expected(*ALL) < expected(*ALL, page_size=2, pool="swa", window=4)


@pytest.mark.parametrize(
    ("claims", "config", "situation"),
    [
        ((), {"page_size": 4}, "an unaligned tail stays the caller's"),
        (("pool",), {"pool": "token"}, "memory runs out"),
        (("refusals",), {}, "a stale node is used"),
        (("extra_key",), {}, "equal tokens are cached in another space only"),
        (("inspect",), {}, "a held path is split"),
        (("inspect", "hashes"), {}, "a hashed node is split"),
        (("callbacks", "faults"), {}, "a callback raises"),
        (("pool", "faults"), {"pool": "token"}, "the pool refuses a reset"),
        (("swa",), {"window": 4}, "an insert is refused whole"),
        (("swa", "refusals"), {"window": 4}, "a wrong token is refused"),
        (("swa", "inspect"), {"window": 4}, "a hold splits at the edge of its window"),
        (("swa", "inspect"), {"window": 4}, "an edge node is split"),
        (("swa", "pool", "faults"), {"window": 4, "pool": "token"}, "the pool refuses displaced slots"),
        (("swa", "pool"), {"window": 4, "pool": "swa"}, "a tombstone is revived under a hold"),
        (
            ("swa", "pool", "faults"),
            {"window": 4, "pool": "swa"},
            "the pool refuses a revival under a hold",
        ),
        (
            ("swa", "pool", "refusals"),
            {"window": 4, "pool": "swa"},
            "halves that were not returned are refused",
        ),
    ],
)
def test_a_situation_is_expected_only_where_it_can_be_met(
    claims: tuple[str, ...], config: dict[str, Any], situation: str
) -> None:
    """One capability or one key of the configuration less, and it cannot be reached."""
    assert situation in expected(*claims, **config)
    assert situation not in expected()
    for claim in claims:
        fewer = [other for other in claims if other != claim]
        if claim not in ("swa", "pool"):
            assert situation not in expected(*fewer, **config)


def test_a_window_of_one_page_has_no_edge_to_split() -> None:
    """S5: the edge node is the last one."""
    assert "an edge node is split" not in expected("swa", "inspect", window=4, page_size=4)


def test_little_can_happen_to_what_keeps_nothing() -> None:
    """Section 6 of the contract."""
    assert expected(retains=False) == frozenset()
    assert expected("pool", retains=False, pool="token") == {"memory runs out"}


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
