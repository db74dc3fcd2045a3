"""The machinery around the benchmarks: whose past is compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
from pytest_benchmark.logger import Logger

from benchmarks import code_hash, engine_overhead, file_changes, soak_merge, soak_profile, verify_profile
from benchmarks.code_hash import code_of, sources_of
from benchmarks.conftest import pytest_benchmark_compare_machine_info, pytest_benchmark_update_json
from benchmarks.machine import machine_facts
from benchmarks.process_meter import ProcessMeter

ROOT = Path(__file__).parents[2]
RADIX = ROOT / "benchmarks" / "bench_radix_cache.py"


def test_a_benchmark_s_code_is_its_file_and_the_helpers_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of either is another benchmark; one of a file beside them is not."""
    monkeypatch.setattr(code_hash, "ROOT", tmp_path)
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    files = {name: folder / f"{name}.py" for name in ("bench_it", "helper", "inner", "other")}
    texts = ["from benchmarks.helper import x", "import benchmarks.inner", "import json", "import torch"]

    def code_after(name: str | None = None, text: str = "") -> str:
        for (known, file), written in zip(files.items(), texts, strict=True):
            file.write_text(text if known == name else written, encoding="utf-8")
        sources_of.cache_clear()
        return code_of(files["bench_it"])

    before = code_after()
    assert [path.stem for path in sources_of(files["bench_it"])] == ["bench_it", "helper", "inner"]
    assert code_after("other", "import sys") == before == code_after()
    assert code_after("inner", "import sys") != before
    assert code_after("bench_it", "from benchmarks.helper import y") != before
    sources_of.cache_clear()


class Session:
    """The part of pytest-benchmark's session that our hook uses."""

    def __init__(self) -> None:
        self.logger = self
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def test_an_edited_benchmark_is_not_compared_with_its_past(pytestconfig: pytest.Config) -> None:
    """Nor one that is gone; what is unchanged is."""
    names = ["benchmarks/bench_radix_cache.py::test_a", "benchmarks/bench_radix_cache.py::test_b"]
    stored: dict[str, Any] = {"benchmarks": [{"fullname": name, "extra_info": {}} for name in names]}
    pytest_benchmark_update_json(pytestconfig, stored)
    assert {one["extra_info"]["code"] for one in stored["benchmarks"]} == {code_of(RADIX)}
    stored["benchmarks"][0]["extra_info"]["code"] = "of another day"
    stored["benchmarks"].append({"fullname": "benchmarks/gone.py::test_c", "extra_info": {"code": "x"}})
    session = Session()
    pytest_benchmark_compare_machine_info(pytestconfig, session, stored)
    assert [one["fullname"] for one in stored["benchmarks"]] == names[1:]
    assert session.warnings == ["2 of 3 stored benchmarks were edited since; not compared."]
    pytest_benchmark_compare_machine_info(pytestconfig, session, stored)
    assert len(session.warnings) == 1


def test_a_file_that_notes_nothing_has_percentiles_all_the_same(tmp_path: Path) -> None:
    """Every stored run has the percentiles that pytest-benchmark leaves out, and the hash of the code."""
    stored, bench = tmp_path / "run.json", ROOT / "benchmarks" / "bench_mamba_slot_allocator.py"
    assert "note(" not in bench.read_text(encoding="utf-8")
    options = [
        "--benchmark-enable",
        f"--benchmark-json={stored}",
        "-p",
        "no:cacheprovider",
        "-k",
        "invalidate",
    ]
    # pytest-benchmark times nothing in a worker of xdist, nor in what one of them starts.
    alone = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    command = [sys.executable, "-m", "pytest", bench, *options]
    subprocess.run(command, cwd=ROOT, env=alone, check=True, capture_output=True)
    timed = json.loads(stored.read_bytes())["benchmarks"]
    assert len(timed) == 6
    for one in timed:
        facts = one["extra_info"]
        assert 0 < facts["p50_us"] <= facts["p95_us"] <= facts["p99_us"]
        assert facts["code"] == code_of(bench)


def test_what_pytest_benchmark_warns_of_ends_no_run() -> None:
    """Warnings are errors here, and its own would end a comparison with an edited benchmark's past."""
    with warnings.catch_warnings(record=True) as seen:
        Logger(Logger.QUIET).warning("1 of 1 stored benchmarks were edited since; not compared.")
    assert [str(one.message) for one in seen] == ["1 of 1 stored benchmarks were edited since; not compared."]


