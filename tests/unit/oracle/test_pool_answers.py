"""What a pool may hand out."""

from __future__ import annotations

import pytest

from pymllm.errors import InvariantViolation
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.pool_answers import check_halves, check_pages
from pymllm.oracle.slot_model import PageModel


@pytest.fixture
def pool() -> PageModel:
    """Pages 1 to 3, of which 2 is held."""
    pool = PageModel(3)
    pool.take([2])
    return pool


def test_whole_free_pages_are_accepted_in_any_order(pool: PageModel) -> None:
    """A1, A2, A3: the first slots of the last page are enough."""
    evidence = Evidence()
    assert check_pages(evidence, pool, 2, 3, (6, 7, 2)) == [3, 1]
    assert check_halves(evidence, pool, 2, (6, 7, 2), (2, 3, 6)) == [1, 3]
    assert dict(evidence.exercised) == {"A1": 1, "A2": 1, "A3": 1, "A7": 2}


@pytest.mark.parametrize(
    ("slots", "law"),
    [((0, 1), "A1"), ((8, 9), "A1"), ((2, 4), "A3"), ((3, 2), "A3"), ((2, 3, 6), "A3"), ((4, 5), "A2")],
)
def test_other_slots_are_refused(pool: PageModel, slots: tuple[int, ...], law: str) -> None:
    """A1, A2, A3: padding, strangers, parts, and what is held."""
    with pytest.raises(InvariantViolation) as refused:
        check_pages(Evidence(), pool, 2, 2, slots)
    assert refused.value.law == law


@pytest.mark.parametrize("halves", [(4, 5), (2,), (2, 6), (3, 2), (2, 2)])
def test_other_halves_are_refused(pool: PageModel, halves: tuple[int, ...]) -> None:
    """A7: each page has a free one behind it."""
    with pytest.raises(InvariantViolation, match="A7"):
        check_halves(Evidence(), pool, 2, (2, 3), halves)


@pytest.mark.parametrize("slots", [(4, 5), (2, 3, 2, 3)])
def test_what_is_suspect_is_named_for_pages_that_are_not_free(
    pool: PageModel, slots: tuple[int, ...]
) -> None:
    """X7: a clear may have spoilt what is held or given twice; nothing else is blamed on it."""
    for check in (
        lambda given: check_pages(Evidence(), pool, 2, len(given), given, "X7"),
        lambda given: check_halves(Evidence(), pool, 2, given, given, "X7"),
    ):
        with pytest.raises(InvariantViolation, match="X7: "):
            check(slots)
        assert check((2, 3)) == [1]
    with pytest.raises(InvariantViolation, match="A3"):
        check_pages(Evidence(), pool, 2, 2, (3, 2), "X7")
