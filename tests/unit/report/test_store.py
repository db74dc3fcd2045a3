"""Runs as they are kept: records, lines, the folder, and which machine, commit and code they are of."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from jsonschema import Draft202012Validator

from pymllm.adapters.registry import make_adapter
from pymllm.errors import TraceError
from pymllm.history.operations import Alloc
from pymllm.instrument.provenance import find_processor
from pymllm.instrument.reading import Unreadable
from pymllm.instrument.timing import Timing
from pymllm.report import machine
from pymllm.report.machine import find_commit, hash_of_code, look_at_this_machine
from pymllm.report.records import (
    RECORDS,
    Curve,
    Document,
    Figure,
    Gpu,
    Histogram,
    Program,
    Record,
    RunHeader,
    make_machine,
)
from pymllm.report.store import (
    SUFFIX,
    dump_header,
    dump_record,
    make_header,
    read_header,
    read_record,
    read_run,
    run_schema,
    write_run,
)
from pymllm.report.timing_records import timing_records
from tests.unit.report.samples import HEADER, MACHINE

# -- records ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Figure("x", float("inf"), "s"), "inf is no number that JSON has"),
        (lambda: Curve("x", "bytes", "seconds", (0.0,), (float("nan"),)), "nan"),
        (lambda: Figure("x", 1.0, "s", reason="none"), "a value, or a reason"),
        (lambda: Curve("x", "s", "epochs", (1.0, 2.0), (1.0,)), "must be as long"),
        (lambda: Histogram("x", "s", (1.0,), ()), "must be as long"),
        (
            lambda: Histogram("x", "s", (2.0, 1.0), (1, 1)),
            r"x: ends must rise, got 1\.0 after 2\.0; sort the b",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_when_a_record_is_made(make: Any, said: str) -> None:
    """Not when somebody reads it."""
    with pytest.raises(ValueError, match=said):
        make()


def test_a_fingerprint_is_of_what_speed_depends_on() -> None:
    """Not of drivers, nor of memory, nor of why no GPU was seen."""
    gpus = (Gpu("Some GPU", None, "590.2"),)
    same = make_machine("Some Processor", 8, 64 << 30, "Linux x86_64", gpus, "?", "rack 3")
    assert same.fingerprint == MACHINE.fingerprint
    plain: dict[str, Any] = {
        "processor": "Some Processor", "cores": 8, "memory": 32 << 30, "system": "Linux x86_64",
        "gpus": MACHINE.gpus, "name": "rack 3",
    }  # fmt: skip
    others: list[dict[str, Any]] = [
        {"processor": "Another"}, {"cores": 4},
        {"system": "Linux aarch64"}, {"gpus": ()}, {"name": None},
    ]  # fmt: skip
    found = {make_machine(**{**plain, **change}).fingerprint for change in others}
    assert len({*found, MACHINE.fingerprint}) == len(others) + 1


# -- run lines -------------------------------------------------------------------------------------------


EACH: tuple[Record, ...] = (
    Document({"schema": "pymllm.verify", "version": 1, "adapters": []}),
    Figure("match: p99", 12.5, "us", "smaller", 12.0, 13, None, "c0de", "match"),
    Figure("device memory", None, "bytes", reason="no NVML"),
    Curve("used", "bytes", "seconds", (0.0, 1.0, 2.5), (3, None, 4), "memory", 8, "flat", True),
    Histogram("match", "us", (1.0, 2.0, 4.0), (3, 0, 1), "latency", "c0de"),
    Program("runs/x-R6-0.jsonl", ('{"format": "pymllm-history"}', '{"step": 1}')),
)


def test_every_kind_of_record_is_tried() -> None:
    """A new kind needs an example above."""
    assert {type(record) for record in EACH} == set(RECORDS.values())


@pytest.mark.parametrize("record", EACH, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    """One line each, valid under the schema."""
    line = dump_record(record)
    assert "\n" not in line
    Draft202012Validator(run_schema()).validate(json.loads(line))
    assert read_record(line) == record


@pytest.mark.parametrize("header", [HEADER, RunHeader("verify", "2026-11-21T15:03:11Z", None, "0.1.0")])
def test_a_header_is_read_as_it_was_written(header: RunHeader) -> None:
    """With a machine and without."""
    line = dump_header(header)
    Draft202012Validator(run_schema()).validate(json.loads(line))
    assert read_header(line) == header


def test_what_a_later_version_adds_is_left_out() -> None:
    """New fields and kinds of records do not make a store unreadable."""
    plain = json.loads(dump_header(HEADER))
    plain["weather"] = plain["machine"]["colour"] = plain["machine"]["gpus"][0]["fans"] = 1
    assert read_header(json.dumps(plain)) == HEADER
    assert read_record('{"record": "figure", "name": "x", "value": 1, "unit": "s", "weather": 1}') == Figure(
        "x", 1, "s"
    )
    assert read_record('{"record": "smell", "of": "roses"}') is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "../verify"}, "kind must be a word"),
        ({"format": "pymllm-soak"}, "format 'pymllm-soak', schema 1; this version reads 'pymllm-run', 1"),
        ({"schema": 2}, "schema 2; this version reads"),
        ({"kind": "Two Words"}, "kind must be a word in lower case"),
        ({"time": "yesterday"}, "time must be in UTC"),
        ({"time": "2026-02-30T00:00:00Z"}, "day"),
        ({"pymllm": 1}, "pymllm is 1; it must be a string"),
        ({"machine": []}, r"machine is \[\]; it must be an object or null"),
        ({"machine": {"gpus": 3}}, "gpus is 3; it must be a list"),
        ({"machine": {"gpus": [3]}}, "must be an object"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(changes: dict[str, Any], said: str) -> None:
    """With what is wrong."""
    with pytest.raises(ValueError, match=said):
        read_header(json.dumps({**json.loads(dump_header(HEADER)), **changes}))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "names its kind"),
        ('{"record": 3}', "names its kind"),
        ('{"record": "document", "document": 3}', "must be an object"),
        ('{"record": "document", "document": {"version": 1}}', "names its schema and version"),
        ('{"record": "document", "document": {"schema": "x", "version": true}}', "names its schema"),
        ('{"record": "figure", "name": "x", "unit": "s"}', "field 'value' is missing"),
        ('{"record": "figure", "name": "x", "value": NaN, "unit": "s"}', "NaN is no number"),
        ('{"record": "figure", "name": "x", "value": null, "unit": "s"}', "or a reason why"),
        ('{"record": "figure", "name": "x", "value": 1, "unit": "s", "better": "much"}', "smaller, bigger"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(line: str, said: str) -> None:
    """With what is wrong."""
    with pytest.raises(ValueError, match=said):
        read_record(line)


# -- store -----------------------------------------------------------------------------------------------


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The folder is made, and nothing but the run is left in it."""
    path = write_run(tmp_path / "new" / "store", HEADER, EACH)
    found = read_run(path)
    assert (found.header, found.records, found.unknown) == (HEADER, EACH, 0)
    assert [it.name for it in path.parent.iterdir()] == [path.name]
    assert path.name.startswith("benchmark-20261121T150311Z-")
    assert path.name.endswith(SUFFIX)


