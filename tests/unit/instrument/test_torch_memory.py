"""Tests of the record of torch's allocator, which is read only where the process already uses torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from pymllm.errors import UsageError
from pymllm.instrument.allocations import name_allocations
from pymllm.instrument.reading import BYTES, COUNT, Reading
from pymllm.instrument.torch_memory import TorchAllocator, TorchMemoryTracker, read_torch_memory
from tests.fake_cuda import GIB, FakeCuda
from tests.unit.instrument.fake_allocator import SEGMENT, FakeAllocator

MIB = 1 << 20


def test_counters_are_read_by_torchs_names() -> None:
    """Each number comes from the counter that has it."""
    allocator = FakeAllocator()
    allocator.allocate(3 * MIB)
    allocator.free(MIB)
    allocator.retries, allocator.ooms = 2, 1
    memory = read_torch_memory(allocator)
    assert (memory.allocated.value, memory.reserved.value) == (2 * MIB, 4 * MIB)
    assert (memory.active.value, memory.inactive_split.value) == (2 * MIB, 2 * MIB)
    assert (memory.alloc_retries, memory.ooms) == (Reading(2, COUNT), Reading(1, COUNT))


def test_without_cuda_everything_is_unknown() -> None:
    """A torch for the CPU reads unknown, never zero."""
    with TorchMemoryTracker(source=FakeAllocator(missing="built without CUDA")) as tracker:
        pass
    record = tracker.summary()
    for memory in (record.start, record.end):
        assert {getattr(memory, field.name).reason for field in fields(memory)} == {"built without CUDA"}
    assert record.allocated_peak == Reading.unknown(BYTES, "built without CUDA")
    assert record.ooms == Reading.unknown(COUNT, "built without CUDA")
    assert record.backend is None


def test_the_torch_of_this_process_reads_something_or_why_not() -> None:
    """Without a source, torch itself is asked."""
    with TorchMemoryTracker() as tracker:
        pass
    allocated = tracker.summary().end.allocated
    assert allocated.is_known or allocated.reason


def test_counters_that_are_not_kept_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """cudaMallocAsync leaves some at zero, whatever happened; a torch may lack others."""
    allocator = FakeAllocator("cudaMallocAsync")
    allocator.allocate(MIB)
    memory = read_torch_memory(allocator)
    assert memory.allocated.value == MIB
    for reading in (memory.inactive_split, memory.alloc_retries, memory.ooms):
        assert reading.reason == "the cudaMallocAsync backend does not count it"
    older = FakeAllocator()
    monkeypatch.setattr(older, "stats", lambda: {"allocated_bytes.all.current": 7})
    memory = read_torch_memory(older)
    assert (memory.allocated.value, memory.ooms.reason) == (7, "this torch has no counter num_ooms")


def test_a_run_has_its_own_peak() -> None:
    """A run's peak, retries and failures are those within the run, not before."""
    allocator = FakeAllocator()
    allocator.allocate(64 * MIB)
    allocator.free(64 * MIB)
    allocator.retries = 5
    with TorchMemoryTracker(source=allocator) as tracker:
        allocator.allocate(8 * MIB)
        allocator.free(8 * MIB)
        allocator.retries += 2
        allocator.ooms += 1
    record = tracker.summary()
    assert record.allocated_peak.value == 8 * MIB
    assert record.active_peak.value == 8 * MIB
    assert record.reserved_peak.value == 64 * MIB
    assert (record.start.allocated.value, record.end.allocated.value) == (0, 0)
    assert (record.alloc_retries.value, record.ooms.value) == (2, 1)
    assert record.backend == "native"


def test_trackers_within_trackers_keep_each_others_peaks() -> None:
    """Torch has one peak: whoever begins it anew tells those around."""
    allocator, other = FakeAllocator(), FakeAllocator()
    with TorchMemoryTracker(source=allocator) as outer, TorchMemoryTracker(source=other) as elsewhere:
        allocator.allocate(9 * MIB)
        allocator.free(9 * MIB)
        with TorchMemoryTracker(source=allocator) as inner:
            allocator.allocate(5 * MIB)
            allocator.free(5 * MIB)
        allocator.allocate(MIB)
    assert inner.summary().allocated_peak.value == 5 * MIB
    assert outer.summary().allocated_peak.value == 9 * MIB
    assert elsewhere.summary().allocated_peak.value == 0
    with TorchMemoryTracker(source=other) as outer, TorchMemoryTracker(source=other):
        other.allocate(7 * MIB)
    assert outer.summary().allocated_peak.value == 7 * MIB


