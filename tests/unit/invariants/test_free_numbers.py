"""Each check of free and held numbers can fail."""

from __future__ import annotations

import pytest

from pymllm.errors import InvariantViolation
from pymllm.invariants.pools import check_free_numbers


@pytest.mark.parametrize(("free", "held"), [([1, 3, 2], [4]), ([], [4, 2, 1, 3]), ([1, 2, 3, 4], [])])
def test_a_partition_in_heap_order_passes(free: list[int], held: list[int]) -> None:
    """P1, P5, X3: any split of the numbers is sound."""
    assert check_free_numbers("P1", "row", range(1, 5), free, held) is None


@pytest.mark.parametrize(
    ("free", "held", "law", "message"),
    [
        ([1, 3], [4], "P1", r"lost \[2\], twice \[\], foreign \[\]"),
        ([1, 2, 3], [3, 4], "P1", r"twice \[3\]"),
        ([1, 2, 2, 3], [4], "P1", r"twice \[2\]"),
        ([0, 1, 2, 3], [4], "P1", r"foreign \[0\]"),
        ([1, 2, 5], [4], "P1", r"lost \[3\], twice \[\], foreign \[5\]"),
        ([3, 1, 2], [4], "X3", "free row 1 lies below 3"),
        ([1, 2, 4, 3][::-1], [], "X3", "would not come first"),
    ],
)
def test_books_that_do_not_add_up_are_refused(
    free: list[int], held: list[int], law: str, message: str
) -> None:
    """P1, P5, X3: lost, doubled and foreign numbers are named, and so is a heap out of order."""
    with pytest.raises(InvariantViolation, match=message) as caught:
        check_free_numbers("P1", "row", range(1, 5), free, held)
    assert caught.value.law == law
