"""One fault is put in place, looked for, and taken out again."""

from __future__ import annotations

import pytest

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.table import PLANTED, find_faults
from pymllm.conformance.detection import Detection, FaultResult, HuntPlan, HuntTask, hunt
from tests.unit import tiny_cabinet

QUICK = HuntPlan(operations=3_000)


def detection(seed: int, law: str, operations: int, program: int | None = None) -> Detection:
    return Detection(seed, law, "row 1", "machine", "rows", {}, operations, operations / 10, program)


def test_a_planted_fault_is_caught_and_taken_out_again(tiny: str) -> None:
    """P2: by a law of its list; without it nothing is found."""
    result = hunt(HuntTask(tiny_cabinet.DIRTY, QUICK))
    assert result.is_caught
    assert (result.laws, result.searchers, result.problems) == (("P2",), ("machine",), ())
    (found,) = result.detections
    assert (found.adapter, found.seed, found.program) == ("tiny_adapters:TinyRows", 0, None)
    assert found.operations == result.operations > 0
    sound = hunt(HuntTask(tiny_cabinet.SOUND, QUICK))
    assert not sound.is_caught
    assert sound.detections == ()
    assert sound.problems[0].startswith("seed 0: not caught; operations: machine 3,")


def test_a_law_that_nobody_wrote_down_does_not_count(tiny: str) -> None:
    """P2: it is caught, but not as was said beforehand."""
    result = hunt(HuntTask(tiny_cabinet.KEEPING, QUICK))
    assert not result.is_caught
    assert (result.laws, result.unlisted) == (("P2",), ("P2",))


def test_a_fault_that_cannot_be_planted_or_examined_says_so(tiny: str) -> None:
    """An edit that does not fit, an adapter that cannot be built, and nobody who could look."""
    (stale,) = hunt(HuntTask(tiny_cabinet.STALE, QUICK)).problems
    assert stale.startswith(
        "cannot be planted: tiny_adapters:TinyRows.do_free_row has 'no such text' 0 times"
    )
    (broken,) = hunt(HuntTask(tiny_cabinet.BROKEN, QUICK)).problems
    assert broken.startswith("cannot be examined: ")
    alone = Fault("x", "x", ("P2",), ("rows",), searchers=("life-cycle machine",))
    assert hunt(HuntTask(alone, QUICK)).problems == (
        "seed 0: not caught; operations: nobody can look for it",
    )


def test_a_fault_that_never_ends_is_given_up(tiny: str) -> None:
    """From each seed after so many seconds."""
    plan = HuntPlan((0, 1), operations=3_000, seconds=0.3)
    result = hunt(HuntTask(tiny_cabinet.ENDLESS, plan))
    assert result.problems == ("seed 0: still running after 0.3 s", "seed 1: still running after 0.3 s")


def test_programs_are_made_smaller_where_that_is_asked_for() -> None:
    """P2: a row is taken, written, given back and read."""
    (fault,) = find_faults(["B107"], PLANTED)
    plan = HuntPlan((0, 1), operations=5_000, shrinks=100)
    result = hunt(HuntTask(fault, plan))
    assert result.is_caught
    assert [found.seed for found in result.detections] == [0, 1]
    assert result.program is not None
    assert result.program <= 4
    assert sorted(found.program is None for found in result.detections) == [False, True]  # the shortest


def test_numbers_are_medians_and_the_smallest_program() -> None:
    """Over the seeds from which it was caught."""
    fault = Fault("x", "x", ("P2", "P1"), ("rows",))
    found = (detection(0, "P2", 10, 7), detection(1, "P1", 30, 4), detection(2, "P2", 20))
    result = FaultResult(fault, found, (), 1.0)
    assert (result.operations, result.seconds_to_detection, result.program) == (20, 2.0, 4)
    assert (result.laws, result.is_caught) == (("P2", "P1"), True)
    nothing = FaultResult(fault, (), ("seed 0: not caught",), 1.0)
    assert (nothing.operations, nothing.seconds_to_detection, nothing.program) == (0, 0.0, None)
    assert not nothing.is_caught


@pytest.mark.parametrize(
    ("id", "named"), [("B55", "invariants"), ("B49", "machine"), ("B64", "life-cycle machine")]
)
def test_whoever_sees_it_from_outside_is_named(id: str, named: str) -> None:
    """The walk from inside is named only where the walk saw it."""
    (fault,) = find_faults([id], PLANTED)
    alone = Fault(fault.id, fault.title, fault.laws, fault.adapters, fault.edits, searchers=("invariants",))
    (found,) = hunt(HuntTask(alone, QUICK)).detections
    assert found.searcher == named
