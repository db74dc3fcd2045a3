"""Files of pytest-benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.report.benchmark_file import (
    better_of,
    is_benchmark_file,
    machine_of,
    read_benchmark_file,
    unit_of,
)
from pymllm.report.records import Figure, Gpu, Histogram, make_machine
from tests.unit.report import samples

NAME = "benchmarks/bench_x.py::test_hit[p1]"


def test_a_benchmark_becomes_figures_and_a_histogram() -> None:
    """The median with its quartiles, what is noted beside it, and the samples."""
    header, records = read_benchmark_file(samples.benchmark_file())
    assert (header.kind, header.time, header.commit, header.modified) == (
        "benchmark",
        "2026-11-21T15:03:11Z",
        "ab" * 20,
        True,
    )
    assert header.versions == {"python": "3.11.7", "pytest-benchmark": "5.3.1"}
    median, p99, nodes, rate, histogram = records
    assert isinstance(median, Figure)
    assert (median.name, median.value, median.unit, median.better) == (
        f"{NAME}: median",
        2e-5,
        "s",
        "smaller",
    )
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
        ("p99_us", "us", "smaller"),
        ("seconds", "s", "smaller"),
        ("peak_bytes", "bytes", "smaller"),
        ("hit_rate", "", "bigger"),
        ("operations_per_second", "operations/s", "bigger"),
        ("tokens_per_op", "tokens/op", "bigger"),
        ("hit_tokens", "tokens", None),
        ("nodes", "nodes", None),
        ("pieces", "", None),
    ],
)
def test_unit_and_direction_follow_from_a_name(key: str, unit: str, better: str | None) -> None:
    """What is neither a duration, nor bytes, nor a rate is a fact."""
    assert (unit_of(key), better_of(key)) == (unit, better)
