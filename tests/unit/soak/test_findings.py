"""Tests of findings of campaigns: one entry for each law and small program, and the news among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from pymllm.adapters.registry import find_adapter
from pymllm.cli.schema import make_schema
from pymllm.documents.campaigns import Failure, FindingRow
from pymllm.errors import TraceError
from pymllm.history.files import load_history
from pymllm.oracle.verdicts import Verdict
from pymllm.search.program import rerun_history
from pymllm.soak.campaign import SoakPlan, soak
from pymllm.soak.findings import (
    FINDINGS_FILE,
    Findings,
    compare_findings,
    read_baseline,
)
from pymllm.soak.ledger import FILE
from pymllm.soak.merged_campaigns import MergePlan, merge_campaigns
from tests.unit.soak.test_ledger import HEADER, RECORD, write

FAULTY = "faulty-dirty-rows"
PLAN = SoakPlan((find_adapter(FAULTY),), seed=3, operations=2_000, longest=300, jobs=0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A faulty campaign, and one of another seed."""
    made = tuple(tmp_path_factory.mktemp("campaign") for _ in range(2))
    for folder, seed in zip(made, (3, 4), strict=True):
        soak(SoakPlan(PLAN.adapters, seed=seed, operations=2_000, longest=300, jobs=0), folder)
    return made[0], made[1]


def test_equal_programs_of_many_runs_are_one_finding(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """P2: its program stands beside the merged ledger and breaks the law again; the smallest come first."""
    report = merge_campaigns(folders, MergePlan(tmp_path, shrinks=3))
    runs = report.totals.adapters[FAULTY].failures["P2"].runs
    assert sum(row.runs for row in report.kinds) == runs > 6
    small = [row for row in report.kinds if row.operations is not None]
    assert sum(row.runs for row in small) >= 3
    assert len({row.id for row in small}) == len(small)
    assert [row.operations for row in small] == sorted(row.operations or 0 for row in small)
    assert (small[0].law, small[0].adapters, small[0].new) == ("P2", (FAULTY,), True)
    history = load_history(tmp_path / (small[0].program or ""))
    assert len(history) == small[0].operations
    violation = rerun_history(history, FAULTY).violation
    assert violation is not None
    assert violation.law == "P2"
    document = json.loads((tmp_path / FINDINGS_FILE).read_text("utf-8"))
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(make_schema("findings")).validate(document)
    assert read_baseline(tmp_path) == report.kinds


def test_only_what_is_not_known_fails_a_merge(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """A baseline is a folder, the findings in it, or a ledger."""
    merge_campaigns(folders[:1], MergePlan(tmp_path / "old", shrinks=2))
    known = read_baseline(tmp_path / "old")
    again = merge_campaigns(folders[:1], MergePlan(shrinks=2, baseline=known))
    assert (again.verdict(), again.has_news) == (Verdict.HOLDS, False)
    without = [replace(it, operations=None) for it in known]  # whose programs nobody made small
    assert not merge_campaigns(folders[1:], MergePlan(shrinks=1, baseline=tuple(without))).has_news
    for path in (tmp_path / "old", tmp_path / "old" / FINDINGS_FILE, folders[0] / FILE):
        report = merge_campaigns(folders[:1], MergePlan(baseline=read_baseline(path)))
        assert report.verdict() is Verdict.HOLDS, report.kinds
        assert not report.has_news
    assert merge_campaigns(folders[1:], MergePlan(baseline=())).verdict() is Verdict.VIOLATED
    assert merge_campaigns(folders[1:]).verdict() is Verdict.VIOLATED


def row(**changes: object) -> FindingRow:
    return replace(
        FindingRow(
            id="a", law="P2", adapters=("rows",), message="m", operations=3, runs=2, program="p",
            first_seen="2", last_seen="2",
        ),
        **changes,
    )  # fmt: skip  # type: ignore[arg-type]


def test_what_is_known_is_told_since_when_and_what_is_gone_is_kept() -> None:
    """New findings come first, then findings that showed again, then known ones that did not."""
    known = [row(first_seen="1", last_seen="1"), row(id="gone", first_seen="0", last_seen="1")]
    found = [row(), row(id="b", operations=9), row(id="not small, rows", operations=None)]
    compared = compare_findings(found, known)
    assert [(it.id, it.new, it.first_seen, it.last_seen, it.runs) for it in compared] == [
        ("b", True, "2", "2", 2),
        ("a", False, "1", "2", 2),
        ("not small, rows", False, "2", "2", 2),
        ("gone", False, "0", "1", 0),
    ]
    assert all(not it.new for it in compare_findings(compared, compared))


def test_where_nobody_made_programs_small_law_and_adapter_are_compared() -> None:
    """Without a small program, a found or known finding is compared by law and adapter."""
    bare = row(id="not small, rows", operations=None)
    assert not compare_findings([row(id="b")], [bare])[0].new
    assert not compare_findings([bare], [row()])[0].new
    assert compare_findings([row(law="P1")], [bare])[0].new
    assert compare_findings([replace(bare, id="not small, other", adapters=("other",))], [bare])[0].new


def test_runs_without_a_program_are_one_finding_of_their_adapter(tmp_path: Path) -> None:
    """Errors of adapters are none; nothing beyond a folder is read."""
    failed = replace(RECORD, failure=Failure("P2", "held"), short="../stolen.jsonl", file="gone.jsonl")
    error = replace(RECORD, number=9, failure=Failure(None, "died"))
    folder = tmp_path / "c"
    write(folder / FILE, HEADER, failed, error, *(replace(failed, number=it, seed=it) for it in (1, 2)))
    (tmp_path / "stolen.jsonl").write_text("no program", encoding="utf-8")
    (found,) = read_baseline(folder)
    assert (found.id, found.runs, found.operations, found.program) == ("not small, rows", 3, None, None)
    (again,) = merge_campaigns([folder], MergePlan(shrinks=2)).kinds
    assert again == found


def test_memory_of_findings_does_not_grow_with_failing_runs() -> None:
    """Of each adapter and law so many runs are kept, and all are counted."""
    findings = Findings(2)
    for number in range(50):
        findings.add(replace(RECORD, number=number))
    (found,) = findings.settle([])
    assert (found.runs, findings.adapters()) == (50, {"rows"})
    assert len(findings._of["rows", "P2"].first) == 2


@pytest.mark.parametrize("text", ["{", '{"schema": "pymllm.soak", "version": 1}', "[]"])
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    """In one line."""
    (tmp_path / FINDINGS_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=r"findings\.json: no findings of pymllm merge"):
        read_baseline(tmp_path)
