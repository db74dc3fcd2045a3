"""What a configuration must say, and what may be tested of whom."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import Key
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.prefix_books import PrefixBooks


def books(*claims: str, **config: Any) -> PrefixBooks:
    return PrefixBooks(Header("x", "prefix", {"page_size": 1, **config}, claims), Evidence())


@pytest.mark.parametrize(
    ("claims", "config", "message"),
    [
        ((), {"page_size": 0}, "page_size is 0"),
        ((), {"page_size": "1"}, "page_size is '1'"),
        (("swa",), {"window": 0}, "window is 0"),
        ((), {"window": 4}, "claims swa"),
        ((), {"pool": "host"}, "pool is 'host'"),
        (("pool",), {}, "pool is none"),
        ((), {"pool": "token", "slots": 4}, "pool is token"),
        (("pool",), {"pool": "token"}, "slots is None"),
        (("pool",), {"pool": "swa", "slots": 4}, "swa_slots is None"),
        (("pool",), {"page_size": 2, "pool": "token", "slots": 3}, "slots is 3; it must"),
        (("pool",), {"page_size": 2, "pool": "swa", "slots": 2, "swa_slots": 1}, "swa_slots is 1; it"),
        (("mamba",), {"track_slots": 0}, "track_slots is 0"),
        (("mamba", "swa"), {"track_slots": 3, "window": 4}, "no window"),
        (("mamba", "pool"), {"track_slots": 3, "pool": "swa", "slots": 4, "swa_slots": 4}, "no slots with"),
    ],
)
def test_a_configuration_that_cannot_be_judged_is_refused(
    claims: tuple[str, ...], config: dict[str, Any], message: str
) -> None:
    """A history must say what it is of."""
    with pytest.raises(ProgramError, match=message):
        books(*claims, **config)


def test_keys_are_those_that_are_claimed() -> None:
    """K1: namespaces and tuples only where the adapter knows them."""
    with pytest.raises(ProgramError, match="namespaces"):
        books().path_of(Key((1,), "a"))
    with pytest.raises(ProgramError, match="tuples"):
        books().path_of(Key(((1, 2),)))
    assert books("extra_key", "bigrams").path_of(Key(((1, 2),), "a")).space == ("a", 2)


def test_sizes_are_those_of_cache_and_pools() -> None:
    """R7, A2, M6, M7: of everything that there is."""
    assert set(books("pool", pool="token", slots=4).sizes()) >= {"total_size", "available_size"}
    hybrid = books("mamba", track_slots=3).sizes()
    assert (hybrid["mamba_evictable_size"], hybrid["available_track_slots"]) == (0, 3)


def test_a_law_that_is_not_claimed_is_never_tested() -> None:
    """H2 without hashes: neither counted nor refused."""
    found = books()
    found.count("H2")
    found.expect("H2", "a hash", 1, 2)
    found.demand("H2", False, "a hash", "right", lambda: "wrong")
    found.forbid("H2", "a hash", "wrong")
    assert not found.evidence.exercised


@pytest.mark.parametrize(
    ("claims", "config", "follows"),
    [
        ((), {}, False),
        (("exact_lru",), {}, True),
        ((), {"retains": False}, True),
        (("pool",), {"pool": "token", "slots": 4}, True),
        (("pool", "swa"), {"pool": "token", "slots": 4, "window": 2}, False),
        (("pool", "swa"), {"pool": "swa", "slots": 4, "swa_slots": 4, "window": 2}, True),
    ],
)
def test_victims_are_told_by_their_order_or_by_the_pool(
    claims: tuple[str, ...], config: dict[str, Any], follows: bool
) -> None:
    """R5, S3: what nobody can tell cannot be followed."""
    assert books(*claims, **config).can_follow_evictions is follows
