"""The table of faults."""

from __future__ import annotations

from pymllm.adapters.cabinet.fault import Fault
from pymllm.cli.faults_table import make_text, sum_up
from pymllm.conformance.detection import Detection, FaultResult, HuntPlan
from pymllm.conformance.faults_run import FaultsReport

NOTED = Fault("B1", "is wrong", ("R1",), ("radix",), note="in another way")
OTHER = Fault("mine", "is wrong, too", ("R2",), ("radix",))


def detection(seed: int, law: str) -> Detection:
    return Detection(seed, law, "page 3", "machine", "radix", {}, 1200 + seed, 0.5, 4 + seed)


def report(*results: FaultResult, shrinks: int = 0) -> FaultsReport:
    return FaultsReport(HuntPlan((0, 1), shrinks=shrinks), 2, {}, results, 12.34)


CAUGHT = FaultResult(NOTED, (detection(0, "R1"), detection(1, "R1")), (), 1.0)
UNLISTED = FaultResult(OTHER, (detection(0, "R1"),), (), 1.0)
MISSED = FaultResult(OTHER, (), ("seed 0: not caught",), 1.0)


def test_what_needs_a_look_comes_first() -> None:
    """Not caught, or by a law that nobody wrote down."""
    lines = make_text(report(CAUGHT, MISSED)).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["mine", "B1"]
    assert " NO" in lines[1]
    assert "1,200" in lines[2]
    assert lines[4:6] == ["mine is wrong, too", "  seed 0: not caught"]
    lines = make_text(report(UNLISTED)).splitlines()
    assert "BY ANOTHER LAW" in lines[1]
    assert lines[4] == "  seed 0: R1 by the machine on radix: page 3; its laws are R2"


def test_programs_have_a_column_where_they_were_made_small() -> None:
    """The smallest of all seeds."""
    assert "program" not in make_text(report(CAUGHT))
    lines = make_text(report(CAUGHT, shrinks=1)).splitlines()
    assert lines[0].split()[-1] == "program"
    assert lines[1].split()[-1] == "4"


def test_the_last_line_says_who_caught_how_many() -> None:
    """Also where nobody caught anything."""
    assert sum_up(report(CAUGHT, MISSED)) == (
        "1 of 2 faults caught by a law of their list (1 by the machine); 12.3 s"
    )
    assert sum_up(report(MISSED)) == "0 of 1 faults caught by a law of their list; 12.3 s"
