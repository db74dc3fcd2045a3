"""What torch's allocator did while something ran."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pytest

from pymllm.errors import UsageError
from pymllm.instrument.reading import BYTES, COUNT, Reading
from pymllm.instrument.torch_memory import TorchMemoryTracker, read_torch_memory
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


def test_counters_that_a_backend_does_not_keep_are_unknown() -> None:
    """cudaMallocAsync leaves some at zero, whatever happened; a torch may lack others."""
    allocator = FakeAllocator("cudaMallocAsync")
    allocator.allocate(MIB)
    memory = read_torch_memory(allocator)
    assert memory.allocated.value == MIB
    for reading in (memory.inactive_split, memory.alloc_retries, memory.ooms):
        assert reading.reason == "the cudaMallocAsync backend does not count it"


def test_a_counter_that_this_torch_lacks_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that came with a later torch is a reason, not a KeyError."""
    allocator = FakeAllocator()
    monkeypatch.setattr(allocator, "stats", lambda: {"allocated_bytes.all.current": 7})
    memory = read_torch_memory(allocator)
    assert memory.allocated.value == 7
    assert memory.ooms.reason == "this torch has no counter num_ooms"


def test_a_run_has_its_own_peak() -> None:
    """What was higher before the run is not its peak; retries and failures are those within."""
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


def test_an_inner_peak_is_an_outer_peak() -> None:
    """The highest of all is the outermost's."""
    allocator = FakeAllocator()
    with TorchMemoryTracker(source=allocator) as outer:
        allocator.allocate(MIB)
        with TorchMemoryTracker(source=allocator):
            allocator.allocate(7 * MIB)
            allocator.free(7 * MIB)
    assert outer.summary().allocated_peak.value == 8 * MIB


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
    """It is what was seen when the run ended; before, it is what is seen now."""
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


def test_a_running_tracker_is_not_entered_again() -> None:
    """X1: two runs in one record would be neither; the first goes on."""
    tracker = TorchMemoryTracker(source=FakeAllocator())
    with tracker:
        with pytest.raises(UsageError, match="runs already"):
            tracker.__enter__()
        assert tracker.summary().end.allocated.value == 0


def test_a_tracker_that_never_ran_says_so() -> None:
    """No record is made up."""
    with pytest.raises(UsageError, match="has not run yet"):
        TorchMemoryTracker(source=FakeAllocator()).summary()


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


def test_no_history_is_recorded_unless_wanted(tmp_path: Path) -> None:
    """Recording slows every allocation down."""
    allocator = FakeAllocator()
    with TorchMemoryTracker(source=allocator) as tracker:
        assert allocator.history is None
        with pytest.raises(UsageError, match="no history is recorded"):
            tracker.dump(tmp_path / "snapshot.pickle")


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