def test_a_run_is_written_by_the_standard_library_alone(tmp_path: Path) -> None:
    """A GPU machine has torch and pytest, and nothing that reads runs or draws them."""
    code = """
import sys
sys.modules |= dict.fromkeys(("msgspec", "click", "numpy", "torch", "jinja2", "plotly"))
from pathlib import Path
from pymllm.report.records import Figure
from pymllm.report.store import make_header, write_run
write_run(Path("store"), make_header("gpu-stress"), [Figure("copy", 31.0, "us")])
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    (path,) = (tmp_path / "store").iterdir()
    assert read_run(path).records == (Figure("copy", 31.0, "us"),)


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
    """The header of a run holds machine, versions, commit, command and time."""
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
        ("3\n", ":1: a run begins with an object"),
        ("{", ":1: "),
        ('{"format": "pymllm-soak", "schema": 1}\n', ":1: format 'pymllm-soak'"),
        (dump_header(HEADER) + "\n{", ":2: "),
        (dump_header(HEADER) + '\n{"record": "figure"}\n', ":2: .*missing"),
        (dump_header(HEADER) + "\n" + "[" * 100_000, ":2: "),
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
    assert read_header(lines[0]).kind == json.loads(lines[0])["kind"]
    assert all(read_record(line) is not None for line in lines[1:])


# -- machine ---------------------------------------------------------------------------------------------


class Library:
    """NVML with answers from a table."""

    answers: ClassVar[dict[str, Any]] = {}
    closed = 0

    def open(self) -> None:
        self.call("open")

    def close(self) -> None:
        Library.closed += 1

    def call(self, name: str, *arguments: Any) -> Any:
        answer = self.answers.get(name)
        if answer is None:
            raise Unreadable(f"{name}: no")
        return answer


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> type[Library]:
    memory = type("Memory", (), {"total": 80 << 30})()
    Library.answers = {
        "open": True,
        "nvmlSystemGetDriverVersion": "580.1",
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetName": "Some GPU",
    }
    Library.closed = 0
    monkeypatch.setattr(machine, "NvmlLibrary", Library)
    return Library


def test_this_machine_is_the_same_machine_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And another one under another name."""
    monkeypatch.delenv("PYMLLM_MACHINE", raising=False)
    one = look_at_this_machine()
    assert one == look_at_this_machine()
    assert one.cores == len(os.sched_getaffinity(0))
    assert one.memory is not None
    assert one.memory > 1 << 28
    assert one.system.startswith(platform.system())
    assert one.processor
    monkeypatch.setenv("PYMLLM_MACHINE", "rack 3")
    named = look_at_this_machine()
    assert named.name == "rack 3"
    assert named.fingerprint != one.fingerprint


