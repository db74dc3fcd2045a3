"""Finding runs, whatever wrote them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pymllm.documents.campaigns import SoakDocument
from pymllm.documents.searches import VerifyDocument
from pymllm.errors import TraceError
from pymllm.report.documents import GpuMemoryDocument
from pymllm.report.loading import is_run_or_program, load_runs
from pymllm.report.records import Document, Figure, Histogram, Program
from pymllm.report.store import write_run
from tests.unit.report import samples
from tests.unit.report.samples import HEADER
from tests.unit.report.test_documents import write as write_ledger
from tests.unit.report.test_store import EACH
from tests.unit.soak.test_ledger import HEADER as CAMPAIGN
from tests.unit.soak.test_ledger import RECORD


def test_a_run_of_a_store_is_read_whole(tmp_path: Path) -> None:
    """Documents, figures with the header's code, curves, histograms and programs."""
    records = [
        Document(samples.verify()),
        Figure("x", 1.0, "s"),
        Figure("y", 1.0, "s", code="other"),
        Histogram("h", "us", (1.0,), (1,)),
        *EACH[3:],
    ]
    path = write_run(tmp_path, HEADER, records)
    (run,) = load_runs([tmp_path]).runs
    assert (run.source, run.kind, run.time) == (str(path), HEADER.kind, HEADER.time)
    assert run.machine == HEADER.machine
    assert (run.commit, run.modified, run.time_is_of_file) == (HEADER.commit, True, False)
    assert [type(it) for it in run.documents] == [VerifyDocument]
    assert [it.code for it in run.figures] == ["c0de", "other"]
    assert [it.code for it in run.histograms] == ["c0de", "c0de"]
    assert list(run.programs) == ["runs/x-R6-0.jsonl"]
    assert len(run.curves) == 1
    assert run.unread == ()


def test_what_a_run_has_beyond_this_version_is_told(tmp_path: Path) -> None:
    """Documents of later versions, and kinds of records that nobody knows here."""
    path = write_run(tmp_path, HEADER, [Document(samples.verify() | {"version": 9}), Figure("x", 1, "s")])
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"record": "smell"}\n')
    (run,) = load_runs([path]).runs
    assert run.documents == ()
    version, kinds = run.unread
    assert version.startswith("version 9 of pymllm.verify; ")
    assert kinds == "this version does not know the kind of 1 record"


def test_each_form_of_file_is_read(tmp_path: Path) -> None:
    """Each form of file is read, in folders within the folder and hidden ones; other files are ignored."""
    samples.write(tmp_path / "verify.json", samples.verify())
    (tmp_path / "indented.json").write_text(json.dumps(samples.faults(), indent=2), encoding="utf-8")
    samples.write(tmp_path / "gpu.jsonl", samples.gpu_memory("a"), samples.gpu_memory("b"))
    samples.write(tmp_path / ".benchmarks" / "deep" / "0001.json", samples.benchmark_file())
    write_ledger(tmp_path / "soak-1" / "ledger.jsonl", RECORD)
    samples.write(tmp_path / "peers.json", samples.peers())
    (tmp_path / "program.jsonl").write_text("\n".join(samples.PROGRAM), encoding="utf-8")
    samples.write(tmp_path / "package.json", {"name": "x"})
    (tmp_path / "notes.txt").write_text('"schema": "pymllm.verify"', encoding="utf-8")
    loaded = load_runs([tmp_path])
    kinds = " ".join(sorted(run.kind for run in loaded.runs))
    assert kinds == "benchmark faults gpu-memory peers soak verify"
    assert (loaded.skipped, loaded.copies) == ((), 0)
    by_kind = {run.kind: run for run in loaded.runs}
    logged = by_kind["gpu-memory"].documents
    assert [it.test for it in logged if isinstance(it, GpuMemoryDocument)] == ["a", "b"]
    assert isinstance(by_kind["soak"].documents[0], SoakDocument)
    assert by_kind["soak"].pymllm == CAMPAIGN.version
    assert by_kind["benchmark"].commit == "ab" * 20
    assert by_kind["peers"].machine is not None
    assert by_kind["verify"].pymllm == "0.1.0"


def test_a_document_that_tells_when_and_where_is_believed(tmp_path: Path) -> None:
    """Results of GPU benchmarks have a date, a commit and a device."""
    (run,) = load_runs([samples.write(tmp_path / "gpu.json", samples.gpu_benchmarks())]).runs
    assert (run.time, run.time_is_of_file) == ("2026-11-21T15:03:11Z", False)
    assert (run.commit, run.modified, run.pymllm) == ("ab" * 20, True, "0.1.0+abc")
    assert run.machine is not None
    assert [gpu.name for gpu in run.machine.gpus] == ["Some GPU"]
    bad = samples.write(tmp_path / "bad.json", samples.gpu_benchmarks(date="yesterday"))
    with pytest.raises(TraceError, match="yesterday"):
        load_runs([bad])


