"""Tests of the GPU memory of a test: its sources, limits and leaks, and the text of its record."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest

from pymllm.errors import UsageError
from pymllm.instrument.gpu_memory import (
    GpuMemory,
    GpuMemoryRecord,
    LimitOutcome,
    curve_text,
    gpu_memory_schema,
    make_line,
    parse_bytes,
    record_text,
    sparkline,
)
from pymllm.instrument.leaks import run_epochs, why_unknown
from pymllm.instrument.nvml_counters import DeviceUse
from pymllm.instrument.nvml_device import DeviceIdentity
from pymllm.instrument.nvml_record import MemoryCurve
from pymllm.instrument.reading import BYTES, Reading
from tests.fake_nvml.machine import GIB, MIB, on_machine, say, users
from tests.unit.instrument.fake_allocator import FakeAllocator


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (0, 0),
        (4096, 4096),
        ("2 GiB", 2 << 30),
        (" 512MiB ", 512 << 20),
        ("1.5 KiB", 1536),
        ("1 TiB", 1 << 40),
        ("3 GB", 3 * 10**9),
        ("10 kB", 10_000),
        ("7B", 7),
    ],
)
def test_sizes_are_read(size: int | str, count: int) -> None:
    """Binary and decimal units mean what their names say."""
    assert parse_bytes(size) == count


@pytest.mark.parametrize(
    "size", ["", "2", "GiB", "2 gib", "-1 GiB", "2 potatoes", "1e3 MiB", -1, None, 1.5, True]
)
def test_what_is_no_size_is_refused(size: object) -> None:
    """A limit that was mistyped is not taken for another one, nor is a fraction of a byte a size."""
    with pytest.raises((ValueError, TypeError), match=r"size is|at least 0|number of bytes"):
        parse_bytes(size)  # type: ignore[arg-type]  # wrong on purpose


NOBODY = Reading.unknown(BYTES, "no device")


def use(others: int | None = 0, own: int | None = None) -> DeviceUse:
    """Return the memory and the processes that NVML shows."""
    hidden = Reading.unknown("processes", "not among them")
    return DeviceUse(
        NOBODY,
        Reading.unknown(BYTES, "not among them") if own is None else Reading(own, BYTES),
        hidden if others is None else Reading(others, "processes"),
    )


def watched(allocator: FakeAllocator, *sizes: int) -> GpuMemoryRecord:
    """The record of a test that allocates these sizes one after the other, freeing each."""
    with GpuMemory("GPU-of-nobody", source=allocator, use=use) as memory:
        for size in sizes:
            allocator.allocate(size)
            allocator.free(size)
    return memory.summary()


# -- tensors -----------------------------------------------------------------------------------------


def test_a_limit_is_on_what_a_test_adds() -> None:
    """Tensors that were there before are not this test's, and the peak counts, not the end."""
    allocator = FakeAllocator()
    allocator.allocate(5 * GIB)
    record = watched(allocator, 2 * GIB, GIB)
    assert record.tensors.value == 2 * GIB
    assert record.judge(2 * GIB).outcome is LimitOutcome.KEPT
    verdict = record.judge(2 * GIB - 1)
    assert verdict.outcome is LimitOutcome.EXCEEDED
    assert "2.0 GiB on top of what was in use before" in str(verdict)
    assert "tensors, by torch's allocator" in str(verdict)


def test_what_the_allocator_keeps_is_not_held_against_a_test() -> None:
    """A caching allocator reserves more than tensors need."""
    allocator = FakeAllocator()
    record = watched(allocator, 3 * MIB)
    assert allocator.reserved == 4 * MIB
    assert record.judge(3 * MIB).outcome is LimitOutcome.KEPT


def test_the_first_to_use_cuda_had_nothing_before() -> None:
    """CUDA comes into use within the test: the peak is all its own."""
    allocator = FakeAllocator(missing="CUDA is not initialised in this process")
    with GpuMemory("GPU-of-nobody", source=allocator, use=use) as memory:
        allocator.missing = None
        allocator.allocate(GIB)
    record = memory.summary()
    assert record.tensors.value == GIB
    assert record.judge(MIB).outcome is LimitOutcome.EXCEEDED
    assert record.beside.reason == "torch's allocator was not in use before"


def test_where_nobody_can_tell_the_reasons_are_told() -> None:
    """A machine without a GPU neither passes nor fails a limit."""
    record = watched(FakeAllocator(missing="torch is built without CUDA"))
    for whole_device in (False, True):
        verdict = record.judge(GIB, whole_device)
        assert verdict.outcome is LimitOutcome.UNKNOWN
        assert "is unknown: " in str(verdict)
    assert "torch is built without CUDA" in str(record.judge(GIB).found.reason)


def test_a_test_that_has_not_begun_has_no_record() -> None:
    """X1: a fixture that asks too early is told."""
    with pytest.raises(UsageError, match="has not run yet"):
        GpuMemory("GPU-of-nobody").summary()


# -- the device --------------------------------------------------------------------------------------


