"""All faults together: in order, in processes, and with a status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.table import PLANTED, find_faults
from pymllm.conformance.detection import HuntPlan
from pymllm.conformance.faults_run import look_for_faults

PLAN = HuntPlan(operations=2_000)
FAULTS = find_faults(["B116", "B107"], PLANTED)


def test_faults_come_back_in_their_order_and_alike_from_processes() -> None:
    """X3: what is found does not depend on the number of jobs."""
    alone, beside = (look_for_faults(FAULTS, PLAN, jobs) for jobs in (1, 2))
    assert [result.fault.id for result in beside.results] == ["B116", "B107"]
    found = [
        [(it.law, it.operations, it.searcher) for result in report.results for it in result.detections]
        for report in (alone, beside)
    ]
    assert found[0] == found[1]
    assert (alone.exit_status, alone.missed, beside.jobs) == (0, (), 2)


def test_progress_is_told_and_what_is_missed_ends_with_1() -> None:
    """Somebody who waits sees how many are done."""
    seen: list[object] = []

    @contextmanager
    def show(label: str, total: int) -> Iterator[Callable[[int], None]]:
        seen.append((label, total))
        yield seen.append

    sound = Fault("sound", "nothing is wrong", ("P1",), ("hashes",), searchers=("machine",))
    report = look_for_faults([FAULTS[0], sound], HuntPlan(operations=200), 1, show)
    assert seen == [("faults", 2), 1, 2]
    assert report.exit_status == 1
    assert [result.fault.id for result in report.missed] == ["sound"]