def test_cuda_may_come_into_use_within_a_run() -> None:
    """The start stays unknown; the peak of the process lies within the run."""
    allocator = FakeAllocator(missing="not initialised")
    with TorchMemoryTracker(source=allocator, history=10) as tracker:
        allocator.missing = None
        allocator.allocate(3 * MIB)
        allocator.free(3 * MIB)
    record = tracker.summary()
    assert record.start.allocated.reason == "not initialised"
    assert record.allocated_peak.value == 3 * MIB
    assert record.alloc_retries.reason == "not initialised"
    assert allocator.history is None


def test_a_record_does_not_change_after_the_run() -> None:
    """The record is fixed when the run ends; before, it follows the allocator."""
    allocator = FakeAllocator()
    with TorchMemoryTracker(source=allocator) as tracker:
        allocator.allocate(MIB)
        assert tracker.summary().end.allocated.value == MIB
    allocator.allocate(SEGMENT)
    assert tracker.summary().end.allocated.value == MIB
    assert tracker.summary().allocated_peak.value == MIB
    assert asdict(tracker.summary())["allocated_peak"]["value"] == MIB


def test_a_tracker_may_run_again() -> None:
    """Each run begins anew, with no peak of the former."""
    allocator = FakeAllocator()
    tracker = TorchMemoryTracker(source=allocator)
    with tracker:
        allocator.allocate(9 * MIB)
        with TorchMemoryTracker(source=allocator):
            pass
        allocator.free(9 * MIB)
    with tracker:
        allocator.allocate(MIB)
    assert tracker.summary().allocated_peak.value == MIB


def test_a_tracker_runs_once_at_a_time_and_says_what_it_lacks() -> None:
    """X1: two runs in one record would be neither, and the first goes on; before it there is no record."""
    tracker = TorchMemoryTracker(source=FakeAllocator())
    with pytest.raises(UsageError, match="has not run yet"):
        tracker.summary()
    with tracker:
        with pytest.raises(UsageError, match="runs already"):
            tracker.__enter__()
        assert tracker.summary().end.allocated.value == 0


def test_the_history_is_bounded_and_ends_with_the_run(tmp_path: Path) -> None:
    """A record of allocations is kept while it is wanted, never without a bound."""
    allocator = FakeAllocator()
    with TorchMemoryTracker(source=allocator, history=500) as tracker:
        assert allocator.history == 500
        tracker.dump(tmp_path / "snapshot.pickle")
    assert allocator.history is None
    assert allocator.dumped == [tmp_path / "snapshot.pickle"]
    with pytest.raises(UsageError, match="no history is recorded"):
        tracker.dump(tmp_path / "late.pickle")
    with TorchMemoryTracker(source=allocator) as tracker:
        assert allocator.history is None, "recording slows every allocation down"
        with pytest.raises(UsageError, match="no history is recorded"):
            tracker.dump(tmp_path / "unwanted.pickle")


@pytest.mark.parametrize("history", [-1, 1_000_001])
def test_an_unbounded_history_is_refused(history: int) -> None:
    """X1: refused when the tracker is made."""
    with pytest.raises(ValueError, match="history must be from 0"):
        TorchMemoryTracker(history=history)


@pytest.mark.gpu
def test_a_real_allocation_is_a_peak() -> None:
    """256 MiB that come and go within a run are its peak, and none of it is left."""
    import torch

    torch.zeros(1, device="cuda")
    with TorchMemoryTracker("cuda") as tracker:
        torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    record = tracker.summary()
    assert record.start.allocated.value is not None
    assert record.allocated_peak.value is not None
    assert record.allocated_peak.value >= record.start.allocated.value + 256 * MIB
    assert record.end.allocated == record.start.allocated