def grown(memory: GpuMemory, size: int) -> GpuMemoryRecord:
    """The record of a test on a machine whose memory in use rises and falls again."""
    peak_seen = threading.Event()
    with memory:
        say(used=GIB + size)
        while not peak_seen.is_set():
            if GIB + size in memory.curve.used:
                peak_seen.set()
        say(used=GIB)
    return memory.summary()


@on_machine()
def test_other_memory_is_told_and_not_judged() -> None:
    """Memory of a library beside torch is told, and judged only if the whole device counts."""
    allocator = FakeAllocator()
    record = grown(GpuMemory(hz=500, source=allocator, use=use), 3 * GIB)
    assert record.beside.value == 3 * GIB
    assert record.judge(2 * GIB).outcome is LimitOutcome.KEPT
    verdict = record.judge(2 * GIB, whole_device=True)
    assert verdict.outcome is LimitOutcome.EXCEEDED
    assert verdict.by == "the whole device, by NVML"
    assert users() == 0


@on_machine()
def test_others_memory_is_held_against_nobody() -> None:
    """Where another process uses the device, or that is hidden, its growth is not this test's."""
    for others, why in ((1, "1 other processes use the device, too"), (None, "not among them")):
        record = grown(GpuMemory(hz=500, source=FakeAllocator(), use=lambda n=others: use(n)), 3 * GIB)  # type: ignore[misc]
        assert record.judge(GIB).outcome is LimitOutcome.KEPT
        assert why in str(record.beside.reason)
        assert record.judge(GIB, whole_device=True).outcome is LimitOutcome.EXCEEDED


@on_machine()
def test_the_allocators_growth_is_not_counted_twice() -> None:
    """Memory that the allocator reserved on the device is counted once, as torch's."""
    allocator = FakeAllocator()
    with GpuMemory(hz=500, source=allocator, use=use) as memory:
        allocator.allocate(GIB)
        say(used=2 * GIB)
    assert memory.summary().beside.value == 0
    assert memory.summary().device.value == GIB
    assert memory.summary().judge(GIB).outcome is LimitOutcome.KEPT


@on_machine()
def test_without_torch_the_device_tells() -> None:
    """Engines in other languages have limits, too."""
    absent = FakeAllocator(missing="torch is not loaded in this process")
    record = grown(GpuMemory(hz=500, source=absent, use=use), 3 * GIB)
    assert record.judge(2 * GIB).by == "this process alone on the device, by NVML"
    assert record.judge(2 * GIB).outcome is LimitOutcome.EXCEEDED
    assert record.judge(3 * GIB).outcome is LimitOutcome.KEPT
    assert "torch" not in sys.modules


@on_machine()
def test_what_a_process_has_at_its_end_can_only_accuse() -> None:
    """Memory at the end of a process can only accuse, since the peak before is unknown."""
    absent = FakeAllocator(missing="torch is not loaded in this process")
    told = iter([use(1, GIB), use(1, 3 * GIB)])
    with GpuMemory(source=absent, use=lambda: next(told)) as memory:
        pass
    assert memory.summary().judge(GIB).outcome is LimitOutcome.EXCEEDED
    verdict = memory.summary().judge(2 * GIB)
    assert verdict.outcome is LimitOutcome.UNKNOWN
    assert "the peak was not measured" in str(verdict)


@on_machine()
def test_processes_are_looked_up_before_and_after() -> None:
    """By default NVML is asked, and nothing of it stays open."""
    say(processes=f"{os.getpid()}:{GIB}")
    with GpuMemory(source=FakeAllocator()) as memory:
        say(processes=f"{os.getpid()}:{GIB} 1:{GIB}")
    record = memory.summary()
    assert (record.own_start.value, record.others.value) == (GIB, 1)
    assert users() == 0


def test_where_nothing_can_be_read_the_reasons_are_told() -> None:
    """A machine without a GPU holds nothing against anybody, and claims nothing."""
    verdict = run_epochs(lambda: None, device="GPU-of-nobody")
    assert not verdict.leaking
    assert "no function counts the slots" in str(why_unknown(verdict))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"work": None}, "work must be a function that is called for each epoch, got None"),
        ({"epochs": 9}, "at least 10, got 9"),
        ({"epochs": 12.0}, r"epochs must be a whole number, got 12.0"),
        ({"epochs": "12"}, r"epochs must be a whole number, got '12'"),
        ({"epochs": True}, r"epochs must be a whole number, got True"),
        ({"slots": 4}, r"slots must be a function that counts them, such as lambda: 0, got 4"),
    ],
)
def test_arguments_without_sense_are_refused(arguments: dict[str, Any], said: str) -> None:
    """X1: before the work is done once."""
    done: list[int] = []
    with pytest.raises((TypeError, ValueError), match=said):
        run_epochs(**({"work": lambda: done.append(1)} | arguments))
    assert done == []


@pytest.mark.parametrize("count", [None, "3", 2.5])
def test_slots_are_whole_numbers(count: object) -> None:
    """X1: a count that was forgotten is none."""
    with pytest.raises(TypeError, match=f"a whole number, got {count!r}"):
        run_epochs(lambda: None, slots=lambda: count)  # type: ignore[arg-type, return-value]


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
    """Everything that explains a failure in a log."""
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
