"""Programs beside documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.report.documents import read_document
from pymllm.report.program_files import files_of, read_programs
from tests.unit.report import samples


def test_a_document_names_its_programs() -> None:
    """A soak's in their short form, where there is one."""
    assert files_of(read_document(samples.verify())) == ["runs/faulty-x-P2-0.jsonl"]
    long, none = samples.soak_failure("R6", short=None), samples.soak_failure("R7", short=None, file=None)
    found = files_of(read_document(samples.soak(samples.soak_failure("R5"), long, none)))
    assert found == ["programs/x-short.jsonl", "programs/x-long.jsonl"]
    assert files_of(read_document(samples.faults())) == []


@pytest.mark.parametrize("place", ["runs/x.jsonl", "x.jsonl"])
def test_a_program_is_found_beside_its_document(tmp_path: Path, place: str) -> None:
    """Under its name from there, or in the same folder, wherever both were moved to."""
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(samples.PROGRAM) + "\n", encoding="utf-8")
    assert read_programs(["runs/x.jsonl"], tmp_path) == {"runs/x.jsonl": samples.PROGRAM}


def test_a_program_is_found_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the command ran that wrote its name."""
    (tmp_path / "x.jsonl").write_text("\n".join(samples.PROGRAM), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert list(read_programs(["x.jsonl"], tmp_path / "elsewhere")) == ["x.jsonl"]


def test_what_is_gone_or_no_program_is_left_out(tmp_path: Path) -> None:
    """A page must not carry anybody's file because a document names it."""
    (tmp_path / "secret").write_text("not a program\n", encoding="utf-8")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_text(samples.PROGRAM[0] + "\n" * (5 << 20), encoding="utf-8")
    assert read_programs(["gone", "secret", "bytes", "long"], tmp_path) == {}
