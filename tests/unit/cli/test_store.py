"""Tests of the results that commands write into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from pymllm.cli.store import refuse_own_input, save_text
from pymllm.documents.campaigns import SoakDocument
from pymllm.documents.faults import FaultsDocument
from pymllm.documents.replays import ReplayDocument
from pymllm.documents.searches import CompareDocument, VerifyDocument
from pymllm.instrument.documents import DoctorDocument
from pymllm.report.loading import Run, load_runs
from tests.unit.cli.typed import typed


def only(store: Path) -> Run:
    (found,) = load_runs([store]).runs
    return found


@pytest.mark.parametrize(
    ("arguments", "kind", "document"),
    [
        (("doctor",), "doctor", DoctorDocument),
        (("faults", "hunt", "faulty-slot-zero", "--jobs", "1"), "faults", FaultsDocument),
        (("replay", "chat", "--requests", "3", "--capacity", "2k"), "replay", ReplayDocument),
        (("soak", "--adapter", "rows", "--operations", "300", "--jobs", "1"), "soak", SoakDocument),
        (("compare", "rows", "token-slots", "--examples", "2", "--jobs", "1"), "compare", CompareDocument),
    ],
)
def test_a_command_keeps_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], kind: str, document: Any
) -> None:
    """A command stores its whole result with its words, machine and versions, and its output is unchanged."""
    monkeypatch.chdir(tmp_path)
    result = typed(*arguments, "--store", "kept")
    found = only(tmp_path / "kept")
    assert (found.kind, type(found.documents[0])) == (kind, document)
    assert found.command == f"pymllm {' '.join(arguments)} --store kept"
    assert found.machine is not None
    assert found.unread == ()
    assert f"kept in {Path('kept') / Path(found.source).name}\n" in result.stderr
    assert "kept in" not in result.stdout


def test_a_verification_keeps_the_programs_of_its_violations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a store is complete by itself."""
    monkeypatch.chdir(tmp_path)
    result = typed(
        "verify", "--adapter", "faulty-row-zero", "--examples", "20", "--jobs", "1", "--store", "my store"
    )
    assert result.exit_code == 1
    found = only(tmp_path / "my store")
    assert isinstance(found.documents[0], VerifyDocument)
    files = [violation.file for adapter in found.documents[0].adapters for violation in adapter.violations]
    assert files
    for file in files:
        assert file is not None
        assert "\n".join(found.programs[file]) + "\n" == Path(file).read_text(encoding="utf-8")
    assert found.command is not None
    assert found.command.endswith("--store 'my store'")  # so that a shell reads it again


def test_a_soak_keeps_the_course_of_its_memory_and_its_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger may be on another machine by then."""
    monkeypatch.chdir(tmp_path)
    arguments = ["--adapter", "faulty-slot-zero", "--operations", "500", "--seed", "1", "--jobs", "1"]
    assert typed("soak", *arguments, "--store", "kept").exit_code == 1
    found = only(tmp_path / "kept")
    assert found.curves
    assert found.programs
    assert "torch" in found.versions


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    """A file that a command reads is not written under any of its names; a device may be both."""
    (tmp_path / "a").touch()
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "twin").hardlink_to(tmp_path / "a")
    for name in ("a", "link", "twin", "../" + tmp_path.name + "/a"):
        with pytest.raises(
            click.UsageError, match=r"-o .*: this is .*/a, which the command reads; name another"
        ):
            refuse_own_input("-o", tmp_path / name, tmp_path / "b", tmp_path / "a")
    with pytest.raises(click.UsageError, match="which the command reads"):
        refuse_own_input("-o", tmp_path / "b", tmp_path / "a", tmp_path / "b")
    refuse_own_input("-o", tmp_path / "b", tmp_path / "a", tmp_path / "c")
    refuse_own_input("-o", Path("/dev/null"), "/dev/null")
    (tmp_path / "circle").symlink_to("circle")
    for name in ("circle", "x" * 300):
        refuse_own_input("-o", tmp_path / name, tmp_path / "a")
    refuse_own_input("-o", None, tmp_path / "a")


def test_a_store_that_fills_up_meanwhile_costs_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is complained of, and what was asked for was not all done."""

    def fail(self: Path, *arguments: object, **options: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", fail)
    result = typed("doctor", "--store", tmp_path / "kept")
    assert result.exit_code == 2
    assert "kept: cannot be written: No space left on device" in result.stderr
    assert "Python" in result.stdout


def test_a_text_is_written_and_its_folder_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text is written and its path returned, and a failed write is one complaint."""
    path = tmp_path / "runs" / "a.txt"
    assert save_text("> h\u00e9llo\n", path) == str(path)
    assert path.read_text(encoding="utf-8") == "> h\u00e9llo\n"
    assert save_text("> hello\n", path / "b.txt") is None
    assert capsys.readouterr().err.count("\n") == 1