def test_a_document_alone_has_the_time_of_its_file_and_no_machine(tmp_path: Path) -> None:
    """A document without a time and a machine has the time of its file and no machine."""
    path = samples.write(tmp_path / "verify.json", samples.verify())
    os.utime(path, (1_700_000_000, 1_700_000_000))
    (run,) = load_runs([path]).runs
    assert (run.time, run.time_is_of_file, run.machine) == ("2023-11-14T22:13:20Z", True, None)


def test_the_programs_of_a_document_come_with_it(tmp_path: Path) -> None:
    """As far as they are there; what is not shown is told."""
    samples.write(tmp_path / "verify.json", samples.verify())
    write_ledger(tmp_path / "ledger.jsonl", replace(RECORD, file="programs/long", short="/dev/zero"))
    verify, soak = sorted(load_runs([tmp_path]).runs, key=lambda run: run.kind, reverse=True)
    why = "is not in the folder of the run"
    assert verify.unread == (f"program runs/faulty-x-P2-0.jsonl: {why}",)
    assert soak.unread == (f"program /dev/zero: {why}",)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "faulty-x-P2-0.jsonl").write_text("\n".join(samples.PROGRAM), encoding="utf-8")
    (run,) = load_runs([tmp_path / "verify.json"]).runs
    assert (run.programs, run.unread) == ({"runs/faulty-x-P2-0.jsonl": samples.PROGRAM}, ())


def test_copies_count_once_and_runs_are_in_order_of_time(tmp_path: Path) -> None:
    """However often a folder is named, and whatever a copy is called."""
    later = write_run(tmp_path, HEADER, EACH[:1])
    earlier = samples.write(tmp_path / "x.json", samples.verify())
    os.utime(earlier, (1_700_000_000, 1_700_000_000))
    (tmp_path / "copy.jsonl").write_bytes(later.read_bytes())
    loaded = load_runs([tmp_path, later])
    assert [run.kind for run in loaded.runs] == ["verify", "benchmark"]
    assert loaded.copies == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "x.json:1: not JSON"),
        ("\n", "x.json: the file is empty"),
        ('{"a": "', "not JSON: Unterminated string starting at column 7"),
        ('{"a": NaN}', "NaN is no number that JSON has"),
        ("[" * 100_000, "x.json: "),
        ("[]", "no run: neither a document"),
        ('{"schema": "pymllm.shrink", "version": 1}', "a report shows no document 'pymllm.shrink'"),
        ('{"benchmarks": [], "machine_info": {}}', "no whole file of pytest-benchmark"),
        ("\n".join(samples.PROGRAM), "this is a program; pymllm rerun and pymllm judge take it"),
        ('{"schema": "pymllm.gpu-memory"}\n3\n', "each line must be an object"),
        ('{"schema": "pymllm.gpu-memory"}\n{\n', "x.json:2: not JSON"),
        ('{"format": "pymllm-run", "schema": 2}', "this version reads 'pymllm-run', 1"),
        ('{"format": "pymllm-soak", "schema": 1}\n', "missing"),
    ],
)
def test_a_file_that_was_named_and_is_no_run_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    """Somebody expects to see it."""
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        load_runs([path])
    assert said in str(caught.value)


