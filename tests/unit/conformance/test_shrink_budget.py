"""What a shrinker may spend."""

from __future__ import annotations

import pytest

from pymllm.conformance.shrink_budget import OutOfBudgetError, ShrinkBudget


def test_programs_are_counted_up_to_a_number() -> None:
    """The one after the last is not played."""
    told = []
    budget = ShrinkBudget(plays=2, on_play=lambda: told.append(budget.plays))
    budget.spend()
    budget.spend()
    with pytest.raises(OutOfBudgetError):
        budget.spend()
    assert (budget.plays, told) == (2, [0, 1])


def test_time_is_up_at_some_time() -> None:
    """Between two programs, and within one."""
    budget = ShrinkBudget(seconds=0.0)
    for ask in (budget.spend, budget.check_time):
        with pytest.raises(OutOfBudgetError):
            ask()
    assert budget.plays == 0
    ShrinkBudget(seconds=60.0).check_time()


def test_an_adapter_that_hangs_thrice_is_left_alone() -> None:
    """Each time takes as long as one waits."""
    budget = ShrinkBudget()
    budget.hangs = 2
    budget.spend()
    budget.hangs = 3
    with pytest.raises(OutOfBudgetError):
        budget.spend()


def test_a_part_leaves_the_rest_for_later() -> None:
    """Whether it ended early, or was ended."""
    budget = ShrinkBudget(plays=10, seconds=1_000.0)
    with budget.part(0.5):
        for _ in range(100):
            budget.spend()
    assert budget.plays == 5
    with budget.part(0.2):
        budget.spend()
    for _ in range(4):
        budget.spend()
    with pytest.raises(OutOfBudgetError):
        budget.spend()


def test_a_part_without_bounds_has_none() -> None:
    """Neither of programs nor of time."""
    budget = ShrinkBudget()
    with budget.part(0.1):
        for _ in range(100):
            budget.spend()
    assert budget.plays == 100
