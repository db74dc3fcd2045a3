"""Tests of a test's touch of a GPU, and of the return of the GPU's memory."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from pymllm.adapters.process.adapter import end_idle_programs
from pymllm.adapters.process.reaper import end_reaper
from pymllm.pytest_plugin.gpu_use import GpuTouch, MemoryReturn, who_holds
from tests.fake_nvml.machine import GIB, MIB, on_machine, say, users
from tests.unit.instrument.fake_allocator import FakeAllocator
from tests.warm_workers import stop_warm

NOT_USED = "CUDA is not initialised in this process"


@pytest.fixture(autouse=True)
def no_children() -> None:
    """End the programs that other tests have started from this process: they may have used a GPU, too."""
    end_idle_programs()
    end_reaper()
    stop_warm()


# -- touched -----------------------------------------------------------------------------------------------


def test_memory_that_was_given_out_is_a_touch() -> None:
    """Also where it is gone again; tensors that were there before may have been used."""
    allocator = FakeAllocator()
    touch = GpuTouch([FakeAllocator(), allocator])
    assert touch.why_untouched() == "torch's allocator gave out no memory"
    allocator.allocate(MIB)
    allocator.free(MIB)
    assert touch.why_untouched() is None
    assert GpuTouch([allocator]).why_untouched() is not None
    allocator.allocate(MIB)
    assert GpuTouch([allocator]).why_untouched() is None


def test_what_counts_nothing_accuses_nobody() -> None:
    """The driver's own allocator has no such counter; a child process may have done all the work."""
    assert GpuTouch([FakeAllocator(backend="cudaMallocAsync")]).why_untouched() is None
    assert GpuTouch([FakeAllocator(uncounted="it is pluggable")]).why_untouched() is None
    touch = GpuTouch([FakeAllocator()])
    child = subprocess.Popen(["sleep", "60"])
    assert touch.why_untouched() is None
    child.kill()
    child.wait()
    assert touch.why_untouched() is None
    assert GpuTouch([FakeAllocator()]).why_untouched() is not None


@on_machine()
def test_cuda_that_comes_into_use_is_a_touch() -> None:
    """CUDA in use is a touch, and so may be a process in the driver's list where torch uses no CUDA."""
    allocator = FakeAllocator(missing=NOT_USED)
    touch = GpuTouch([allocator])
    assert touch.why_untouched() == "CUDA was not used in this process"
    for size in (GIB, 0, "none"):
        say(processes=f"{os.getpid()}:{size}")
        assert touch.why_untouched() is None
    say(processes=f"{os.getpid() + 1}:{GIB}")
    assert touch.why_untouched() is not None
    allocator.missing = None
    assert touch.why_untouched() is None
    assert users() == 0


# -- come back ---------------------------------------------------------------------------------------------


@on_machine()
def test_memory_that_comes_back_is_waited_for() -> None:
    """A process that still ends holds it for a while; a little may stay."""
    memory = MemoryReturn(source=FakeAllocator(missing=NOT_USED))
    say(used=3 * GIB)
    back = threading.Timer(0.3, lambda: say(used=GIB + 200 * MIB))
    back.start()
    assert memory.wait(60) is None
    back.join()
    assert str(memory.wait(0, slack="100 MiB")).startswith(
        "after 0 s 200.0 MiB more are in use than before it; "
    )
    memory.close()
    assert users() == 0


@on_machine()
def test_who_has_the_memory_is_named() -> None:
    """By number and command, with the bytes."""
    child = subprocess.Popen(["sleep", "60"])
    memory = MemoryReturn(source=FakeAllocator(missing=NOT_USED))
    say(used=3 * GIB, processes=f"{child.pid}:{2 * GIB} {os.getpid()}:none 999999999:5")
    told = str(memory.wait(0))
    child.kill()
    child.wait()
    assert told.startswith("after 0 s 2.0 GiB more are in use than before it; it is held by ")
    assert f"process {child.pid} (sleep 60) 2.0 GiB, process {os.getpid()} (this one: " in told
    assert told.endswith("process 999999999 (not of this container) 5 B")
    say(used=3 * GIB)
    assert str(memory.wait(0)).endswith("; the driver lists no process that has any")
    say(fail__nvmlDeviceGetComputeRunningProcesses_v3=4)
    assert who_holds().startswith("who has memory is unknown: nvmlDeviceGetComputeRunningProcesses_v3: ")
    say(lost=1)
    assert str(memory.wait(0)).startswith("whether it has come back is unknown: ")


@on_machine()
def test_what_cuda_takes_for_itself_is_not_waited_for() -> None:
    """Its context stays with the process; tensors are the test's, unless its traceback holds them."""
    own = f"{os.getpid()}:{2 * GIB + 600 * MIB}"
    for processes in (own, "", f"{os.getpid()}:0"):  # the driver tells, hides it, or says nothing true
        say(used=GIB)
        allocator = FakeAllocator(missing=NOT_USED)
        memory = MemoryReturn(source=allocator)
        allocator.missing = None
        say(used=GIB + 600 * MIB, processes=processes.replace(str(2 * GIB + 600 * MIB), str(600 * MIB)))
        assert memory.wait(0) is None
        allocator.allocate(2 * GIB)
        say(used=3 * GIB + 600 * MIB, processes=processes)
        assert "2." in str(memory.wait(0))
        assert memory.wait(0, without_own=True) is None
        memory.close()


@on_machine(init=9)
def test_without_a_driver_nothing_is_known() -> None:
    """The reason is told instead."""
    memory = MemoryReturn(source=FakeAllocator(missing=NOT_USED))
    assert str(memory.unknown).startswith("nvmlInit: ")
    assert str(memory.wait(0)) == f"whether it has come back is unknown: {memory.unknown}"
    assert who_holds() == f"who has memory is unknown: {memory.unknown}"
