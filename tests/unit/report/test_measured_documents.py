"""What is read of measurements arrives where it belongs."""

from __future__ import annotations

from pymllm.report.documents import read_document
from pymllm.report.measured_documents import GpuBenchmarksDocument, GpuMemoryDocument, ReplayDocument
from tests.unit.report import samples


def test_times_of_a_replay_arrive() -> None:
    """By call of the cache."""
    replay = read_document(samples.replay())
    assert isinstance(replay, ReplayDocument)
    assert replay.runs[0].match.p99_us == 129.0


def test_readings_of_gpu_memory_arrive() -> None:
    """Those that could not be taken with the reason."""
    log = read_document(samples.gpu_memory())
    assert isinstance(log, GpuMemoryDocument)
    assert log.torch.reserved_peak.reason == "no CUDA"


def test_goals_of_gpu_benchmarks_arrive() -> None:
    """Met or not."""
    found = read_document(samples.gpu_benchmarks())
    assert isinstance(found, GpuBenchmarksDocument)
    assert [goal.is_met for goal in found.results[0].goals] == [True, False]
