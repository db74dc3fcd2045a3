"""Files that pymllm 0.1.0 (commit af4d65e) wrote are read, and say what they said then.

``written_by_1/found`` has a store, a ledger with its programs, and documents by themselves, as that commit's
commands wrote them; ``written_by_1/told`` has the feeds that it made of them. Since then JUnit XML also tells
what a violation expected and observed, with each reason as text of its element, and has its suites by kind;
the speeds of a ledger are rounded as those of its document are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pymllm.report.feeds import make_action_feed, make_badge, make_junit
from pymllm.report.loading import LoadedRuns, Run, load_runs
from pymllm.report.page import make_sections
from pymllm.report.trends import make_text
from tests.unit.report.looking import Look

WRITTEN = Path(__file__).parent / "written_by_1"


def feeds(runs: Sequence[Run]) -> dict[str, str]:
    return {
        "trends.txt": make_text(runs, ""),
        "junit.xml": make_junit(runs),
        "badge.json": make_badge(runs),
        "smaller.json": make_action_feed(runs, "smaller"),
        "bigger.json": make_action_feed(runs, "bigger"),
    }


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedRuns:
    """The files, each last written at the same time: documents by themselves know no other."""
    monkeypatch.chdir(shutil.copytree(WRITTEN / "found", tmp_path / "found"))
    for path in Path().rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return load_runs([Path()])


def test_every_file_is_read_whole(loaded: LoadedRuns) -> None:
    """None is left out, nor a part of one."""
    assert [(it.source, it.reason) for it in loaded.skipped] == []
    assert [run.unread for run in loaded.runs] == [()] * 17
    assert sorted({run.kind for run in loaded.runs}) == [
        "benchmark", "compare", "doctor", "faults", "gpu-benchmarks", "gpu-memory", "peers", "replay",
        "situations", "soak", "verify",
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.name for path in (WRITTEN / "told").iterdir()))
def test_feeds_say_what_they_said(loaded: LoadedRuns, name: str) -> None:
    """Each figure, each verdict, each law, to the last digit."""
    assert feeds(loaded.runs)[name] == (WRITTEN / "told" / name).read_text(encoding="utf-8")


def test_each_section_has_what_it_had(loaded: LoadedRuns) -> None:
    """So many rows in its tables, and so many programs to look at."""
    sections = make_sections(loaded)
    looks = {it.id: Look(it.blocks) for it in sections}
    found = {id: ([*map(len, it.tables.values())], len(it.cards)) for id, it in looks.items()}
    assert found == {
        "laws": ([8, 10], 1),
        "faults": ([1, 1], 0),
        "goals": ([30, 24], 0),
        "soak": ([1, 2, 2, 4], 1),
        "changes": ([4, 1, 1, 11], 0),
        "trends": ([3, 42], 0),
        "peers": ([1, 2], 0),
        "gpu": ([1], 0),
        "hit-rate": ([4], 0),
        "latency": ([2, 4], 0),
        "memory": ([7, 2], 0),
        "machines": ([4, 1], 0),
        "runs": ([17, 6], 0),  # no release was named then; no curve, vectors, probe, or trace at a server
    }