def test_torch_is_not_loaded_to_be_asked() -> None:
    """A process without torch has no memory there, and stays without."""
    code = """if True:
        import sys
        from pymllm.instrument.torch_memory import TorchAllocator
        print(TorchAllocator().why_not(), "torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "torch is not loaded in this process False\n"


def test_cuda_is_not_initialised_to_be_asked() -> None:
    """A torch without CUDA, or that has not used it, has a reason."""
    import torch

    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    reason = str(TorchAllocator("cuda:0").why_not())
    assert "built without CUDA" in reason or reason == "CUDA is not initialised in this process"
    assert not torch.cuda.is_initialized()


def test_the_device_that_was_first_asked_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that chooses another device does not make its peak of two devices."""
    fake = FakeCuda().install(monkeypatch.setattr)
    fake.devices[1].allocate(10 * GIB)
    with TorchMemoryTracker() as tracker, TorchMemoryTracker("cuda:1") as other:
        fake.set_device(1)
        fake.devices[1].allocate(10 * GIB)
        fake.devices[0].allocate(GIB)
    assert tracker.summary().allocated_peak.value == GIB
    assert other.summary().allocated_peak.value == 20 * GIB
    assert TorchAllocator("cuda").identity == 1


def test_what_cuda_cannot_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead context, and allocators that count nothing: a reason, never an error."""
    fake = FakeCuda().install(monkeypatch.setattr)
    fake.dead = "CUDA error: an illegal memory access was encountered"
    assert read_torch_memory(TorchAllocator(0)).allocated.reason == f"torch cannot tell: {fake.dead}"
    fake.dead, fake.backend = None, "pluggable"
    with TorchMemoryTracker(0) as tracker:
        TorchAllocator(0).settle()
        TorchAllocator(0).release_cache()
    assert tracker.summary().backend == "pluggable"
    assert tracker.summary().end.allocated.reason == "torch's allocator is pluggable, which counts nothing"


def test_a_wait_makes_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that this process does not use stays free of its half gigabyte."""
    fake = FakeCuda().install(monkeypatch.setattr)
    for index in (0, 1):
        TorchAllocator(index).settle()
    assert fake.waits == [0]
    assert [it.has_context for it in fake.devices] == [True, False]


@pytest.mark.gpu
def test_torch_answers_where_cuda_is_in_use(tmp_path: Path) -> None:
    """Each question reaches torch: counters, peak, reserve, history."""
    import torch

    source = TorchAllocator("cuda")
    held = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    assert source.why_not() is None
    assert source.identity == torch.cuda.current_device()
    assert source.backend() in ("native", "cudaMallocAsync")
    assert source.stats()["allocated_bytes.all.current"] >= held.nbytes
    source.reset_peak()
    assert source.stats()["allocated_bytes.all.peak"] == source.stats()["allocated_bytes.all.current"]
    torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    reserved = source.stats()["reserved_bytes.all.current"]
    source.settle()
    source.release_cache()
    assert source.stats()["reserved_bytes.all.current"] < reserved
    source.record_history(100)
    torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    source.dump(tmp_path / "snapshot.pickle")
    source.record_history(None)
    assert (tmp_path / "snapshot.pickle").stat().st_size > 0


def test_pinned_memory_and_segments_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the device that is asked for; a torch without the counter, and CUDA that is not used, say so."""
    fake = FakeCuda().install(monkeypatch.setattr)
    fake.devices[1].allocate(MIB)
    (segment,) = TorchAllocator(1).segments()
    assert [block["size"] for block in segment["blocks"]] == [MIB]
    assert "no counter active_bytes.current" in str(TorchAllocator(0).pinned_host().reason)
    fake.host["active_bytes.current"] = 4096
    assert TorchAllocator(0).pinned_host() == Reading(4096, BYTES)
    fake.is_in_use = False
    assert TorchAllocator(0).pinned_host().reason == "CUDA is not initialised in this process"


def test_what_cannot_be_named_has_a_reason() -> None:
    """Work that fails when it is repeated, an allocator without counters, and growth that stopped."""
    assert name_allocations(lambda: None, FakeAllocator(missing="no CUDA")).endswith("is unknown: no CUDA")
    assert "when it was repeated: ZeroDivisionError" in name_allocations(lambda: 1 / 0, FakeAllocator())
    assert name_allocations(lambda: None, FakeAllocator()) == "no allocation stayed in 3 more epochs"
    recording = FakeAllocator()
    recording.history = 100
    name_allocations(lambda: None, recording)
    assert recording.history == 100, "somebody else's record goes on"
