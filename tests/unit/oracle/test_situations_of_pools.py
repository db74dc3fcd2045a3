"""Which situations of pools, keys and hashes a configuration must reach."""

from __future__ import annotations

import pytest

from pymllm.history.files import Header
from pymllm.oracle.situations import expected_situations


def expected(claims: str, page_size: int = 1) -> frozenset[str]:
    return expected_situations(Header("x", "slots", {"page_size": page_size}, tuple(claims.split())))


@pytest.mark.parametrize(
    ("situation", "claims", "page_size"),
    [
        ("need merges", "merges", 1),
        ("a group closes", "groups", 1),
        ("padding is refused", "refusals", 1),
        ("a double free inside a group is refused", "refusals groups", 1),
        ("a slot named twice is refused", "refusals", 1),
        ("one slot frees its page", "", 4),
        ("halves move", "swa", 1),
        ("halves move inside a group", "swa groups", 1),
        ("a half that is gone is refused", "swa refusals", 1),
        ("a move across pages is refused", "swa refusals", 4),
    ],
)
def test_a_situation_is_expected_where_its_capabilities_are_claimed(
    situation: str, claims: str, page_size: int
) -> None:
    """Nobody is asked to reach what it does not claim, or what its pages cannot show."""
    claimed = claims.split()
    assert situation in expected(f"pool {claims}", page_size)
    for missing in claimed:
        assert situation not in expected(" ".join({"pool", *claimed} - {missing}), page_size)
    if "page" in situation or "twice" in situation:
        assert situation not in expected(f"pool {claims}", 5 - page_size)


def test_the_plainest_allocator_has_situations_to_reach() -> None:
    """Silence about a situation that never arose would mean nothing."""
    assert {"the pool is exhausted", "an alloc fails"} <= expected("pool")
