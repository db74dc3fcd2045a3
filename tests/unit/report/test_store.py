"""The folder of runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from pymllm.errors import TraceError
from pymllm.report.records import Figure
from pymllm.report.run_lines import dump_run_header
from pymllm.report.store import SUFFIX, make_header, read_run, write_run
from tests.unit.report.samples import HEADER
from tests.unit.report.test_run_lines import EACH


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The folder is made, and nothing but the run is left in it."""
    path = write_run(tmp_path / "new" / "store", HEADER, EACH)
    found = read_run(path)
    assert (found.header, found.records, found.unknown) == (HEADER, EACH, 0)
    assert [it.name for it in path.parent.iterdir()] == [path.name]
    assert path.name.startswith("benchmark-20261121T150311Z-")
    assert path.name.endswith(SUFFIX)


def test_stores_are_merged_by_copying(tmp_path: Path) -> None:
    """Runs of one second do not take each other's name, and one run has the same wherever it lies."""
    one = write_run(tmp_path / "a", HEADER, EACH[:1])
    two = write_run(tmp_path / "b", HEADER, EACH[1:])
    again = write_run(tmp_path / "c", HEADER, EACH[:1])
    assert one.name == again.name != two.name
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    assert {read_run(path).identity for path in (tmp_path / "a").iterdir()} == {
        read_run(path).identity for path in (one, two)
    }


def test_a_header_says_when_where_and_of_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What everybody who writes a run would have to find out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("PYMLLM_COMMIT", raising=False)
    header = make_header("verify", command=["pymllm", "verify"], versions={"torch": "2.13.0"}, code="c0de")
    assert header.machine is not None
    assert header.machine.cores >= 1
    assert header.pymllm.startswith("0.")
    assert "+" in header.pymllm
    assert (header.commit, header.command, header.code) == (None, "pymllm verify", "c0de")
    assert header.time.endswith("Z")
    assert make_header("verify").command is None


def test_a_run_without_records_is_none(tmp_path: Path) -> None:
    """Nothing is written."""
    with pytest.raises(ValueError, match="at least one record"):
        write_run(tmp_path / "store", HEADER, [])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a part of one, which would be read as a run."""

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_run(tmp_path, HEADER, EACH)
    assert os.listdir(tmp_path) == []


def test_kinds_that_are_not_known_are_counted(tmp_path: Path) -> None:
    """They are left out, and whoever shows the run can say so."""
    path = write_run(tmp_path, HEADER, [Figure("x", 1, "s")])
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"record": "smell"}\n')
    found = read_run(path)
    assert (found.records, found.unknown) == ((Figure("x", 1, "s"),), 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty; a run begins with its header"),
        ("{", ":1: "),
        ('{"format": "pymllm-soak", "schema": 1}\n', ":1: format 'pymllm-soak'"),
        (dump_run_header(HEADER) + "\n{", ":2: "),
        (dump_run_header(HEADER) + '\n{"record": "figure"}\n', ":2: .*missing"),
        (dump_run_header(HEADER) + "\n" + "[" * 100_000, ":2: "),
    ],
)
def test_a_file_that_is_no_run_is_refused_with_the_line(tmp_path: Path, text: str, said: str) -> None:
    """Whoever reads a store must know which file is wrong, and where."""
    path = tmp_path / f"x{SUFFIX}"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=said):
        read_run(path)


def test_the_lines_of_the_page_are_lines_of_a_run() -> None:
    """docs/report.md shows a header and two records."""
    page = (Path(__file__).parents[3] / "docs" / "report.md").read_text(encoding="utf-8")
    lines = page.split("```json\n")[1].split("```")[0].splitlines()
    from pymllm.report.run_lines import read_record, read_run_header

    assert read_run_header(lines[0]).kind == json.loads(lines[0])["kind"]
    assert all(read_record(line) is not None for line in lines[1:])
