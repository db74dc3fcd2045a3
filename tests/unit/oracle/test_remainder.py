"""What is left of a range."""

from __future__ import annotations

import pytest

from pymllm.oracle.remainder import Remainder


@pytest.fixture
def left() -> Remainder:
    made = Remainder(range(1, 8))
    made.take([2, 5, 6])
    made.give([6])
    return made


def test_it_is_a_set(left: Remainder) -> None:
    """Of the numbers that are not gone, in order."""
    assert ([*left], [*reversed(left)], len(left)) == ([1, 3, 4, 6, 7], [7, 6, 4, 3, 1], 5)
    assert left == {1, 3, 4, 6, 7}
    assert left & {4, 5} == {4}
    assert [number in left for number in (0, 1, 2, 8)] == [False, True, False, False]
    assert str(left) == "[1, 3, 4, 6, 7]"


@pytest.mark.parametrize(
    ("numbers", "are_left"), [([], True), ([7, 1], True), ([1, 2], False), ([0, 1], False), ([7, 8], False)]
)
def test_numbers_are_left_or_not(left: Remainder, numbers: list[int], are_left: bool) -> None:
    """None, all, and not those outside."""
    assert left.issuperset(numbers) == are_left
    assert (left.intersection(numbers) == {*numbers}) == are_left


def test_it_costs_what_is_gone() -> None:
    """Of 10**12 numbers it keeps none, and shows the first."""
    gone = {1}
    many = Remainder(range(10**12), gone)
    assert (many.gone is gone, len(many), 10**12 - 1 in many) == (True, 10**12 - 1, True)
    assert str(many).startswith("[0, 2, 3, ")
    assert len(str(many)) < 1_000
