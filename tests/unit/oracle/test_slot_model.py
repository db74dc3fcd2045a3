"""The page model of a slot pool: four sets, and halves behind full pages."""

from __future__ import annotations

import pytest

from pymllm.oracle.slot_model import PageModel, WindowModel


def partition(model: PageModel) -> list[int]:
    return sorted([*model.old, *model.young, *model.pending, *model.held])


def test_a_new_pool_has_every_page_old_and_free() -> None:
    """A1, A2: page 0 is none of them."""
    model = PageModel(3)
    assert (model.old, model.young, model.pending, model.held) == ({1, 2, 3}, set(), set(), set())
    assert [model.has(page) for page in (0, 1, 3, 4)] == [False, True, True, False]


def test_freed_pages_wait_until_they_are_needed() -> None:
    """A4: young pages join the old ones only where those do not suffice."""
    model = PageModel(4)
    model.take([1, 2])
    model.give([1])
    assert model.lowest(2) == [3, 4]
    assert model.lowest(3) == [1, 3, 4]
    model.take([1, 3, 4])
    assert (model.old, model.young, model.held) == (set(), set(), {1, 2, 3, 4})


def test_the_lowest_pages_are_those_that_are_left() -> None:
    """A4: whatever was taken out of turn, in between or at the front, until a merge brings lower ones."""
    model = PageModel(8)
    assert model.lowest(2) == [1, 2]
    model.take([1, 4])
    assert (model.lowest(1), model.lowest(3)) == ([2], [2, 3, 5])
    model.take([2, 3])
    model.give([1, 3])
    assert model.lowest(4) == [5, 6, 7, 8]
    model.merge()
    assert model.lowest(4) == [1, 3, 5, 6]
    model.take([1])
    assert model.lowest(2) == [3, 5]
    model.clear()
    assert model.lowest(3) == [1, 2, 3]


def test_a_take_from_young_pages_is_followed() -> None:
    """A4 is claimed by some only: the model follows whatever was chosen."""
    model = PageModel(3)
    model.take([1])
    model.give([1])
    model.take([1])
    assert (model.old, model.young, model.held) == ({2, 3}, set(), {1})


def test_a_merge_makes_young_pages_old() -> None:
    """A4: a merge by request."""
    model = PageModel(2)
    model.take([1])
    model.give([1])
    model.merge()
    assert (model.old, model.young) == ({1, 2}, set())


def test_pages_given_inside_a_group_are_nobodys_until_it_closes() -> None:
    """A2, A6: neither free nor held."""
    model = PageModel(3)
    model.take([1, 2])
    model.begin_group()
    model.give([2])
    assert (model.free_count, model.is_free(2), model.held) == (1, False, {1})
    model.end_group()
    assert (model.free_count, model.is_free(2), model.young) == (2, True, {2})
    assert partition(model) == [1, 2, 3]


def test_clear_takes_everything_back_and_closes_the_group() -> None:
    """A6, X7: as good as new."""
    model = PageModel(3)
    model.take([1, 2])
    model.begin_group()
    model.give([2])
    model.clear()
    assert (model.old, partition(model), model.group_open) == ({1, 2, 3}, [1, 2, 3], False)


@pytest.fixture
def window() -> WindowModel:
    """Full pages 1, 2, 3 with halves 2, 1, 4."""
    model = WindowModel(5, 4)
    model.take([1, 2, 3], [2, 1, 4])
    return model


def test_an_allocation_needs_room_in_both_pools(window: WindowModel) -> None:
    """A7: the smaller pool decides."""
    assert (window.full.free_count, window.swa.free_count, window.free_count) == (2, 1, 1)


def test_a_free_returns_what_is_left_of_both(window: WindowModel) -> None:
    """A7: a half that went before is not returned again."""
    window.give_halves([1])
    assert (window.alive, window.gone) == ([2, 3], [1])
    window.give([1, 3])
    assert (window.full.held, window.swa.held, window.half) == ({2}, {1}, {2: 1})
    assert (window.full.young, window.swa.young) == ({1, 3}, {2, 4})


def test_a_move_gives_a_half_another_name(window: WindowModel) -> None:
    """A7: no page becomes free or taken."""
    window.give_halves([1])
    window.move([3], [1])
    assert (window.half, window.gone, window.swa.held) == ({1: 4, 2: 1}, [3], {1, 4})


def test_groups_merges_and_clears_act_on_both_pools(window: WindowModel) -> None:
    """A4, A6, X7: all laws hold for each half."""
    window.begin_group()
    window.give([1])
    assert (window.full.pending, window.swa.pending) == ({1}, {2})
    window.end_group()
    assert (window.full.young, window.swa.young) == ({1}, {2})
    window.merge()
    assert (window.full.old, window.swa.old) == ({1, 4, 5}, {2, 3})
    window.clear()
    assert (window.free_count, window.half, window.alive) == (4, {}, [])
