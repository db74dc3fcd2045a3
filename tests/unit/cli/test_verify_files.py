"""The files of a verification."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.cli.verify_files import SavedFiles, save_programs
from pymllm.conformance.results import VerifyReport
from pymllm.history.files import load_history


def test_each_program_has_a_file(report: VerifyReport, tmp_path: Path) -> None:
    """Named by adapter, law and seed, also where the adapter's name is none of a file."""
    files = save_programs(report, tmp_path / "new" / "runs")
    folder = tmp_path / "new" / "runs"
    assert files == SavedFiles(
        {
            ("my.rows:Rows", "P2"): str(folder / "my.rows-Rows-P2-41.jsonl"),
            ("my.rows:Rows", "P3"): str(folder / "my.rows-Rows-P3-41.jsonl"),
        },
        {("my.rows:Rows", 0): str(folder / "my.rows-Rows-crash1-41.jsonl")},
        {("gone:Cache", 0): str(folder / "gone-Cache-crash1-41-conversation.txt")},
    )
    assert Path(files.conversations["gone:Cache", 0]).read_text(encoding="utf-8") == "> hello\n"
    assert sorted(path.name for path in folder.iterdir()) == [
        "gone-Cache-crash1-41-conversation.txt",
        "my.rows-Rows-P2-41.jsonl",
        "my.rows-Rows-P3-41.jsonl",
        "my.rows-Rows-crash1-41.jsonl",
    ]


def test_a_file_says_where_it_comes_from(report: VerifyReport, tmp_path: Path) -> None:
    """Versions, seed, and why it was kept; its steps are the finding's."""
    files = save_programs(report, tmp_path)
    history = load_history(Path(files.programs["my.rows:Rows", "P2"]))
    assert history.header.versions == report.versions
    assert history.header.note == "P2: row 1\nposition 3: expected 0, observed 7\x1b"
    assert history.header.seed == 41
    assert history.steps == report.adapters[0].findings[0].history.steps
    crash = load_history(Path(files.crashes["my.rows:Rows", 0]))
    assert crash.header.note == "it stumbled\nover its feet"


def test_what_cannot_be_written_is_complained_of(
    report: VerifyReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result of a long search is not lost with a full disk."""
    (tmp_path / "runs").write_text("in the way", encoding="utf-8")
    assert save_programs(report, tmp_path / "runs") == SavedFiles()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count(": cannot be written: ") == err.count("\n") == 4
