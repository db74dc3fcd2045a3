"""What GPU benchmarks write of a device, as far as it can be seen without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_results import GpuResults, result_lines, write_results
from benchmarks.gpu_timing import Sampled
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
