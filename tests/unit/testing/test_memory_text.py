"""Curves and records as text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pymllm.instrument.nvml_device import DeviceIdentity
from pymllm.instrument.nvml_record import MemoryCurve
from pymllm.instrument.reading import BYTES, Reading
from pymllm.testing.gpu_memory import GpuMemory, GpuMemoryRecord
from pymllm.testing.memory_text import curve_text, gpu_memory_schema, make_line, record_text, sparkline
from tests.unit.instrument.fake_allocator import FakeAllocator

GIB = 1 << 30


def record() -> GpuMemoryRecord:
    """One of a device that never was."""
    allocator = FakeAllocator()
    with GpuMemory("GPU-of-nobody", source=allocator) as memory:
        allocator.allocate(GIB)
    found = memory.summary()
    identity = DeviceIdentity("GPU-1", "Fake GPU", False, "GPU-1", "599", "13")
    curve = MemoryCurve(tuple(n / 10 for n in range(1000)), tuple(GIB + n for n in range(1000)))
    return replace(
        found, nvml=replace(found.nvml, device=identity, curve=curve, used_peak=Reading(GIB + 999, BYTES))
    )


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [
        ([], 10, ""),
        ([5, 5, 5], 10, "▁▁▁"),
        ([0, 7], 10, "▁█"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0, 0, 0, 7, 0, 0, 0, 0], 4, "▁█▁▁"),
        ([0, 9, 0, 0, 0, 0, 0], 3, "█▁▁"),
    ],
)
def test_a_curve_is_drawn_without_losing_a_peak(values: list[int], width: int, drawn: str) -> None:
    """A spike of one sample is as high among a thousand as among ten."""
    assert sparkline(values, width) == drawn


def test_a_curve_has_its_numbers() -> None:
    """Bars have no scale; the line below does."""
    text = curve_text(MemoryCurve((0.0, 1.5, 3.0), (GIB, 3 * GIB, 2 * GIB)))
    assert text == "▁█▅\n1.0 GiB to 3.0 GiB, highest after 1.50 s; 3 samples in 3.00 s"
    assert curve_text(MemoryCurve()) == "no sample of the device's memory"


def test_a_record_tells_device_tensors_and_limit() -> None:
    """What somebody needs who reads a failure in a log."""
    it = record()
    text = record_text(it, it.judge(1 << 20))
    for part in (
        "the limit is 1.0 MiB",
        "▁",
        "Fake GPU (GPU-1)",
        "tensors: 0 B before, 1.0 GiB at most",
        "retries",
    ):
        assert part in text


def test_what_was_not_watched_says_why() -> None:
    """A machine without a GPU has two lines."""
    with GpuMemory("GPU-of-nobody", source=FakeAllocator(missing="no CUDA here")) as memory:
        pass
    lines = record_text(memory.summary()).splitlines()
    assert lines[0].startswith("device: not watched: ")
    assert lines[1] == "torch's allocator: not watched: no CUDA here"


def test_a_line_of_the_log_is_json_with_a_bounded_curve() -> None:
    """Dashboards read numbers, units and reasons; an hour's curve is no megabyte."""
    it = record()
    plain = json.loads(make_line("test_x.py::test_y", "gw1", it, it.judge(GIB)))
    assert (plain["schema"], plain["version"]) == ("pymllm.gpu-memory", 1)
    assert (plain["test"], plain["worker"]) == ("test_x.py::test_y", "gw1")
    assert plain["limit"]["outcome"] == "kept"
    assert plain["torch"]["allocated_peak"] == {"value": GIB, "unit": "bytes", "reason": None}
    used = plain["nvml"]["curve"]["used"]
    assert len(used) == len(plain["nvml"]["curve"]["times"]) <= 240
    assert used[-1] == GIB + 999
    assert json.loads(make_line("t", "main", it, None))["limit"] is None


def test_a_line_keeps_to_its_schema() -> None:
    """With a limit and without one; what is not in the schema is not written."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator(gpu_memory_schema())
    it = record()
    for verdict in (None, it.judge(GIB)):
        plain = json.loads(make_line("test_x.py::test_y", "main", it, verdict))
        validator.validate(plain)
        assert not validator.is_valid({**plain, "more": 1})
        assert not validator.is_valid({**plain, "worker": 1})
