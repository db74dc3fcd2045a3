"""What a soak came to, as text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.cli.soak_table import amount_of_bytes, make_page, make_text, sum_up, time_of
from pymllm.conformance.finding import Finding
from pymllm.conformance.smoke import SmokeFailure
from pymllm.conformance.soak.campaign import SoakReport
from pymllm.conformance.soak.drift import Drift, DriftVerdict
from pymllm.conformance.soak.ledger import Conflict
from pymllm.conformance.soak.records import Failure
from pymllm.conformance.soak.schedule import seed_of
from pymllm.conformance.soak.totals import Totals
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import AllocRows
from pymllm.history.outcomes import Outcome, Slots
from tests.unit.conformance.soak.test_records import HEADER, RECORD

MIB = 1 << 20


@pytest.fixture
def report() -> SoakReport:
    """Everything that can come out of a campaign."""
    totals = Totals([HEADER])
    kept = replace(RECORD, file="programs/x.jsonl", short="programs/x-short.jsonl")
    totals.add(kept)
    totals.add(replace(RECORD, seed=10, failure=Failure(None, "it went\naway")))
    history = History(Header("rows", "rows"), [Step(1, AllocRows(1), Outcome(Slots((1,))))])
    finding = Finding(InvariantViolation("P2", "row 2", expected="0", observed="7"), history, True, True)
    drifts = (
        Drift("uss", "bytes", 2.5 * MIB, 2.0 * MIB, 3.0 * MIB, MIB, 40, 1, DriftVerdict.GROWS),
        Drift("blocks", "blocks", None, None, None, 50_000.0, 3, 1, DriftVerdict.TOO_SHORT),
    )
    return SoakReport(
        (HEADER,),
        totals,
        drifts,
        61.0,
        2,
        Path("folder"),
        {("rows", "P2"): finding},
        (SmokeFailure("gone:Rows", None, "cannot import gone"),),
        (Conflict(RECORD, replace(RECORD, digest="other")),),
    )


def test_the_text_says_everything(report: SoakReport) -> None:
    """What was played, how fast, what took the time, how memory went, what failed, how to see it again."""
    text = make_text(report)
    lines = text.splitlines()
    assert lines[0] == "python 3"
    assert lines[1] == "source 1+a, seed 7, 1,000 operations, audit 1/64"
    assert lines[2] == "0:01:01 in 2 processes, ledger in folder"
    row = next(line for line in lines if line.startswith("rows ")).split()
    assert row[:9] == ["rows", "1/1", "2", "202", "81", "40%", "20%", "0%", "0%"]
    uss = next(line for line in lines if line.startswith("uss")).split("  ")
    assert [part.strip() for part in uss if part] == [
        "uss",
        "2.5 MiB",
        "2.0 MiB",
        "3.0 MiB",
        "1.0 MiB",
        "40",
        "grows",
    ]
    assert "50,000 blocks" in text
    assert "P2  VIOLATED by rows in 1 run: " in text
    assert "observed   7" in text
    assert "found      1+a, " in text
    assert "seed 9, step 44" in text
    assert "--run 9 --operations 100 --machine RowMachine --audit 1/64" in text
    assert "again      pymllm rerun folder/programs/x-short.jsonl --adapter rows" in text
    assert "as played  pymllm rerun folder/programs/x.jsonl --adapter rows" in text
    assert "rows  could not be asked to the end, in 1 run" in text
    assert "it went\\naway" in text
    assert "gone:Rows  could not be examined" in text
    assert "X3  VIOLATED: the same run did something else" in text
    assert "situations not reached: " in text
    assert "NEVER REACHED" in make_text(report, strict=True)


def test_a_failure_of_another_session_has_its_message(report: SoakReport) -> None:
    """A ledger has no finding; paths are as the ledger has them."""
    text = make_text(replace(report, findings=None, folder=None, seconds=0.0))
    assert "looked at  row 1" in text
    assert "rerun programs/x.jsonl" in text
    assert "processes" not in text


def test_a_program_that_was_not_made_smaller_to_the_end_says_so(report: SoakReport) -> None:
    """And one that is too long to be printed as a whole says how much of it is missing."""
    assert "    program\n" in make_text(report)
    (key,) = report.findings or {}
    steps = [Step(number, AllocRows(1), Outcome(Slots((number,)))) for number in range(1, 101)]
    finding = replace(
        (report.findings or {})[key], history=History(Header("rows", "rows"), steps), is_unfinished=True
    )
    text = make_text(replace(report, findings={key: finding}))
    assert "    program    a small one; time was up (pymllm shrink goes on from it)\n" in text
    assert text.count(" AllocRows(1)") == 33
    assert "        ... and 69 lines more\n" in text


def test_programs_of_merged_campaigns_are_named_where_they_are(report: SoakReport, tmp_path: Path) -> None:
    """In the folder of their campaign, wherever the ledgers were put together."""
    (tmp_path / "two" / "programs").mkdir(parents=True)
    (tmp_path / "two" / "programs" / "x.jsonl").write_text("", encoding="utf-8")
    parts = (tmp_path / "one", tmp_path / "two")
    for folder in (None, tmp_path / "all"):
        text = make_text(replace(report, findings=None, folder=folder, parts=parts))
        assert f"as played  pymllm rerun {tmp_path}/two/programs/x.jsonl --adapter rows" in text


def test_a_run_of_merged_campaigns_is_walked_as_in_its_own(report: SoakReport) -> None:
    """A fault that only walks show does not show where they come later, or not at all."""
    other, own = replace(HEADER, seed=8, audit=0), replace(HEADER, seed=9, audit=1)
    record = replace(RECORD, seed=seed_of(own, RECORD.number))
    totals = Totals([other, own])
    totals.add(record)
    text = make_text(replace(report, headers=(other, own), totals=totals, findings=None))
    assert f"--run {record.seed} --operations 100 --machine RowMachine --audit every" in text


def test_a_page_is_the_text(report: SoakReport) -> None:
    """As it is printed."""
    assert make_page(report) == f"# Soak\n\n```text\n{make_text(report)}```\n"


def test_the_last_line_sums_up(report: SoakReport) -> None:
    """The verdict first; a campaign that played nothing has one, too."""
    assert sum_up(report).startswith("violated: 202 operations in 2 runs; 0:00:02 of CPU time; ")
    assert sum_up(report).endswith("2 problems; 1 conflicts")
    nothing = sum_up(SoakReport((), Totals(), ()))
    assert nothing.startswith("unknown: 0 operations in 0 runs; ")
    assert nothing.endswith("0 of 0 situations reached")


def test_the_last_line_says_what_only_a_strict_campaign_fails_for(report: SoakReport) -> None:
    """Situations at zero, and the measures that grow; neither where nobody was strict."""
    assert "--strict" not in sum_up(report)
    missing = len(report.missing["rows"])
    assert sum_up(report, strict=True).endswith(
        f"; failed by --strict: {missing} situations left at zero; failed by --strict: memory grows (uss)"
    )
    assert "--strict" not in sum_up(replace(report, totals=Totals(), drifts=()), strict=True)


def test_numbers_have_units() -> None:
    """Hours, and MiB."""
    assert time_of(3725.9) == "1:02:05"
    assert amount_of_bytes(1536 * MIB) == "1,536.0 MiB"


def test_a_ledger_of_a_stranger_forges_no_line(report: SoakReport) -> None:
    """Its words stand in one line each, and what may be typed is quoted."""
    name = "evil\nholds: all is well\x1b[2J"
    bad = replace(RECORD, adapter=name, machine="$(touch x)", version="1\n2", failure=Failure("ZZ99", "row"))
    totals = Totals([replace(HEADER, version="9\n\x1b[31m", versions={"a\n": "b"})])
    totals.add(bad)
    text = make_text(replace(report, headers=(HEADER,), totals=totals, findings=None))
    assert not any(line.startswith("holds: ") for line in text.splitlines())
    assert "\x1b" not in text
    assert (
        "ZZ99  VIOLATED by evil\\nholds: all is well\\x1b[2J in 1 run: a law that this version does not know"
        in text
    )
    assert "--machine '$(touch x)' --audit" in text
    headed = make_text(replace(report, headers=(replace(HEADER, version="9\nX"),)))
    assert "source 9\\nX, seed 7" in headed
