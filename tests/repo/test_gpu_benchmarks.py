"""The results that GPU benchmarks write of a device, as far as they can be checked without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_fixtures import _write
from benchmarks.gpu_results import GpuResults, read_clocks, result_lines, write_results
from benchmarks.gpu_timing import Sampled
from benchmarks.machine import machine_facts
from benchmarks.run_store import keep_document
from pymllm.report.loading import load_runs
from pymllm.report.store import read_run
from pymllm.report.trends import find_trends
from tests.fake_nvml.machine import on_machine
from tests.stress.card import Card

pytestmark = pytest.mark.usefixtures("_no_commit")


@pytest.fixture
def _no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMLLM_COMMIT", "c0ffee")


def a_document(median: float) -> dict:
    """A run with one case, in which ours takes so long and the other one 10 microseconds."""
    results = GpuResults(Card(torch.device("cpu")))
    done: list[tuple[str, int]] = []
    contenders = {name: lambda number, name=name: done.append((name, number)) for name in ("ours", "other")}
    case = results.measure("work", {"rows": 3}, contenders, moved=96, sets=2, in_graph=False)
    assert done[:4] == [("ours", 0), ("ours", 1), ("other", 0), ("other", 1)]
    case.times["ours"], case.times["other"] = (Sampled(us, us, us, 1, 2) for us in (median, 10.0))
    results.judge("time beside the other", "ours", "other", at_most=1.2)
    results.judge("share of its speed", "ours", "other", at_least=0.85)
    return results.end()


@on_machine(name="H100")
def test_results_name_the_clocks_of_the_gpu() -> None:
    """The driver's clocks and facts are in the document of a run and in the machine of a stored run."""
    document = a_document(10.0)
    assert document["clocks"] == {when: {"sm": 1980, "mem": 2619} for when in ("before", "after")}
    assert document["health"]["unwatched"] == []
    facts = machine_facts()
    assert facts["gpu_0"].startswith("H100, driver ")
    assert facts["gpu_0"].endswith(", graphics up to 2619 MHz, memory up to 2619 MHz")


@on_machine(fail__nvmlDeviceGetClockInfo=3, fail__nvmlDeviceGetMaxClockInfo=3)
def test_clocks_that_a_gpu_does_not_tell_are_unknown() -> None:
    """As of a MIG instance: a reason, and the run goes on."""
    assert read_clocks() == {"reason": "nvmlDeviceGetClockInfo: Not Supported"}
    assert machine_facts()["gpu_0"].endswith("clocks unknown: nvmlDeviceGetMaxClockInfo: Not Supported")


@pytest.mark.parametrize(
    ("median", "met"), [(10.0, [True, True]), (11.9, [True, False]), (12.1, [False, False])]
)
def test_a_case_tells_whether_its_goals_are_met(median: float, met: list[bool]) -> None:
    """Nothing fails by a time; a file says it."""
    document = a_document(median)
    (result,) = document["results"]
    assert [goal["is_met"] for goal in result["goals"]] == met
    assert (result["mode"], result["sets"], result["moved"]) == ("launches", 2, 96)
    assert result["gigabytes_per_second"] == pytest.approx(96 / median / 1e3)
    document["machine"]["cuda"] = "13.0"
    assert "".join(result_lines(document)).count("MISSED") == met.count(False)


def test_a_file_is_its_devices_and_says_what_was_measured(tmp_path: Path) -> None:
    """Machine, versions, clocks, health, date and commit stand beside the figures."""
    document = a_document(10.0)
    document["machine"]["device"] = "NVIDIA H100 80GB HBM3"
    path = write_results(document, tmp_path / "results")
    assert path.name == "nvidia-h100-80gb-hbm3.json"
    read = json.loads(path.read_text(encoding="utf-8"))
    assert read["commit"] == "c0ffee"
    assert read["machine"]["torch"] == torch.__version__
    assert set(read["clocks"]) == {"before", "after"}
    assert {"date", "pymllm", "benchmarks", "health"} <= set(read)


def test_a_run_is_kept_for_the_report_beside_its_file(tmp_path: Path) -> None:
    """The file is of the last run; the store has all of them."""
    document = a_document(10.0)
    versions = {name: document["machine"][name] for name in ("python", "torch", "triton")}
    for _ in range(2):
        path = keep_document(tmp_path, document, versions, ["pytest", "--gpu-store=a b"])
    stored = read_run(path)
    assert stored.header.kind == "gpu-benchmarks"
    assert stored.header.command == "pytest '--gpu-store=a b'"
    assert stored.header.versions["torch"] == torch.__version__
    runs = load_runs([tmp_path]).runs
    assert len(runs) == 2
    names = {trend.name: len(trend.points) for trend in find_trends(runs)}
    assert names["gpu work (rows 3), launches: ours, median"] == 2


def test_the_options_write_what_they_name(tmp_path: Path) -> None:
    """The file, the run, or both; folders count from where pytest was started."""
    document = a_document(10.0)
    document["machine"]["device"] = "A GPU"
    typed = pytest.Config.InvocationParams(args=["x"], plugins=None, dir=tmp_path)
    assert [path.name for path in _write(document, typed, "results", None)] == ["a-gpu.json"]
    (path,) = _write(document, typed, None, "store")
    assert path.parent == tmp_path / "store"
    assert read_run(path).header.command == "pytest x"
    assert len(list(_write(document, typed, "results", "store"))) == 2