def test_gpus_are_those_of_nvml(library: type[Library]) -> None:
    """With driver and memory."""
    found = look_at_this_machine()
    assert found.gpus == (Gpu("Some GPU", 80 << 30, "580.1"),) * 2
    assert found.gpu_reason is None
    assert library.closed == 1


@pytest.mark.parametrize("missing", ["open", "nvmlDeviceGetName", "nvmlDeviceGetCount"])
def test_where_nvml_cannot_be_asked_the_machine_says_why(library: type[Library], missing: str) -> None:
    """No GPU was seen is not: there is none."""
    del library.answers[missing]
    found = look_at_this_machine()
    assert (found.gpus, found.gpu_reason) == ((), f"{missing}: no")


def test_memory_that_a_gpu_does_not_tell_is_unknown(library: type[Library]) -> None:
    """Not zero."""
    del library.answers["nvmlDeviceGetMemoryInfo"]
    assert look_at_this_machine().gpus[0].memory is None


def test_a_system_without_figures_is_known_by_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one without /proc/cpuinfo."""

    def fail(*arguments: object, **options: object) -> Any:
        raise OSError("no such file")

    monkeypatch.setattr(os, "sysconf", fail)
    monkeypatch.setattr(Path, "read_text", fail)
    assert find_processor()
    assert look_at_this_machine().memory is None


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said where tracked files differ from it; files that git does not know do not count."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("PYMLLM_COMMIT", raising=False)
    assert find_commit(tmp_path) == (None, False)
    git(tmp_path, "init", "-q")
    assert find_commit(tmp_path) == (None, False)  # no commit yet
    (tmp_path / "a").write_text("1", encoding="utf-8")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "new").write_text("1", encoding="utf-8")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert find_commit(tmp_path) == (commit, False)
    (tmp_path / "a").write_text("2", encoding="utf-8")
    assert find_commit(tmp_path) == (commit, True)
    monkeypatch.chdir(tmp_path)
    assert find_commit() == (commit, True)


def test_settings_of_a_folder_start_no_program(tmp_path: Path) -> None:
    """It may have come as an archive; the commit of the working folder is asked for all the same."""
    (tmp_path / "a").write_text("1", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "one")
    hook = tmp_path / ".git" / "hooks" / "run"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n", encoding="utf-8")
    hook.chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(hook))
    assert find_commit(tmp_path)[0] is not None
    assert not (tmp_path / "ran").exists()


def test_without_git_there_is_no_commit_but_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree that was copied to another machine has no history."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYMLLM_COMMIT", raising=False)
    assert find_commit() == (None, False)
    monkeypatch.setenv("PYMLLM_COMMIT", "ab" * 20)
    assert find_commit() == ("ab" * 20, False)


def test_the_hash_of_code_is_of_names_and_contents(tmp_path: Path) -> None:
    """Neither of the order nor of the folder."""
    one, two = tmp_path / "a.py", tmp_path / "b.py"
    one.write_text("x = 1", encoding="utf-8")
    two.write_text("y = 1", encoding="utf-8")
    before = hash_of_code([one, two])
    assert hash_of_code([two, one]) == before
    assert hash_of_code([one]) != before
    elsewhere = tmp_path / "deep"
    elsewhere.mkdir()
    moved = [path.rename(elsewhere / path.name) for path in (one, two)]
    assert hash_of_code(moved) == before
    moved[0].write_text("x = 2", encoding="utf-8")
    assert hash_of_code(moved) != before


# -- timing records --------------------------------------------------------------------------------------


def test_each_operation_has_a_histogram_and_its_quantiles() -> None:
    """Refusals apart, since they are quick; a line each."""
    ticks = iter([0, 1_000, 2_000, 5_000, 6_000, 6_500])
    timing = Timing(make_adapter("token-slots"), clock=lambda: next(ticks))
    for step, tokens in enumerate((1, 1, -1), 1):
        timing.apply(step, Alloc(tokens))
    records = list(timing_records(timing, "token-slots", "c0de"))
    assert [record.name for record in records] == [
        "token-slots: alloc (refused)",
        "token-slots: alloc (refused): p50",
        "token-slots: alloc (refused): p99",
        "token-slots: alloc",
        "token-slots: alloc: p50",
        "token-slots: alloc: p99",
    ]
    histogram, p50, p99 = records[3:]
    assert isinstance(histogram, Histogram)
    assert histogram.counts == (1, 1)
    assert isinstance(p50, Figure)
    assert isinstance(p99, Figure)
    assert (histogram.ends[0], p50.code) == (p50.value, "c0de")
    assert p99.value is not None
    assert 3.0 <= p99.value <= 3.03
    assert [read_record(dump_record(record)) for record in records] == records


def test_a_timer_that_saw_nothing_has_no_records() -> None:
    """Nor a histogram of zero."""
    assert list(timing_records(Timing(make_adapter("token-slots")), "x")) == []
