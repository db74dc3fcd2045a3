"""Searchers find what is wrong, say how much they did, and do the same from the same seed."""

from __future__ import annotations

import pytest

from pymllm.adapters.cabinet.fault import SEARCHERS, Fault
from pymllm.adapters.cabinet.planting import Edit, planted
from pymllm.adapters.cabinet.table import PLANTED, find_faults
from pymllm.conformance.acting import ActingMachine
from pymllm.conformance.detection import Searcher, make_searchers
from pymllm.conformance.lifecycle_machine import LifecycleMachine

ROWS = Fault("rows", "rows are dirty", ("P2",), ("faulty-dirty-rows",))


def searcher_of(fault: Fault, name: str, seed: int = 0) -> Searcher:
    (found,) = (searcher for searcher in make_searchers(fault, seed) if searcher.name == name)
    return found


def test_those_who_can_look_are_made_in_the_order_of_the_fault() -> None:
    """An adapter that no engine can drive is left to the others."""
    assert [it.name for it in make_searchers(ROWS, 0)] == ["machine", "invariants", "sweep"]
    pooled = Fault("x", "x", ("R1",), ("radix",), settings={"pool": "token"})
    assert tuple(it.name for it in make_searchers(pooled, 0)) == SEARCHERS
    plain = Fault("x", "x", ("R1",), ("radix",), settings={"pool": "none"}, searchers=("sweep", "machine"))
    assert [it.name for it in make_searchers(plain, 0)] == ["sweep", "machine"]


def test_a_machine_catches_by_outcomes_and_says_after_how_much() -> None:
    """P2: the program that broke it is there, and the same seed finds the same one."""
    programs = []
    for _ in range(2):
        searcher = searcher_of(ROWS, "machine")
        caught = searcher.go_on(5_000)
        assert caught is not None
        assert not caught.is_inside
        assert (caught.found.violation.law, caught.adapter) == ("P2", "faulty-dirty-rows")
        assert 0 < len(caught.found.history) <= searcher.operations
        programs.append([step.operation for step in caught.found.history.steps])
    assert programs[0] == programs[1]


def test_every_program_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alike they would all leave out the same acts: on each configuration, in each turn, from each seed."""
    seeds: list[int] = []

    def note(machine: type[ActingMachine], seed: int, acts: int) -> None:
        seeds.append(seed)

    monkeypatch.setattr("pymllm.conformance.detection.drive", note)
    for seed in range(3):
        searcher_of(Fault("x", "x", ("P1",), ("radix",)), "machine", seed).go_on(30)
    assert len(seeds) == len({*seeds}) == 90


def test_a_search_goes_on_where_it_stopped() -> None:
    """What is sound is played until the operations are spent, and then a little more."""
    searcher = searcher_of(Fault("sound", "sound", ("P1",), ("rows",)), "machine")
    assert searcher.go_on(100) is None
    first = searcher.operations
    assert first >= 100
    assert searcher.go_on(100) is None
    assert searcher.operations == first
    assert searcher.go_on(first + 50) is None
    assert searcher.operations > first


def test_a_walk_from_inside_is_told_from_an_outcome() -> None:
    """R8: the clock stands still, which the books show before anything comes of it."""
    (fault,) = find_faults(["B55"], PLANTED)
    with planted(fault.edits):
        caught = searcher_of(fault, "invariants").go_on(5_000)
    assert caught is not None
    assert caught.is_inside
    assert caught.found.violation.law == "R8"


def test_an_engine_that_does_what_no_caller_may_is_caught() -> None:
    """E3: it gives everything back twice, and the pool rightly refuses."""
    (fault,) = find_faults(["B104"], PLANTED)
    with planted(fault.edits):
        caught = searcher_of(fault, "life-cycle machine").go_on(5_000)
    assert caught is not None
    assert issubclass(caught.machine, LifecycleMachine)
    assert caught.found.violation.law == "E3"


def test_a_sweep_catches_by_letting_calls_fail() -> None:
    """X6: callbacks see books that are not written yet."""
    (fault,) = find_faults(["B124"], PLANTED)
    with planted(fault.edits):
        caught = searcher_of(fault, "sweep").go_on(5_000)
    assert caught is not None
    assert caught.found.violation.law in fault.laws


@pytest.mark.parametrize("name", ["machine", "sweep"])
def test_an_error_that_is_no_violation_is_remembered_and_ends(name: str) -> None:
    """A machine that breaks down says nothing of any law, and its search comes to an end all the same."""
    edit = Edit("pymllm.adapters.own_pools:Rows.sizes", "return", "raise SystemError('broken')\nreturn")
    searcher = searcher_of(Fault("sound", "sound", ("P1",), ("rows",)), name)
    with planted([edit]):
        assert searcher.go_on(5) is None
    assert searcher.crash is not None
    assert "raised SystemError: broken" in searcher.crash
