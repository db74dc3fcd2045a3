"""``pymllm report`` as it is typed."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pymllm.cli.results.report import FORMATS
from pymllm.report.records import Document, Figure
from pymllm.report.store import write_run
from tests.unit.cli.typed import refused, typed
from tests.unit.report import samples
from tests.unit.report.samples import HEADER


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_run(
        tmp_path / "store", HEADER, [Document(samples.verify()), Figure("match", 10.0, "us", "smaller")]
    )
    return tmp_path / "store"


run = partial(typed, "report")


def test_a_page_is_written_where_it_is_asked_for(store: Path, tmp_path: Path) -> None:
    """And one line says so."""
    output = tmp_path / "page.html"
    result = run(store, "-o", output, "--title", "nightly")
    assert result.exit_code == 0
    assert result.output.startswith(f"{output}: 1 run, ")
    assert "<h1>nightly</h1>" in output.read_text(encoding="utf-8")


def test_a_page_has_a_name_by_itself(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five megabytes are nothing for a terminal."""
    monkeypatch.chdir(tmp_path)
    assert run(store).exit_code == 0
    assert (tmp_path / "report.html").is_file()


def test_feeds_go_to_standard_output_or_to_a_file(store: Path, tmp_path: Path) -> None:
    """Each in its form."""
    (entry,) = json.loads(run(store, "--format", "github-action-benchmark").stdout)
    assert entry["name"] == "match"
    bigger = json.loads(run(store, "--format", "github-action-benchmark", "--better", "bigger").stdout)
    assert {it["unit"] for it in bigger} == {"steps/s"}
    assert len(ElementTree.fromstring(run(store, "--format", "junit").stdout)) == 2
    output = tmp_path / "badge.json"
    assert run(store, "--format", "badge", "--output", output).exit_code == 0
    assert json.loads(output.read_text(encoding="utf-8"))["color"] == "red"


def test_a_trend_is_printed(store: Path) -> None:
    """No file is written for it."""
    result = run(store, "--trend", "mat")
    assert result.exit_code == 0
    assert result.output.startswith("match (smaller is better)\n")
    refused("report", store, "--trend", "nothing", words="no figure has 'nothing' in its name; there are")
    write_run(store, HEADER, [Figure("clear\x1b[2J", 1.0, "s")])
    assert run(store, "--trend", "clear").output.startswith("clear\\x1b[2J\n")


def test_no_run_is_written_over(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that is read, nor a program or another run, under whatever name."""
    monkeypatch.chdir(tmp_path)
    (file,) = store.iterdir()
    (store / "cut.run.jsonl").write_text("{", encoding="utf-8")
    (tmp_path / "p.jsonl").write_text("\n".join(samples.PROGRAM), encoding="utf-8")
    (tmp_path / "report.html").symlink_to(file)
    (tmp_path / "feed.json").write_text("[]", encoding="utf-8")
    outputs = [store / "cut.run.jsonl", file, store / ".." / "store" / file.name, Path("p.jsonl")]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = [path.read_bytes() for path in files]
    for arguments in ([], *(["-o", str(it), "--format", "badge"] for it in outputs)):
        result = run(store, *arguments)
        assert (result.exit_code, "name another file" in result.stderr) == (2, True), arguments
    assert "name another file" in run("feed.json", "-o", "feed.json").stderr
    assert [path.read_bytes() for path in files] == before
    assert run(store, "--trend", "mat").exit_code == 0
    assert run(store, "--format", "badge", "-o", "feed.json").exit_code == 0


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_left_out_is_told(store: Path, tmp_path: Path, form: str) -> None:
    """On standard error: a green badge says nothing of a file that could not be read."""
    (store / "cut.run.jsonl").write_text('{"format": "pymllm-run", "sch', encoding="utf-8")
    write_run(store, HEADER, [Document(samples.verify() | {"version": 0})])
    result = run(store, "--format", form, "-o", tmp_path / "out")
    assert result.exit_code == 0
    first, second, *empty = result.stderr.splitlines()
    assert first.startswith(f"pymllm: left out: {store / 'cut.run.jsonl'}: not JSON: ")
    assert second.startswith(f"pymllm: left out of {store}")
    assert "version 0 of pymllm.verify" in second
    assert all("so the feed is empty" in line for line in empty)


@pytest.mark.skipif(
    sys.platform != "linux", reason="Linux has a file that is full and one that cannot be read"
)
def test_what_the_system_refuses_is_one_line(store: Path, tmp_path: Path) -> None:
    """Writing and reading."""
    result = run(store, "--format", "badge", "-o", "/dev/full")
    assert (result.exit_code, "No space left on device" in result.stderr) == (2, True)
    unreadable = tmp_path / "run.jsonl"
    unreadable.symlink_to("/proc/self/mem")
    result = run(unreadable)
    assert (result.exit_code, "Input/output error" in result.stderr) == (2, True)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["plotly.offline", "jinja2"])
def test_without_the_extra_only_the_page_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """With the command that brings it; feeds need nothing."""
    monkeypatch.setitem(sys.modules, missing, None)
    package = missing.split(".")[0]
    said = f"a report needs {package}, which is not installed; pip install 'pymllm[report]' brings it."
    refused("report", store, words=said)
    assert run(store, "--format", "badge").exit_code == 0