def test_a_run_says_what_it_depends_on() -> None:
    """A fact that cannot be read is recorded as unknown, with the reason."""
    facts = machine_facts()
    assert {"processor", "processor_clock", "torch", "torch_threads", "torch_cuda", "nvml"} <= facts.keys()
    assert all(value and not value.endswith("None") for value in facts.values())


def test_a_profile_is_of_an_adapter_and_of_something_played(capsys: pytest.CaptureFixture[str]) -> None:
    """One that does not exist, and no operations at all, have no shares of time."""
    for profile, words in (
        (verify_profile, ["--adapter", "nosuch"]),
        (verify_profile, ["--adapter", "rows", "--examples", "0"]),
        (soak_profile, ["--adapter", "nosuch"]),
        (soak_profile, ["--operations", "0"]),
        (file_changes, ["--tokens", "-1"]),
    ):
        with pytest.raises(SystemExit) as ended:
            profile.main(words)
        assert ended.value.code == 2
        assert words[-1] in capsys.readouterr().err


def test_the_time_of_a_soak_is_told_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each adapter, in shares that add up, a judge among them; the table is one of Markdown."""
    assert soak_profile.main(["--adapter", "gdn-states", "--operations", "300"]) == 0
    head, rule, row = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    assert head == ["adapter", "ops/CPU s", *soak_profile.PARTS]
    assert set("".join(rule)) <= set("-:| ")
    assert row[0] == "gdn-states"
    percents = [int(cell.rstrip("%")) for cell in row[2:]]
    assert 97 <= sum(percents) <= 103, "each is rounded"
    assert percents[soak_profile.PARTS.index("judge")] > 0


def test_changes_of_file_are_counted_there_and_back() -> None:
    """A call into another file is a change, its return another; calls within a file are none."""
    here = (lambda: None).__code__.co_filename
    elsewhere = code_hash.__file__
    places: dict[str, object] = {}
    exec(compile("def ask(call):\n    call()\n    call()\n", elsewhere, "exec"), places)
    ask: Any = places["ask"]

    def work() -> None:
        len("no Python function")
        ask(lambda: (lambda: None)())

    assert file_changes.count_changes(work) == {(here, elsewhere): 2, (elsewhere, here): 2}


def test_changes_of_file_in_an_eviction_are_told_by_pair(capsys: pytest.CaptureFixture[str]) -> None:
    """Each two files in a row, most changes first, and their sum; a walk from inside is more."""
    assert file_changes.main(["--tokens", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    counts = [int(count) for _, _, count in rows[2:]]
    assert rows[0] == ["file", "file", "changes"]
    assert counts[:-1] == sorted(counts[:-1], reverse=True)
    assert sum(counts[:-1]) == counts[-1]
    assert ["machines/examiner.py", "oracle/judge.py", "2"] in rows
    assert file_changes.main(["--tokens", "2", "--walk"]) == 0
    assert int(capsys.readouterr().out.splitlines()[-1].strip("| ").split("|")[-1]) > counts[-1]


def test_what_a_merge_takes_is_told_by_the_number_of_shards(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs and operations of all shards, each once; a merged ledger is smaller than what it is of."""
    words = ["--shards", "2", "5", "--runs", "4", "--operations", "6000", "--longest", "200"]
    assert soak_merge.main([*words, "--groups", "2"]) == 0
    lines = [line.replace("in groups", "parts").split() for line in capsys.readouterr().out.splitlines()]
    head, *rows = lines
    assert head[:3] == ["merged", "ledgers", "runs"]
    assert [row[:3] for row in rows] == [
        *(["shards", "2", "8"], ["again", "1", "8"], ["parts", "2", "8"], ["groups", "2", "8"]),
        *(["shards", "5", "20"], ["again", "1", "20"], ["parts", "5", "20"], ["groups", "2", "20"]),
    ]
    for row in rows:
        if row[0] != "again":
            assert 0 < float(row[6].replace(",", "")) < float(row[5].replace(",", ""))
        assert 0 <= int(row[-1]) < 70
    with pytest.raises(SystemExit) as ended:
        soak_merge.main(["--shards", "0"])
    assert (ended.value.code, "0 is not a number of at least 1" in capsys.readouterr().err) == (2, True)


