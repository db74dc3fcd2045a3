"""Programs beside documents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pymllm.report.documents import read_document
from pymllm.report.program_files import files_of, open_regular, read_programs
from tests.unit.report import samples


def test_a_document_names_its_programs() -> None:
    """A soak's in their short form, where there is one."""
    assert files_of(read_document(samples.verify())) == ["runs/faulty-x-P2-0.jsonl"]
    long, none = samples.soak_failure("R6", short=None), samples.soak_failure("R7", short=None, file=None)
    found = files_of(read_document(samples.soak(samples.soak_failure("R5"), long, none)))
    assert found == ["programs/x-short.jsonl", "programs/x-long.jsonl"]
    assert files_of(read_document(samples.faults())) == []


def put(path: Path, text: str = "\n".join(samples.PROGRAM) + "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run, beside which other things lie."""
    (tmp_path / "run").mkdir()
    put(tmp_path / "outside.jsonl")
    return tmp_path / "run"


@pytest.mark.parametrize("place", ["runs/x.jsonl", "x.jsonl"])
def test_a_program_is_found_beside_its_document(tmp_path: Path, place: str) -> None:
    """Under its name from there, or in the same folder, wherever both were moved to."""
    put(tmp_path / place)
    found = read_programs(["runs/x.jsonl", "runs/x.jsonl"], tmp_path)
    assert (found.lines, found.left_out) == ({"runs/x.jsonl": samples.PROGRAM}, ())


def test_a_program_is_found_from_the_working_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the command ran that wrote its name; as far as that is in the folder of the document."""
    put(run / "deep" / "x.jsonl")
    monkeypatch.chdir(run.parent)
    assert list(read_programs(["run/deep/x.jsonl"], run).lines) == ["run/deep/x.jsonl"]
    found = read_programs(["outside.jsonl"], run)
    assert found.lines == {}
    assert found.left_out == ("program outside.jsonl: is not in the folder of the run",)


def test_a_folder_may_have_several_names(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to it, and a path to it with its links; links within it are files of it, too."""
    put(run / "deep" / "x.jsonl")
    (run / "y.jsonl").symlink_to("deep/x.jsonl")
    link = run.parent / "link"
    link.symlink_to(run)
    names = [f"{folder}/{name}" for folder in (run, link) for name in ("deep/x.jsonl", "y.jsonl")]
    assert list(read_programs(names, link).lines) == names
    monkeypatch.chdir(run / "deep")
    assert list(read_programs(["../deep/x.jsonl"], Path("..")).lines) == ["../deep/x.jsonl"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gone", "is not in the folder of the run"),
        ("{folder}/../outside.jsonl", "is not in the folder of the run"),
        ("../outside.jsonl", "is not in the folder of the run"),
        ("deep/../../outside.jsonl", "is not in the folder of the run"),
        ("{folder}-2/x.jsonl", "is not in the folder of the run"),
        ("/dev/zero", "is not in the folder of the run"),
        ("/etc/passwd", "is not in the folder of the run"),
        ("a\0b", "is not in the folder of the run"),
        ("link-out", "leads out of the folder of the run"),
        ("folder-out/outside.jsonl", "leads out of the folder of the run"),
        ("link-to-zero", "leads out of the folder of the run"),
        ("loop", "is not in the folder of the run"),
        ("pipe", "is no regular file"),
        ("deep", "is no regular file"),
        (".", "is no regular file"),
        ("secret", "is no program"),
        ("bytes", "is no program"),
        ("long", "has more than 4 MiB; make it smaller with pymllm shrink"),
    ],
)
def test_what_is_no_program_of_the_run_is_left_out_and_told(run: Path, name: str, why: str) -> None:
    """A page must not carry anybody's file because a document names it, and nobody waits for a pipe."""
    put(run / "secret", "not a program\n")
    put(run / "long", samples.PROGRAM[0] + "\n" * (5 << 20))
    put(Path(f"{run}-2") / "x.jsonl")
    (run / "bytes").write_bytes(b"\xff\xfe")
    (run / "deep").mkdir()
    for link, target in (
        ("link-out", "../outside.jsonl"),
        ("folder-out", ".."),
        ("link-to-zero", "/dev/zero"),
    ):
        (run / link).symlink_to(target)
    (run / "loop").symlink_to("loop")
    os.mkfifo(run / "pipe")
    name = name.format(folder=run)
    found = read_programs([name], run)
    assert (found.lines, found.left_out) == ({}, (f"program {name}: {why}",))


def test_programs_are_bounded_together(run: Path) -> None:
    """A document may name one file by many spellings, or many files; each reason is told once."""
    put(run / "x", samples.PROGRAM[0] + "\n" * (3 << 20))
    names = [f"{'./' * count}x" for count in range(9)]
    found = read_programs([*names, *map(str, range(1_000)), "y" * 999], run)
    assert list(found.lines) == names[:5]
    assert found.left_out == (
        f"program {names[5]} and 3 more: with those before it has more than 16 MiB",
        "program 0 and 1,000 more: is not in the folder of the run",
    )
    (long,) = read_programs(["y" * 999], run).left_out
    assert len(long) < 300


def test_a_file_that_becomes_a_pipe_is_not_waited_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at it and its opening somebody may put anything in its place."""
    os.mkfifo(run / "pipe")
    plain = os.stat(put(run / "x"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda path: plain)
        with pytest.raises(OSError, match="is no regular file"):
            open_regular(run / "pipe")
        (run / "link").symlink_to("x")
        with pytest.raises(OSError, match="symbolic links"):
            open_regular(run / "link")
    with open_regular(run / "x") as file:
        assert file.read(1) == b"{"
