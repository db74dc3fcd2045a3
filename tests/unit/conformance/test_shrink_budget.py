"""What a shrinker may spend."""

from __future__ import annotations

import pytest

from pymllm.conformance.shrink_trials import OutOfBudgetError, ShrinkBudget
from pymllm.errors import AdapterError, UsageError


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


def _caught(module: str, error: Exception) -> Exception:
    """An error that a function of some module raises."""
    space: dict[str, object] = {"__name__": module, "error": error}
    exec("def fail():\n    raise error\n", space)
    try:
        space["fail"]()  # type: ignore[operator]
    except Exception as caught:
        return caught
    raise AssertionError("it raises")


def test_what_stops_a_candidate_is_counted_by_class() -> None:
    """A pool that is too small for an engine, an adapter that cannot do what is asked."""
    budget = ShrinkBudget()
    for error in (AdapterError("odd", "hung"), AdapterError("odd", "broke"), UsageError("no")):
        budget.note_failure(_caught("pymllm.conformance.examiner", error))
    budget.note_failure(_caught("pymllm.workloads.engine", TypeError("not in here")))
    budget.note_failure(_caught("pymllm.conformances", TypeError("nor here")))
    assert budget.misfits == {"AdapterError": 2, "UsageError": 1, "TypeError": 2}
    assert budget.tell_mistakes() == ()


def test_a_mistake_of_ours_is_told_with_its_place() -> None:
    """What a driver or a judge did not mean to raise hides smaller programs: it is no misfit."""
    budget = ShrinkBudget()
    for _ in range(2):
        budget.note_failure(_caught("pymllm.oracle.judge", AttributeError("no such thing")))
    budget.note_failure(_caught("pymllm.conformance.slot_machine", KeyError(3)))
    assert not budget.misfits
    assert budget.tell_mistakes() == (
        "2 candidates could not be run: AttributeError: no such thing (line 2 of <string>)",
        "1 candidate could not be run: KeyError: 3 (line 2 of <string>)",
    )