def test_what_an_engine_adds_is_told_beside_bare_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same campaign on both; every round is written down, and shards took a part of it."""
    words = ["--engine", "bare", "--engine", "processes", "--runs", "1", "--shards", "1", "--rounds", "1"]
    path = tmp_path / "rounds.json"
    assert engine_overhead.main([*words, "--workers", "1", "--json", str(path)]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["runs"], document["operations"]) == (1, engine_overhead.LENGTH)
    rounds = [engine_overhead.Round(**it) for it in document["rounds"]]
    assert [it.engine for it in rounds] == ["bare", "processes"]
    assert all(0 < it.shard_cpu < it.cpu and it.wall > 0 for it in rounds)
    assert engine_overhead.make_table(rounds) in capsys.readouterr().out


def test_the_best_round_of_each_engine_counts() -> None:
    """Each column for itself; an engine is beyond the bound by either time, not by its cluster's start."""
    bare = [engine_overhead.Round("bare", wall, 20.0, 18.0, 0.0, 0.0, 0.0, 0.0) for wall in (11.0, 10.0)]
    slow = engine_overhead.Round("dask", 11.5, 20.0, 18.0, 1.0, 2.0, 0.5, 1.0)
    busy = engine_overhead.Round("ray", 10.0, 22.2, 18.0, 30.0, 30.0, 0.0, 0.0)
    *_, first, second, third = engine_overhead.make_table([*bare, slow, busy]).splitlines()
    assert first.split() == [
        "bare",
        "10.0",
        "20.0",
        "18.0",
        "1.000",
        "1.000",
        "10.0",
        "20.0",
        "1.000",
        "1.000",
    ]
    assert second.split() == [
        "dask",
        "11.5",
        "20.0",
        "18.0",
        "1.150",
        "1.000",
        "13.0",
        "23.0",
        "1.300",
        "1.150",
    ]
    assert third.split()[4:6] == ["1.000", "1.110"]
    for percent, names in ((10, ["dask", "ray"]), (12, ["dask"]), (16, [])):
        assert engine_overhead.beyond([*bare, slow, busy], percent) == names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seconds", "0"], "0 is no number above 0"),
        (["--shards", "0"], "0 is no number in 1..10,000"),
        (["--most", "10", "--engine", "processes"], "add --engine bare"),
        (["--json", "/no such folder/x"], "is no folder that can be written to"),
    ],
)
def test_an_overhead_that_cannot_be_measured_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is played."""
    with pytest.raises(SystemExit) as ended:
        engine_overhead.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_meter_counts_what_left_its_parent_and_ends_it() -> None:
    """A meter counts and ends a process in its own session whose parent is gone, and no process of others."""
    work = (
        "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass\ntime.sleep(60)"
    )
    start = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {work!r}], start_new_session=True)"
    )
    with ProcessMeter(lambda words: "time.process_time" in " ".join(words[-1:])) as meter:
        subprocess.run([sys.executable, "-c", start], env=meter.environment, check=True, timeout=60)
        deadline = time.monotonic() + 60
        while meter.seconds()[1] < 0.4 and time.monotonic() < deadline:
            time.sleep(0.05)
        (left,) = meter.running()
        assert "process_time" in left.cmdline()[-1]
        everything, part = meter.seconds()
    assert 0.4 <= round(part, 6) <= round(everything, 6) < 5  # of 0.5: ticks of 0.01 s leave some out
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE


def test_the_time_of_a_verification_is_told_by_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row for each adapter, in shares of all samples; what is broken is made smaller, too."""
    monkeypatch.setattr(verify_profile, "EVERY", 0.0005)  # two programs are short: no part is to be missed
    options = ["--adapter", "rows", "--adapter", "faulty-merging-failure", "--examples", "2"]
    assert verify_profile.main(options) == 0
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()
    )
    assert head[:4] == ["adapter", "operations", "per second", "Hypothesis"]
    assert {"smaller", "machine"} <= set(head)
    assert [row[0] for row in rows] == ["rows", "faulty-merging-failure"]
    for row in rows:
        assert 95 <= sum(map(int, row[3:])) <= 105
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
