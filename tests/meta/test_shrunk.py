"""First failures of known faults become short."""

from __future__ import annotations

import pytest
from shrunk import LONG_BY_NATURE, SHORT, Result, measure, tell

from pymllm.faults.table import find_faults, own_cabinet

QUICK = ("B04", "B10", "B17", "B43", "B76-requests", "B148", "faulty-dead-leaves", "faulty-one-layer-saves")


@pytest.mark.parametrize("id", QUICK)
def test_the_first_failure_of_a_fault_becomes_short(id: str) -> None:
    """Of one in a class and of an engine's, with as many programs as verify plays."""
    (fault,) = find_faults([id], own_cabinet())
    result = measure(fault, 0, 600.0, 300)
    assert result.is_short, result
    assert result.law in fault.laws


@pytest.mark.slow
def test_nine_of_ten_faults_become_short() -> None:
    """At most a minute for each."""
    results = [measure(fault, 0, 60.0) for fault in own_cabinet()]
    assert sum(it.is_short for it in results) >= 0.9 * len(results), tell(results)


def test_what_stays_long_is_a_fault_of_the_cabinet() -> None:
    """With a reason; a fault that is gone would hide here."""
    assert set(LONG_BY_NATURE) <= {fault.id for fault in own_cabinet()}
    assert all(LONG_BY_NATURE.values())


def test_a_table_names_what_is_too_long() -> None:
    """And the share of what is not."""
    text = tell([Result("a", "R2", 90, SHORT, 1.0, True), Result("b", "R5", 99, SHORT + 1, 2.5, False)])
    assert text.splitlines() == [
        "b: R5 99 -> 13 in 2.5 s, unfinished; ",
        "1 of 2 (50.0%) have at most 12 operations; 2.5 s at most for one",
    ]
