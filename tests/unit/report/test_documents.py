"""Tests of files that other programs wrote: documents, ledgers, files of pytest-benchmark, programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pymllm.documents.campaigns import Failure
from pymllm.errors import TraceError
from pymllm.oracle.verdicts import Verdict
from pymllm.report.documents import (
    DOCUMENTS,
    better_of,
    is_benchmark_file,
    machine_of,
    memory_curves,
    read_benchmark_file,
    read_document,
    read_ledger_file,
    unit_of,
)
from pymllm.report.program_files import files_of, open_regular, read_programs
from pymllm.report.records import Figure, Gpu, Histogram, make_machine
from pymllm.soak.drift import MemoryCourse
from pymllm.soak.ledger import Ledger, RunRecord
from tests.unit.report import samples
from tests.unit.soak.test_ledger import HEADER, RECORD

# -- documents -------------------------------------------------------------------------------------------

EACH: dict[str, Callable[[], dict[str, Any]]] = {
    "pymllm.verify": samples.verify,
    "pymllm.compare": lambda: {**samples.verify(), "schema": "pymllm.compare", "matrix": []},
    "pymllm.faults": samples.faults,
    "pymllm.soak": lambda: samples.soak(samples.soak_failure("R6")),
    "pymllm.situations": samples.goals,
    "pymllm.replay": samples.replay,
    "pymllm.curve": samples.curve,
    "pymllm.replay-server": samples.served,
    "pymllm.doctor": samples.doctor,
    "pymllm.vectors-run": samples.vectors,
    "pymllm.watch": samples.watch,
    "pymllm.probe": samples.probe,
    "pymllm.gpu-memory": samples.gpu_memory,
    "pymllm.peers": samples.peers,
    "pymllm.gpu-benchmarks": samples.gpu_benchmarks,
}
WHOLE = (
    *("verify", "compare", "faults", "soak", "situations", "curve", "peers", "vectors-run"),
    *("watch", "probe", "replay-server"),
)
"""Documents whose samples are whole, so that they can be held against their schemas; others have parts."""


def test_every_document_is_tried() -> None:
    """A new one needs a sample."""
    assert set(EACH) == set(DOCUMENTS)


@pytest.mark.parametrize("name", EACH)
def test_a_document_is_read_whatever_a_later_version_adds(name: str) -> None:
    """As the record of its kind."""
    assert isinstance(read_document({**EACH[name](), "weather": "fine"}), DOCUMENTS[name])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "pymllm.shrink"}, "no document 'pymllm.shrink'; it shows pymllm.verify"),
        ({"schema": None}, "no document None"),
        ({"version": 2}, "version 2 of pymllm.verify; this version of pymllm reads 1"),
        ({"adapters": 3}, "pymllm.verify.adapters is 3; it must be a list"),
        ({"adapters": [3]}, r"pymllm.verify.adapters\[0\] is 3"),
        ({"adapters": [{"name": "x"}]}, r"pymllm.verify.adapters\[0\]: field 'kind' is missing"),
    ],
)
def test_what_is_no_whole_document_is_refused(changes: dict[str, Any], said: str) -> None:
    """With the place, and what stands there."""
    with pytest.raises(ValueError, match=said):
        read_document(samples.verify() | changes)


def test_a_curve_of_a_device_has_a_time_for_each_value() -> None:
    """Or nobody knows which is which."""
    plain = samples.gpu_memory()
    plain["nvml"]["curve"]["used"] = [1]
    with pytest.raises(ValueError, match="a curve has 2 times for 1 values"):
        read_document(plain)


# -- ledger file -----------------------------------------------------------------------------------------


def runs(count: int, process: str = "p1") -> list[RunRecord]:
    memory = RECORD.memory
    memories = (
        replace(memory, process=process, operations=number * 100, uss=(50 << 20) + number, is_first=False)
        for number in range(1, count + 1)
    )
    return [
        replace(RECORD, number=number, seed=number, failure=None, memory=it)
        for number, it in enumerate(memories, 1)
    ]


def write(path: Path, *records: RunRecord) -> Path:
    with Ledger(path) as ledger:
        ledger.add(HEADER)
        for record in records:
            ledger.add(record)
    return path


def test_a_ledger_is_summed_up_like_the_campaign_itself(tmp_path: Path) -> None:
    """Operations, shares, memory."""
    found = read_ledger_file(write(tmp_path / "ledger.jsonl", *runs(20)))
    document = found.document
    assert (document.verdict, document.runs) == (Verdict.HOLDS, 20)
    assert document.operations == 20 * RECORD.operations
    assert document.adapters[0].name == RECORD.adapter
    assert [drift.measure for drift in document.drifts] == ["blocks", "uss", "rss"]
    assert {drift.verdict for drift in document.drifts} == {"flat"}
    assert found.version == HEADER.version
    (curve,) = found.curves
    assert curve.x == tuple(float(number * 100) for number in range(1, 21))
    assert (curve.y[0], curve.verdict, curve.good) == ((50 << 20) + 1, "flat", True)


@pytest.mark.parametrize(("law", "verdict"), [("R6", Verdict.VIOLATED), (None, Verdict.UNKNOWN)])
def test_a_failure_is_told(tmp_path: Path, law: str | None, verdict: Verdict) -> None:
    """With its law, or as a problem."""
    failed = replace(runs(1)[0], failure=Failure(law, "held", "none", "[1]", 9), file="programs/x.jsonl")
    document = read_ledger_file(write(tmp_path / "ledger.jsonl", failed)).document
    assert document.verdict is verdict
    (row,) = document.adapters[0].failures
    assert (row.failure.law, row.failure.step, row.file, row.runs) == (law, 9, "programs/x.jsonl", 1)


def test_two_campaigns_of_two_versions_have_no_version(tmp_path: Path) -> None:
    """Their memory is drawn all the same."""
    path = write(tmp_path / "ledger.jsonl", *runs(2))
    with Ledger(path) as ledger:
        ledger.add(replace(HEADER, version="0.2.0"))
    assert read_ledger_file(path).version is None


def course_of(records: Iterable[RunRecord]) -> MemoryCourse:
    course = MemoryCourse()
    for record in records:
        course.add(record.memory)
    return course


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    """A page must not grow with a campaign."""
    (curve,) = memory_curves(course_of(runs(1001)), ())
    assert len(curve.x) <= 240
    assert curve.x[-1] == 1001 * 100
    assert (curve.verdict, curve.good) == ("too short to tell", None)


def test_runs_without_memory_draw_nothing_and_processes_are_bounded() -> None:
    """Sixteen lines are as many as anybody can tell apart."""
    bare = replace(RECORD, memory=replace(RECORD.memory, process=""))
    assert memory_curves(course_of([bare]), ()) == ()
    many = [run for number in range(20) for run in runs(1, f"p{number:02}")]
    assert len(memory_curves(course_of(many), ())) == 16


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    """As the soak itself does."""
    (tmp_path / "x").write_text("{}\n", encoding="utf-8")
    with pytest.raises(TraceError):
        read_ledger_file(tmp_path / "x")


# -- benchmark file --------------------------------------------------------------------------------------


NAME = "benchmarks/bench_x.py::test_hit[p1]"


def test_a_benchmark_becomes_figures_and_a_histogram() -> None:
    """A benchmark becomes a median with its quartiles, the noted figures, and the samples."""
    header, records = read_benchmark_file(samples.benchmark_file())
    assert (header.kind, header.time) == ("benchmark", "2026-11-21T15:03:11Z")
    assert (header.commit, header.modified) == ("ab" * 20, True)
    assert header.versions == {"python": "3.11.7", "pytest-benchmark": "5.3.1"}
    median, p99, nodes, rate, histogram = records
    assert isinstance(median, Figure)
    assert (median.name, median.value) == (f"{NAME}: median", 2e-5)
    assert (median.unit, median.better) == ("s", "smaller")
    assert median.low == pytest.approx(1.8e-5)
    assert median.code == "c0de"
    assert p99 == Figure(f"{NAME}: p99", 80.0, "us", "smaller", code="c0de", plot=NAME)
    assert nodes == Figure(f"{NAME}: nodes", 3, "nodes", None, code="c0de", plot=NAME)
    assert rate == Figure(f"{NAME}: hit rate", 0.5, "", "bigger", code="c0de", plot=NAME)
    assert isinstance(histogram, Histogram)
    assert sum(histogram.counts) == 2
    assert histogram.ends[0] == pytest.approx(20.0, rel=0.1)
    assert histogram.ends[-1] == pytest.approx(80.0, rel=0.1)


def test_no_sample_is_above_the_end_of_its_bucket() -> None:
    """Also one that took no time at all, as a coarse clock has it."""
    data = [0.0, 1e-9, 2e-6, 1e-3]
    plain = samples.benchmark()
    plain["stats"]["data"] = data
    *_, histogram = read_benchmark_file(samples.benchmark_file(plain))[1]
    assert isinstance(histogram, Histogram)
    filled = [end for end, count in zip(histogram.ends, histogram.counts, strict=True) if count]
    assert [sample * 1e6 <= end * 1.000001 for sample, end in zip(data, filled, strict=True)] == [True] * 4
    assert filled[1] < 1e-3 * 1.1


def test_a_file_without_samples_or_commit_or_hash_says_less() -> None:
    """--benchmark-autosave keeps no samples, and an old file knows no hash."""
    plain = samples.benchmark()
    del plain["stats"]["data"], plain["extra_info"]
    header, records = read_benchmark_file(samples.benchmark_file(plain, commit_info={}))
    assert (header.commit, header.modified) == (None, False)
    assert [type(record) for record in records] == [Figure]
    assert records[0].code is None


@pytest.mark.parametrize(
    "changes",
    [{"datetime": "yesterday"}, {"benchmarks": [{}]}, {"benchmarks": [3]}, {"machine_info": {"cpu": 3}}],
)
def test_a_file_that_is_not_whole_is_refused(changes: dict[str, Any]) -> None:
    """With what is wrong."""
    with pytest.raises(ValueError, match=r"no whole file of pytest-benchmark|Invalid isoformat"):
        read_benchmark_file(samples.benchmark_file() | changes)


def test_other_json_is_no_file_of_pytest_benchmark() -> None:
    """Whatever else it has."""
    assert is_benchmark_file(samples.benchmark_file())
    assert not is_benchmark_file({"benchmarks": 3, "machine_info": {}})
    assert not is_benchmark_file(samples.verify())


def test_the_machine_is_that_of_a_store_where_the_file_tells_as_much() -> None:
    """So that benchmarks and commands of one machine are of one machine."""
    stored = make_machine("Some Processor", 8, 32 << 30, "Linux x86_64", (Gpu("Some GPU"),))
    assert machine_of(samples.peers()["machine"]) == make_machine(
        "Some Processor", 8, None, "Linux x86_64", (Gpu("Some GPU", None, "580.1"),)
    )
    assert machine_of(samples.peers()["machine"]).fingerprint == stored.fingerprint
    plain = machine_of(samples.benchmark_file()["machine_info"])
    assert (plain.gpus, plain.gpu_reason) == ((), "the file does not tell")


@pytest.mark.parametrize(
    ("info", "processor", "system"),
    [
        ({"system": "Linux", "machine": "arm64"}, "arm64", "Linux arm64"),
        ({"processor": "P", "platform": "Windows-11"}, "P", "Windows"),
        ({"gpu_0": "unknown: lost", "usable_cores": "2"}, "None", "unknown"),
    ],
)
def test_a_machine_that_tells_little_is_known_by_that(
    info: dict[str, str], processor: str, system: str
) -> None:
    """It is a machine all the same."""
    found = machine_of(info)
    assert (found.processor, found.system, found.gpus) == (processor, system, ())


@pytest.mark.parametrize(
    ("key", "unit", "better"),
    [
        ("p99_us", "us", "smaller"), ("seconds", "s", "smaller"), ("peak_bytes", "bytes", "smaller"),
        ("hit_rate", "", "bigger"), ("operations_per_second", "operations/s", "bigger"),
        ("tokens_per_op", "tokens/op", "bigger"), ("hit_tokens", "tokens", None), ("nodes", "nodes", None),
        ("pieces", "", None),
    ],
)  # fmt: skip
def test_unit_and_direction_follow_from_a_name(key: str, unit: str, better: str | None) -> None:
    """A number that is neither a duration, nor bytes, nor a rate is a fact."""
    assert (unit_of(key), better_of(key)) == (unit, better)


# -- program files ---------------------------------------------------------------------------------------


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
    """A folder may be named by a link, and links within the folder are files of it."""
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
    """A file outside the folder of the run, or no program, is left out of the page and told."""
    put(run / "secret", "not a program\n")
    put(run / "long", samples.PROGRAM[0] + "\n" * (5 << 20))
    put(Path(f"{run}-2") / "x.jsonl")
    (run / "bytes").write_bytes(b"\xff\xfe")
    (run / "deep").mkdir()
    links = {"link-out": "../outside.jsonl", "folder-out": "..", "link-to-zero": "/dev/zero", "loop": "loop"}
    for link, target in links.items():
        (run / link).symlink_to(target)
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
        f"program {names[5]} and 3 more: all programs up to this one have more than 16 MiB",
        "program 0 and 1,000 more: is not in the folder of the run",
    )
    (long,) = read_programs(["y" * 999], run).left_out
    assert len(long) < 300


def test_a_file_that_becomes_a_pipe_is_not_waited_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe or a link in the place of a checked file is refused at its opening, without a wait."""
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
