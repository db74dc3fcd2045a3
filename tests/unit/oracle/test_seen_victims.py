"""Slots that went back to the pool, as pages."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.errors import InvariantViolation
from pymllm.history.files import Header
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_model import Path, Space
from pymllm.oracle.prefix_victims import Taken
from pymllm.oracle.seen_effects import SeenEffects
from pymllm.oracle.seen_victims import SeenVictims, check_victims, read_victims, tokens_of

WHOLE = Path(Space(), (1, 1, 2, 2))
END, TOP = WHOLE, WHOLE.upto(2)


def books(pool: str = "swa", window: int | None = 2) -> PrefixBooks:
    """Cache two pages of two in slots 2 to 5; slots 6 and 7 are the caller's, 8 and 9 free."""
    config: dict[str, Any] = {"page_size": 2, "window": window, "pool": pool, "slots": 8, "swa_slots": 8}
    claims = ("swa", "exact_lru") if pool == "none" else ("swa", "pool", "exact_lru")
    made = PrefixBooks(Header("x", "prefix", config, claims), Evidence())
    made.model.commit_insert(made.model.plan_insert(WHOLE, (2, 3, 4, 5)))
    if pool != "none":
        made.ledger.hand_out([1, 2, 3], [1, 2, 3])
        for end in (TOP, END):
            made.ledger.adopt(end, made.model.pages[end].slots)
    return made


def seen(freed: list[int], halves: list[int] | None = None) -> SeenEffects:
    return SeenEffects(["free"], freed, halves or [])


def test_pages_are_named_by_their_slots() -> None:
    """R5, S2: a half of a page that goes whole is no tombstone."""
    assert read_victims(books(), seen([5, 4], [2, 3, 4, 5]), 2, 4) == SeenVictims(
        frozenset({END}), frozenset({TOP}), 2, 4
    )


def test_what_no_pool_sees_is_unknown() -> None:
    """S2: windows without halves, and everything without a pool."""
    assert read_victims(books("none"), seen([])) == SeenVictims(None, None)
    assert read_victims(books("none", None), seen([])) == SeenVictims(None, frozenset())
    assert read_victims(books("token"), seen([4, 5])) == SeenVictims(frozenset({END}), None)
    assert read_victims(books("swa", None), seen([4, 5])) == SeenVictims(frozenset({END}), frozenset())


@pytest.mark.parametrize(
    ("effects", "law"),
    [
        (seen([4, 5, 4]), "A2"),
        (seen([6, 7]), "R4"),
        (seen([8, 9]), "A2"),
        (seen([4]), "R5"),
        (seen([], [4]), "S2"),
        (seen([], [4, 5, 5]), "A7"),
        (seen([], [6, 7]), "R4"),
        (seen([], [8, 9]), "A7"),
    ],
)
def test_slots_that_are_not_the_caches_own_whole_pages_are_refused(effects: SeenEffects, law: str) -> None:
    """R4, R5, S2, A2, A7: each once, and no part of a page."""
    with pytest.raises(InvariantViolation) as refused:
        read_victims(books(), effects)
    assert refused.value.law == law


def test_halves_are_no_business_of_a_cache_without_a_window() -> None:
    """R5: m is ignored."""
    with pytest.raises(InvariantViolation, match="R5"):
        read_victims(books(window=None), seen([], [4, 5]))


@pytest.mark.parametrize(
    ("victims", "law"),
    [
        (SeenVictims(frozenset({END}), frozenset()), "R6"),
        (SeenVictims(frozenset(), frozenset({END})), "S6"),
        (SeenVictims(frozenset(), frozenset({TOP})), None),
        (SeenVictims(None, frozenset({TOP})), None),
    ],
)
def test_what_is_held_stays(victims: SeenVictims, law: str | None) -> None:
    """R6, S6: and so does what lies above it, but for its window."""
    made = books()
    made.model.commit_lock(1, made.model.plan_lock(END))
    if law is None:
        check_victims(made, victims)
        return
    with pytest.raises(InvariantViolation) as refused:
        check_victims(made, victims)
    assert refused.value.law == law


@pytest.mark.parametrize(
    ("removed", "tombstoned", "law"), [({TOP}, set(), "R9"), (set(), {END}, "S4"), ({END}, {TOP}, "S4")]
)
def test_no_orphan_and_no_dead_leaf_is_left(removed: set[Path], tombstoned: set[Path], law: str) -> None:
    """R9, S4: but a call that failed may leave a dead leaf."""
    victims = SeenVictims(frozenset(removed), frozenset(tombstoned))
    with pytest.raises(InvariantViolation) as refused:
        check_victims(books(), victims)
    assert refused.value.law == law
    if law == "S4":
        check_victims(books(), victims, is_whole=False)


def test_what_is_unknown_fits_everything() -> None:
    """R5, S3: everything that was seen must be as planned."""
    taken = Taken((END,), frozenset({TOP}), 2, 4)
    assert SeenVictims(None, None).fits(taken)
    assert SeenVictims(frozenset({END}), frozenset({TOP}), 2, 4).fits(taken)
    assert not SeenVictims(None, None, 2, 2).fits(taken)
    assert not SeenVictims(frozenset({TOP}), None).fits(taken)


def test_pages_are_named_in_one_order_whatever_their_tokens_are() -> None:
    """X3: numbers and tuples have no order among each other, and a set has none at all."""
    paths = {Path(Space(), (9,)), Path(Space(), (10,)), Path(Space(width=2), ((1, 2),))}
    assert tokens_of(paths) == [((1, 2),), (10,), (9,)]
