"""What is wrong with named slots, and which error may say so."""

from __future__ import annotations

import pytest

from pymllm.oracle.slot_misuse import misuse_of_halves, misuse_of_move, misuse_of_slots
from pymllm.oracle.slot_model import PageModel, WindowModel


@pytest.fixture
def full() -> PageModel:
    """Of four pages 1 and 2 are held, 3 is pending, 4 is free."""
    model = PageModel(4)
    model.take([1, 2, 3])
    model.begin_group()
    model.give([3])
    return model


@pytest.fixture
def window() -> WindowModel:
    """Of five pages 1 and 2 have halves, 3 and 4 are held without, 5 is free."""
    model = WindowModel(5, 4)
    model.take([1, 2, 3, 4], [1, 2, 3, 4])
    model.give_halves([3, 4])
    return model


@pytest.mark.parametrize(
    ("slots", "page_size", "found"),
    [
        ([1, 2], 1, []),
        ([], 1, []),
        ([4, 11, 4, 5], 4, []),
        ([1, 0], 1, ["padding is refused"]),
        ([3], 4, ["padding is refused"]),
        ([5], 1, ["an index past the end is refused"]),
        ([20], 4, ["an index past the end is refused"]),
        ([-1], 4, ["a negative index is refused"]),
        ([4], 1, ["a double free is refused"]),
        ([3], 1, ["a double free inside a group is refused"]),
        ([15, 4], 4, ["a double free inside a group is refused"]),
        ([1, 2, 1], 1, ["a slot named twice is refused"]),
        ([0, 4], 1, ["padding is refused", "a double free is refused"]),
    ],
)
def test_slots_that_are_nobodys_are_found(
    full: PageModel, slots: list[int], page_size: int, found: list[str]
) -> None:
    """A5: one line for each wrong slot; naming a page twice is wrong only where it has one slot."""
    misuses = misuse_of_slots(full, page_size, slots)
    assert [misuse.situation for misuse in misuses] == found
    assert {(misuse.law, misuse.error) for misuse in misuses} <= {("A5", "OwnershipError")}


@pytest.mark.parametrize(
    ("slots", "laws"), [([1, 2], []), ([1, 3], ["A7"]), ([5], ["A5"]), ([5, 3], ["A5", "A7"]), ([0], ["A5"])]
)
def test_halves_that_are_gone_are_found(window: WindowModel, slots: list[int], laws: list[str]) -> None:
    """A5, A7: a slot that is not held is A5's, a held one without a half A7's."""
    assert [misuse.law for misuse in misuse_of_halves(window, 1, slots)] == laws


@pytest.mark.parametrize(
    ("source", "target", "page_size", "found"),
    [
        ([1, 2], [4, 3], 1, []),
        ([], [], 1, []),
        ([5, 4], [13, 12], 4, []),
        ([4, 4], [12, 12], 4, []),
        ([3], [4], 1, ["a move from a slot without a half is refused"]),
        ([1], [2], 1, ["a move to a slot with a half is refused"]),
        ([5], [3], 1, ["a move from a free slot is refused"]),
        ([0], [3], 1, ["a move from a free slot is refused"]),
        ([1], [5], 1, ["a move to a free slot is refused"]),
        ([1], [], 1, ["a move of unequal lengths is refused"]),
        ([4, 5], [13, 12], 4, ["a move across pages is refused"]),
        ([4, 8], [12, 12], 4, ["a move across pages is refused"]),
        ([4, 4], [12, 16], 4, ["a move across pages is refused"]),
        ([1, 1], [3, 3], 1, ["a slot named twice is refused"]),
        ([1, 1], [3, 4], 1, ["a move across pages is refused", "a slot named twice is refused"]),
        ([5, 1], [2], 1, None),
    ],
)
def test_moves_that_do_not_pair_are_found(
    window: WindowModel, source: list[int], target: list[int], page_size: int, found: list[str] | None
) -> None:
    """A7: a half goes from a page that has one to a held page that has none, whole and in place."""
    situations = [misuse.situation for misuse in misuse_of_move(window, page_size, source, target)]
    if found is None:
        assert len(situations) == 3  # everything that is wrong, in one call
    else:
        assert situations == found


def test_only_what_is_no_matter_of_ownership_is_a_plain_value_error(window: WindowModel) -> None:
    """X1: lengths and pages that do not pair."""
    misuses = misuse_of_move(window, 1, [1, 1], [3, 4]) + misuse_of_move(window, 1, [5], [])
    assert {misuse.situation: misuse.error for misuse in misuses} == {
        "a move across pages is refused": "ValueError",
        "a move of unequal lengths is refused": "ValueError",
        "a slot named twice is refused": "OwnershipError",
        "a move from a free slot is refused": "OwnershipError",
    }
