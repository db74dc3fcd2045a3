"""Campaigns put together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from pymllm.adapters.registry import find_adapter
from pymllm.conformance.soak.campaign import SoakPlan, merge_campaigns, soak
from pymllm.conformance.soak.ledger import FILE, Ledger, merge_ledgers, read_ledger
from pymllm.conformance.soak.records import RunRecord
from pymllm.oracle.verdicts import Verdict


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two campaigns of different seeds, and the first one again."""
    plan = SoakPlan((find_adapter("rows"),), seed=3, operations=900, longest=300)
    made = tuple(tmp_path_factory.mktemp("campaign") for _ in range(3))
    for folder, seed in zip(made, (3, 4, 3), strict=True):
        soak(replace(plan, seed=seed), folder)
    return made[0], made[1], made[2]


def test_duplicates_collapse_and_everything_else_adds_up(folders: tuple[Path, Path, Path]) -> None:
    """The same campaign on two machines is one."""
    one, other, again = (merge_campaigns([folder]).totals for folder in folders)
    merged = merge_campaigns(folders)
    assert merged.totals.runs == one.runs + other.runs
    assert merged.totals.operations == one.operations + other.operations
    assert again.operations == one.operations
    assert len(merged.headers) == 2
    assert (merged.conflicts, merged.verdict()) == ((), Verdict.HOLDS)
    assert merged.totals.adapters["rows"].places == one.adapters["rows"].places


def test_a_merged_ledger_is_a_ledger(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """With each run once; an existing one is left alone."""
    merge_campaigns(folders, tmp_path)
    assert merge_ledgers([tmp_path / FILE]) == merge_ledgers([folder / FILE for folder in folders])
    assert merge_campaigns([tmp_path / FILE]).totals.runs == merge_campaigns(folders).totals.runs
    with pytest.raises(FileExistsError):
        merge_campaigns(folders, tmp_path)


def test_a_run_that_did_something_else_elsewhere_breaks_x3(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Both are named."""
    with Ledger(tmp_path / FILE) as ledger:
        for record in read_ledger(folders[0] / FILE):
            ledger.add(structs.replace(record, digest="else") if isinstance(record, RunRecord) else record)
    report = merge_campaigns([folders[0], tmp_path])
    assert len(report.conflicts) == report.totals.runs
    assert report.verdict() is Verdict.VIOLATED
