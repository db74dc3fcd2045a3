"""Ledgers of soaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.conformance.soak.ledger import Ledger
from pymllm.conformance.soak.records import Failure, RunRecord
from pymllm.errors import TraceError
from pymllm.report.ledger_file import memory_curves, read_ledger_file
from tests.unit.conformance.soak.test_records import HEADER, RECORD


def runs(count: int, process: str = "p1") -> list[RunRecord]:
    memory = RECORD.memory
    return [
        replace(
            RECORD,
            number=number,
            seed=number,
            failure=None,
            memory=replace(
                memory, process=process, operations=number * 100, uss=(50 << 20) + number, is_first=False
            ),
        )
        for number in range(1, count + 1)
    ]


def write(path: Path, *records: RunRecord) -> Path:
    with Ledger(path) as ledger:
        ledger.add(HEADER)
        for record in records:
            ledger.add(record)
    return path


def test_a_ledger_is_summed_up_like_the_campaign_itself(tmp_path: Path) -> None:
    """Operations, shares, memory."""
    found = read_ledger_file(write(tmp_path / "ledger.jsonl", *runs(20)))
    document = found.document
    assert (document.verdict, document.runs) == ("holds", 20)
    assert document.operations == 20 * RECORD.operations
    assert document.adapters[0].name == RECORD.adapter
    assert [drift.measure for drift in document.drifts] == ["blocks", "uss", "rss"]
    assert {drift.verdict for drift in document.drifts} == {"flat"}
    assert found.version == HEADER.version
    (curve,) = found.curves
    assert curve.x == tuple(float(number * 100) for number in range(1, 21))
    assert (curve.y[0], curve.verdict, curve.good) == ((50 << 20) + 1, "flat", True)


@pytest.mark.parametrize(("law", "verdict"), [("R6", "violated"), (None, "unknown")])
def test_a_failure_is_told(tmp_path: Path, law: str | None, verdict: str) -> None:
    """With its law, or as a problem."""
    failed = replace(runs(1)[0], failure=Failure(law, "held", "none", "[1]", 9), file="programs/x.jsonl")
    document = read_ledger_file(write(tmp_path / "ledger.jsonl", failed)).document
    assert document.verdict == verdict
    (row,) = document.adapters[0].failures
    assert (row.failure.law, row.failure.step, row.file, row.runs) == (law, 9, "programs/x.jsonl", 1)


def test_two_campaigns_of_two_versions_have_no_version(tmp_path: Path) -> None:
    """Their memory is drawn all the same."""
    path = write(tmp_path / "ledger.jsonl", *runs(2))
    with Ledger(path) as ledger:
        ledger.add(replace(HEADER, version="0.2.0"))
    assert read_ledger_file(path).version is None


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    """A page must not grow with a campaign."""
    (curve,) = memory_curves(runs(1001), ())
    assert len(curve.x) <= 240
    assert curve.x[-1] == 1001 * 100
    assert (curve.verdict, curve.good) == ("too short to tell", None)


def test_runs_without_memory_draw_nothing_and_processes_are_bounded() -> None:
    """Sixteen lines are as many as anybody can tell apart."""
    assert memory_curves([replace(RECORD, memory=replace(RECORD.memory, process=""))], ()) == ()
    many = [run for number in range(20) for run in runs(1, f"p{number:02}")]
    assert len(memory_curves(many, ())) == 16


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    """As the soak itself does."""
    (tmp_path / "x").write_text("{}\n", encoding="utf-8")
    with pytest.raises(TraceError):
        read_ledger_file(tmp_path / "x")
