"""Results of GPU benchmarks."""

from __future__ import annotations

from pymllm.report.gpu_section import make_gpu_section
from tests.unit.report import samples
from tests.unit.report.looking import cells, tables


def test_a_case_has_its_times_its_speed_and_its_goals() -> None:
    """With units, and a word for each goal."""
    section = make_gpu_section([samples.run(samples.gpu_benchmarks())])
    goals = "✓ met: of the speed of a copy 0.9, at least 0.85; ✗ missed: of torch's time 1.2, at most 1"
    assert tables(section) == {
        "2026-11-21 15:03:11 UTC: Some GPU, driver 580.1, torch 2.13.0": [
            [
                "set_kv_buffer",
                "tokens 64, dtype bfloat16",
                "graph",
                "ours 12 µs, copy 10 µs",
                "2,500 GB/s",
                goals,
            ]
        ]
    }
    assert cells(section, goals)[0].tone == "unknown"
    assert section is not None
    assert (section.tiles[0].value, section.tiles[0].tone) == ("1 of 2", "unknown")


def test_a_case_without_goals_has_none_and_the_newest_run_comes_first() -> None:
    """Then there is no tile to count them."""
    plain = samples.gpu_benchmarks()
    plain["results"][0]["goals"] = []
    plain["machine"]["driver"] = None
    newer = samples.run(plain, time="2026-11-22T00:00:00Z")
    section = make_gpu_section([samples.run(samples.gpu_benchmarks()), newer])
    assert [caption[:10] for caption in tables(section)] == ["2026-11-22", "2026-11-21"]
    assert "driver unknown" in next(iter(tables(section)))
    assert section is not None
    assert section.tiles == ()


def test_without_results_there_is_no_section() -> None:
    """It would be empty."""
    assert make_gpu_section([samples.run(samples.gpu_benchmarks(results=[]))]) is None
