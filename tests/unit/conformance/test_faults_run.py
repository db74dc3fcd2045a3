"""All faults together: in order, in processes, and with a status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.table import PLANTED, find_faults
from pymllm.conformance.detection import HuntPlan
from pymllm.conformance.faults_run import KeptResults, look_for_faults

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


@contextmanager
def interrupting(after: int) -> Iterator[Callable[[int], None]]:
    def count(done: int) -> None:
        if done == after:
            raise KeyboardInterrupt

    yield count


def test_an_interrupt_leaves_what_is_known() -> None:
    """What was looked for until then is told, and what was not is no success."""
    report = look_for_faults(FAULTS, PLAN, 1, lambda label, total: interrupting(1))
    assert isinstance(report.interruption, KeyboardInterrupt)
    assert [result.is_caught for result in report.results] == [True, False]
    assert report.missed[0].problems == ("interrupted before its end",)


@pytest.mark.usefixtures("work_here")
def test_an_interrupt_before_anything_is_known_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty table would tell nothing."""

    def interrupt(task: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pymllm.conformance.faults_run.hunt", interrupt)
    with pytest.raises(KeyboardInterrupt):
        look_for_faults(FAULTS, PLAN, 1)


def test_what_is_kept_is_not_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ended early goes on with what is missing, and comes to the same."""
    kept = tmp_path / "results.jsonl"
    first = look_for_faults(FAULTS[:1], PLAN, 1, kept=KeptResults(kept))
    whole = look_for_faults(FAULTS, PLAN, 1, kept=KeptResults(kept))
    assert (first.kept, whole.kept) == (0, 1)
    assert whole.results[0] == first.results[0]

    def nobody(task: object) -> None:
        raise AssertionError(task)

    monkeypatch.setattr("pymllm.conformance.faults_run.hunt", nobody)
    again = look_for_faults(FAULTS, PLAN, 1, kept=KeptResults(kept))
    assert (again.kept, again.results) == (2, whole.results)