def test_a_file_that_cannot_be_opened_counts_as_one_that_looks_like_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it is told, and not passed over."""
    from pymllm.report import loading

    samples.write(tmp_path / "x.json", samples.verify())

    def fail(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(loading, "open_regular", fail)
    assert len(load_runs([tmp_path]).runs) == 1


def test_nothing_that_is_called_a_run_vanishes(tmp_path: Path) -> None:
    """Whatever became of it: a store with a gap is not a smaller store."""
    store = tmp_path / "store"
    whole = write_run(store, HEADER, EACH[:1]).read_bytes()
    for name, content in {
        "binary": b"\x7fELF\0\xff",
        "cut": whole[:30],
        "empty": b"",
        "text": b"hello\n",
    }.items():
        (store / f"{name}.run.jsonl").write_bytes(content)
    (store / "folder.run.jsonl").mkdir()
    (store / "folder.run.jsonl" / "inner.run.jsonl").write_bytes(whole + b"\n")
    (store / "link.run.jsonl").symlink_to("gone")
    (store / "loop.run.jsonl").symlink_to("loop.run.jsonl")
    os.mkfifo(store / "pipe.run.jsonl")
    (store / "zero.run.jsonl").symlink_to("/dev/zero")
    (store / "other.json").symlink_to("gone")  # which nobody called a run
    os.mkfifo(store / "pipe.json")
    loaded = load_runs([store])
    assert (len(loaded.runs), loaded.copies) == (1, 1)
    for pipe in (store / "pipe.json", Path("/dev/null")):
        with pytest.raises(TraceError, match="is no regular file, and only those are read"):
            load_runs([pipe])
    told = {Path(it.source).name.removesuffix(".run.jsonl"): it.reason for it in loaded.skipped}
    assert sorted(told) == sorted(
        ["binary", "cut", "empty", "text", "folder", "link", "loop", "pipe", "zero"]
    )
    assert told["folder"] == told["pipe"] == "is no regular file"
    assert (told["link"], told["loop"]) == ("No such file or directory", "Too many levels of symbolic links")
    assert told["zero"].startswith("is a link to a file outside of this folder")


def test_a_link_that_leads_out_of_a_folder_is_told_and_not_followed(tmp_path: Path) -> None:
    """A page reads no link that leads out of the named folders."""
    store, other = tmp_path / "store", tmp_path / "other"
    write_run(store / "deep", HEADER, EACH[:1])
    secret = samples.write(other / "verify.json", samples.verify())
    (store / "file.json").symlink_to(secret)
    (store / "folder").symlink_to(other)
    (store / "inner").symlink_to("deep")
    (store / "notes.txt").symlink_to(secret)
    (tmp_path / "link").symlink_to(store)
    for folder in (store, tmp_path / "link"):
        loaded = load_runs([folder])
        assert [run.kind for run in loaded.runs] == ["benchmark"]
        assert [Path(it.source).name for it in loaded.skipped] == ["file.json", "folder"]
        assert "to read that file, name it" in loaded.skipped[0].reason
    assert len(load_runs([store, secret]).runs) == 2
    assert len(load_runs([store, store / "file.json"]).runs) == 2


def test_what_may_not_be_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are shown. Root may look at everything, so the answers of the system are given here."""
    samples.write(tmp_path / "store" / "good.json", samples.verify())
    locked = tmp_path / "store" / "locked"
    hidden = samples.write(tmp_path / "store" / "hidden.json", samples.verify())
    secret = samples.write(tmp_path / "store" / "secret.json", samples.verify())
    samples.write(tmp_path / "store" / "old.json", samples.verify() | {"version": 0})
    locked.mkdir()
    scandir, look, opened = os.scandir, os.stat, os.open

    def refuse(path: str | Path, closed: Path) -> None:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))

    def open_file(path: str | Path, *flags: int, **options: Any) -> int:
        refuse(path, secret)
        return opened(path, *flags, **options)

    def scan(path: str) -> object:
        refuse(path, locked)
        return scandir(path)

    def stat(path: str | Path, **options: bool) -> os.stat_result:
        refuse(path, hidden)
        return look(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scan)
        patch.setattr(os, "stat", stat)
        patch.setattr(os, "open", open_file)
        loaded = load_runs([tmp_path / "store"])
        assert [(Path(it.source).name, it.reason.partition(" of ")[0]) for it in loaded.skipped] == [
            ("locked", "its files cannot be listed: Permission denied"),
            ("hidden.json", "Permission denied"),
            ("old.json", "version 0"),
            ("secret.json", "Permission denied"),
        ]
        assert len(loaded.runs) == 1
        for path in (locked, secret):
            with pytest.raises(PermissionError):
                load_runs([path])


def test_what_a_report_is_made_of_is_known_from_its_beginning(tmp_path: Path) -> None:
    """Pages and feeds that quote one are none."""
    assert is_run_or_program(write_run(tmp_path, HEADER, EACH[:1]))
    assert is_run_or_program(samples.write(tmp_path / "verify.json", samples.verify()))
    (tmp_path / "x.jsonl").write_text("\n".join(samples.PROGRAM), encoding="utf-8")
    (tmp_path / "link").symlink_to("x.jsonl")
    assert is_run_or_program(tmp_path / "x.jsonl")
    assert is_run_or_program(tmp_path / "link")
    (tmp_path / "page.html").write_text(f"<p>{samples.PROGRAM[0]}</p>", encoding="utf-8")
    for name in ("page.html", "gone", ".", "/dev/null"):
        assert not is_run_or_program(tmp_path / name)


def test_an_empty_folder_is_an_error_whatever_another_has(tmp_path: Path) -> None:
    """A file that could not be read is of its own folder."""
    (tmp_path / "old").mkdir()
    (tmp_path / "empty").mkdir()
    samples.write(tmp_path / "old" / "old.json", samples.verify() | {"version": 0})
    assert len(load_runs([tmp_path / "old"]).skipped) == 1
    why = "no run in this folder; pymllm verify --store FOLDER puts one there"
    with pytest.raises(TraceError, match=why):
        load_runs([tmp_path / "old", tmp_path / "empty"])


def test_programs_of_a_store_are_those_of_its_records(tmp_path: Path) -> None:
    """No file beside the store is looked at."""
    write_run(tmp_path, HEADER, [Document(samples.verify()), Program("runs/faulty-x-P2-0.jsonl", ("x",))])
    assert load_runs([tmp_path]).runs[0].programs == {"runs/faulty-x-P2-0.jsonl": ("x",)}
