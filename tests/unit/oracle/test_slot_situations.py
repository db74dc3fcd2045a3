"""When the less obvious situations of slot allocators count as met."""

from __future__ import annotations

import pytest

from pymllm.oracle.evidence import Evidence
from pymllm.oracle.given_numbers import GivenNumbers
from pymllm.oracle.slot_model import PageModel, WindowModel
from pymllm.oracle.slot_situations import note_alloc, note_free


def noted_alloc(pool: PageModel | WindowModel, wanted: int) -> set[str]:
    evidence = Evidence()
    note_alloc(evidence, pool, wanted)
    return set(evidence.reached)


def test_what_an_allocation_reaches() -> None:
    """A3, A4: nothing, freed pages that wait, a merge by need, an empty pool."""
    model = PageModel(3)
    model.take([1, 2])
    assert noted_alloc(model, 0) == {"nothing is asked for"}
    model.give([1])
    assert noted_alloc(model, 1) == {"freed pages wait while older ones suffice"}
    assert noted_alloc(model, 2) == {"need merges", "the pool is exhausted"}
    model.begin_group()
    assert noted_alloc(model, 0) == {"nothing is asked for"}
    assert "pages are handed out while a group is open" in noted_alloc(model, 1)


@pytest.mark.parametrize(
    ("pages", "swa_pages", "first"), [(3, 2, {"window"}), (2, 3, {"full"}), (2, 2, set())]
)
def test_which_pool_runs_out_first(pages: int, swa_pages: int, first: set[str]) -> None:
    """A7: an allocation that takes all of the smaller pool."""
    found = noted_alloc(WindowModel(pages, swa_pages), 2)
    assert found == {"the pool is exhausted", *(f"the {name} pool runs out first" for name in first)}


def noted_free(pool: PageModel | WindowModel, slots: list[int], page_size: int = 4) -> set[str]:
    """Note a free in a pool where step 1 gave slots 4 to 9, so pages 1 and 2, and step 2 page 3."""
    evidence, given = Evidence(), GivenNumbers()
    given.record(1, tuple(range(4, 10)))
    given.record(2, tuple(range(12, 16)))
    note_free(evidence, pool, page_size, given, slots)
    return set(evidence.reached)


def test_what_a_free_reaches() -> None:
    """A5: how pages are named, and what is left of their allocation."""
    model = PageModel(3)
    model.take([1, 2, 3])
    part = "part of an allocation is freed"
    assert noted_free(model, []) == {"nothing is freed"}
    assert noted_free(model, [12, 13]) == set()
    last = "the last page in somebody's hands is freed"
    assert noted_free(model, [4, 8, 12]) == {"one slot frees its page", last}
    assert noted_free(model, [4, 5]) == {part}
    assert noted_free(model, [4, 9, 8]) == set()
    assert noted_free(model, [5]) == {part, "one slot frees its page"}
    assert noted_free(model, [12, 13, 12]) == {"slots of a page are named twice"}
    assert noted_free(model, [8, 9, 10, 11]) == {part}
    assert noted_free(model, [10, 11]) == {part, "a slot beyond those asked for frees its page"}
    assert noted_free(model, [4], page_size=1) == set()
    assert "one slot frees its page" in noted_free(model, [4], page_size=2)


def test_a_free_in_a_group_and_the_last_one_are_noticed() -> None:
    """A2, A6: pages of an earlier call wait in the group; nothing else is in anybody's hands."""
    model = PageModel(3)
    model.take([1, 2, 3])
    model.begin_group()
    collected = "a group collects pages of several calls"
    assert collected not in noted_free(model, [4])
    model.give([1])
    assert collected in noted_free(model, [8])
    assert collected not in noted_free(model, [])
    model.give([2])
    assert "the last page in somebody's hands is freed" in noted_free(model, [12])


def test_a_free_of_what_is_left_of_both() -> None:
    """A7: the half went before."""
    window = WindowModel(3, 3)
    window.take([1, 2, 3], [1, 2, 3])
    window.give_halves([3])
    assert noted_free(window, [12, 13]) == {"a free returns what is left of both"}
    assert noted_free(window, [4, 9, 8]) == set()
