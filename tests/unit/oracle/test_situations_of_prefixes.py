"""Which situations of prefix caches a configuration must reach."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.history.files import Header
from pymllm.oracle.situations import expected_situations, situations_of

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


@pytest.mark.parametrize("window", [1, 3, 4])
def test_a_page_is_one_token_where_nothing_says_otherwise(window: int) -> None:
    """S5: so no window has a ragged edge."""
    config = {"pool": "none", "window": window}
    said = expected(*ALL, window=window)
    assert expected_situations(Header("x", "prefix", config, ALL)) == said


def test_little_can_happen_to_what_keeps_nothing() -> None:
    """Specification, prefixes, of a cache that retains nothing."""
    assert expected(retains=False) == frozenset()
    assert expected("pool", retains=False, pool="token") == {"memory runs out"}


STATES = ("mamba", "inspect", "refusals", "faults", "bare_holds", "exact_lru")


def expected_of_states(*claims: str, track_slots: int = 3) -> frozenset[str]:
    return expected_situations(Header("x", "prefix", {"track_slots": track_slots}, claims))


def test_states_are_expected_where_there_are_some() -> None:
    """M2: other caches have none; and a match of a cache with states never ends inside a node."""
    of_states = {one.name for one in situations_of("prefix") if "mamba" in one.needs}
    assert not expected(*ALL) & of_states
    assert expected_of_states(*STATES) >= of_states
    assert "a match ends inside a node" in expected(*STATES)
    assert "a match ends inside a node" not in expected_of_states(*STATES)


@pytest.mark.parametrize(
    ("claims", "situation"),
    [
        (("inspect",), "a split of a held node leaves its state"),
        (("refusals",), "a state without a whole key is refused"),
        (("faults",), "the state pool refuses a reset"),
        (("bare_holds",), "a hold is taken where there is no state"),
        (("bare_holds",), "a state arrives under a hold"),
        (("inspect", "exact_lru"), "a stateless parent goes with its last child"),
    ],
)
def test_a_situation_of_states_is_expected_only_where_it_can_be_met(
    claims: tuple[str, ...], situation: str
) -> None:
    """One capability less, and it cannot be reached."""
    assert situation in expected_of_states("mamba", *claims)
    assert situation not in expected_of_states("mamba")


@pytest.mark.parametrize(
    "situation", ["a state above does not count", "the state pool refuses an eviction half-way"]
)
def test_one_track_slot_is_not_enough_for_everything(situation: str) -> None:
    """M7: two states cannot be at two places."""
    assert situation in expected_of_states(*STATES)
    assert situation not in expected_of_states(*STATES, track_slots=1)
