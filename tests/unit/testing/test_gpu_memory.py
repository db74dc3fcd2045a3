"""What a test used, by whoever can tell, limits on it, and sizes as people write them."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from pymllm.errors import UsageError
from pymllm.instrument.nvml_counters import DeviceUse
from pymllm.instrument.reading import BYTES, Reading
from pymllm.testing.gpu_memory import GpuMemory, GpuMemoryRecord, LimitOutcome, parse_bytes
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
    """What NVML says of processes."""
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
    """What a library takes beside torch comes with the first test that opens it, unless all of it counts."""
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
    for others, why in ((1, "1 processes use the device, too"), (None, "not among them")):
        record = grown(GpuMemory(hz=500, source=FakeAllocator(), use=lambda n=others: use(n)), 3 * GIB)  # type: ignore[misc]
        assert record.judge(GIB).outcome is LimitOutcome.KEPT
        assert why in str(record.beside.reason)
        assert record.judge(GIB, whole_device=True).outcome is LimitOutcome.EXCEEDED


@on_machine()
def test_the_allocators_growth_is_not_counted_twice() -> None:
    """What the device has more because the allocator reserved it is torch's."""
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
    """Among other processes, memory that is still there was used; of a peak before, nobody knows."""
    absent = FakeAllocator(missing="torch is not loaded in this process")
    told = iter([use(1, GIB), use(1, 3 * GIB)])
    with GpuMemory(source=absent, use=lambda: next(told)) as memory:
        pass
    assert memory.summary().judge(GIB).outcome is LimitOutcome.EXCEEDED
    verdict = memory.summary().judge(2 * GIB)
    assert verdict.outcome is LimitOutcome.UNKNOWN
    assert "nobody saw the peak" in str(verdict)


@on_machine()
def test_processes_are_looked_up_before_and_after() -> None:
    """By default NVML is asked, and nothing of it stays open."""
    say(processes=f"{os.getpid()}:{GIB}")
    with GpuMemory(source=FakeAllocator()) as memory:
        say(processes=f"{os.getpid()}:{GIB} 1:{GIB}")
    record = memory.summary()
    assert (record.own_start.value, record.others.value) == (GIB, 1)
    assert users() == 0
