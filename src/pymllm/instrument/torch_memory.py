"""A watch on torch's CUDA allocator while a program runs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from pymllm.errors import UsageError
from pymllm.instrument.nvml_device import device_index
from pymllm.instrument.reading import BYTES, COUNT, Reading


class AllocatorSource(Protocol):
    """The interface of a device's caching allocator."""

    @property
    def identity(self) -> Hashable:
        """An identity that all sources of the same allocator share."""

    def is_in_use(self) -> bool:
        """Whether this process uses CUDA, found without initialising it."""

    def why_not(self) -> str | None:
        """Return the reason why the allocator has no counters now, or ``None``, without initialising CUDA."""

    def backend(self) -> str:
        """Return the allocator's kind: ``"native"``, ``"cudaMallocAsync"``, or one without counters."""

    def stats(self) -> Mapping[str, int]:
        """Return its counters, by the names of ``torch.cuda.memory_stats``."""

    def reset_peak(self) -> None:
        """Reset the peaks to the memory in use."""

    def settle(self) -> None:
        """Wait for the device so that freed memory counts as free, and release cuBLAS's memory."""

    def release_cache(self) -> None:
        """Return the allocator's cached memory to the driver."""

    def segments(self) -> Sequence[Mapping[str, Any]]:
        """Return the device's segments of ``torch.cuda.memory_snapshot``."""

    def pinned_host(self) -> Reading:
        """Return the bytes of pinned host memory in this process's tensors."""

    def is_recording(self) -> bool:
        """Tell whether allocations are being recorded."""

    def record_stacks(self, on: bool) -> None:
        """Start or stop recording the stacks of allocations."""

    def record_history(self, entries: int | None) -> None:
        """Start recording a limited number of events, or stop with ``None``."""

    def dump(self, path: Path) -> None:
        """Write the history and the present allocations for torch's viewer."""


UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
"""The environment variable by which torch allocates from the driver, bypassing its counters."""


class TorchAllocator:
    """The allocator of ``torch.cuda``, used only if this process has already initialised it.

    The device is CUDA's current one where none is given, and stays the one that it was when first asked.
    """

    def __init__(self, device: Any = None) -> None:
        self._device = device
        self._index: int | None = device if isinstance(device, int) else None

    def is_in_use(self) -> bool:
        """Whether this process has initialised CUDA through torch."""
        torch = sys.modules.get("torch")
        return torch is not None and _has_cuda(torch) and bool(torch.cuda.is_initialized())

    def why_not(self) -> str | None:
        """Return the reason why the allocator has no counters now, or ``None``."""
        torch = sys.modules.get("torch")
        if torch is None:
            return "torch is not loaded in this process"
        if not _has_cuda(torch):
            return f"torch {torch.__version__} is built without CUDA"
        if not torch.cuda.is_initialized():
            return "CUDA is not initialised in this process"
        if UNCACHED in os.environ:
            return f"{UNCACHED} is set, so memory goes past the counters of torch's allocator"
        backend = self.backend()
        if backend not in _COUNTING:
            return f"torch's allocator is {backend}, which counts nothing"
        return None

    @property
    def identity(self) -> Hashable:
        """The index that torch gives to the device."""
        return self._at()

    def backend(self) -> str:
        """Return the allocator's kind."""
        return str(self._cuda().get_allocator_backend())

    def stats(self) -> Mapping[str, int]:
        """Return ``torch.cuda.memory_stats``."""
        found: Mapping[str, int] = self._cuda().memory_stats(self._at())
        return found

    def reset_peak(self) -> None:
        """Call ``torch.cuda.reset_peak_memory_stats``."""
        self._cuda().reset_peak_memory_stats(self._at())

    def settle(self) -> None:
        """Call ``torch.cuda.synchronize`` if the device has a context, since the call would create one."""
        if has_context(self._at()):
            self._cuda().synchronize(self._at())
        clear = getattr(sys.modules["torch"]._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()

    def release_cache(self) -> None:
        """Call ``torch.cuda.empty_cache``."""
        if self.why_not() is None:
            self._cuda().empty_cache()

    def segments(self) -> Sequence[Mapping[str, Any]]:
        """Return ``torch.cuda.memory_snapshot`` of this device."""
        return [it for it in self._cuda().memory_snapshot() if it["device"] == self._at()]

    def pinned_host(self) -> Reading:
        """Return the bytes in ``torch.cuda.host_memory_stats``, rounded up to powers of two by torch."""
        if not self.is_in_use():
            return Reading.unknown(BYTES, self.why_not() or "CUDA is not in use")
        ask: Any = getattr(self._cuda(), "host_memory_stats", dict)
        try:
            found = ask().get(_PINNED)
        except RuntimeError as error:
            return Reading.unknown(BYTES, f"torch cannot tell: {error}")
        if found is None:
            return Reading.unknown(BYTES, f"this torch has no counter {_PINNED}")
        return Reading(int(found), BYTES)

    def is_recording(self) -> bool:
        """Whether torch records allocations, if torch can report that."""
        told = getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", None)
        return told is not None and bool(told())

    def record_stacks(self, on: bool) -> None:
        """Start or stop torch's record of present allocations with Python stacks."""
        record = self._cuda().memory._record_memory_history
        record("state", context="state", stacks="python") if on else record(None)

    def record_history(self, entries: int | None) -> None:
        """Start torch's record of events with a bound, or stop it."""
        if entries is None:
            self._cuda().memory._record_memory_history(enabled=None)
        else:
            self._cuda().memory._record_memory_history(max_entries=entries)

    def dump(self, path: Path) -> None:  # pragma: needs cuda
        """Write the snapshot for ``pytorch.org/memory_viz``."""
        self._cuda().memory._dump_snapshot(str(path))

    def _cuda(self) -> Any:
        return sys.modules["torch"].cuda

    def _at(self) -> int:
        if self._index is None:
            device = self._cuda().current_device() if self._device is None else self._device
            named = device_index(device)
            self._index = named if isinstance(named, int) else self._cuda().current_device()
        return self._index


_COUNTING = ("native", "cudaMallocAsync")
_PINNED = "active_bytes.current"


def _has_cuda(torch: Any) -> bool:
    return torch.version.cuda is not None or torch.version.hip is not None


def has_context(index: int) -> bool:
    """Tell whether this process uses a CUDA device, or may use it if torch cannot report that."""
    told = getattr(sys.modules["torch"]._C, "_cuda_hasPrimaryContext", None)
    return told is None or bool(told(index))


_PEAKS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "active_bytes.all.peak")
# Counters that this backend leaves at zero, whatever happened.
_UNCOUNTED_BY_ASYNC = ("inactive_split_bytes.all.current", "num_alloc_retries", "num_ooms")
_MOST_HISTORY = 1_000_000
_running: list[TorchMemoryTracker] = []
_running_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class TorchMemory:
    """The state of the allocator at one time."""

    allocated: Reading  # bytes that tensors hold
    reserved: Reading  # bytes that the allocator holds, for tensors and for later
    active: Reading  # bytes of tensors, and of those whose last use on the device is not over
    inactive_split: Reading  # free bytes in segments that also have used ones: they cannot be given back
    alloc_retries: Reading  # allocations of this process that first had to give the cache back
    ooms: Reading  # allocations of this process that failed


@dataclass(frozen=True, slots=True)
class TorchMemoryRecord:
    """The memory of a run, as torch's allocator reported it."""

    start: TorchMemory
    end: TorchMemory  # now, while the tracker runs
    allocated_peak: Reading  # highest numbers of bytes within the run, exact
    reserved_peak: Reading
    active_peak: Reading
    alloc_retries: Reading  # within the run
    ooms: Reading
    backend: str | None  # the allocator's kind, which may count nothing; None where CUDA is not in use


def read_torch_memory(source: AllocatorSource) -> TorchMemory:
    """Return the allocator's counters, in some hundred microseconds and without waiting for the device."""
    return _Counters.of(source).memory()


def read_private_pools(source: AllocatorSource) -> Reading:
    """Return the bytes that private pools, known by the numbers of segments, hold for no tensor."""
    reason = source.why_not()
    if reason is not None:
        return Reading.unknown(BYTES, reason)
    try:
        private = [it for it in source.segments() if any(it.get("segment_pool_id", ()))]
    except RuntimeError as error:  # a backend without snapshots
        return Reading.unknown(BYTES, f"torch gives no snapshot: {error}")
    return Reading(sum(it["total_size"] - it["allocated_size"] for it in private), BYTES)


@dataclass(frozen=True, slots=True)
class _Counters:
    """The allocator's counters at one time, or the reason why there are none."""

    stats: Mapping[str, int]
    backend: str | None
    reason: str | None

    @classmethod
    def of(cls, source: AllocatorSource) -> _Counters:
        reason, backend = source.why_not(), None
        try:
            backend = source.backend() if source.is_in_use() else None
            if reason is None:
                return cls(source.stats(), backend, None)
        except RuntimeError as error:  # a context that is dead, or an allocator that does not count
            reason = f"torch cannot tell: {' '.join(str(error).split()) or type(error).__name__}"
        return cls({}, backend, reason)

    def read(self, name: str, unit: str = BYTES) -> Reading:
        """Return a counter by torch's name, if the backend counts it."""
        if self.reason is not None:
            return Reading.unknown(unit, self.reason)
        if self.backend == "cudaMallocAsync" and name in _UNCOUNTED_BY_ASYNC:
            return Reading.unknown(unit, "the cudaMallocAsync backend does not count it")
        if name not in self.stats:
            return Reading.unknown(unit, f"this torch has no counter {name}")
        return Reading(self.stats[name], unit)

    def memory(self) -> TorchMemory:
        return TorchMemory(
            allocated=self.read("allocated_bytes.all.current"),
            reserved=self.read("reserved_bytes.all.current"),
            active=self.read("active_bytes.all.current"),
            inactive_split=self.read("inactive_split_bytes.all.current"),
            alloc_retries=self.read("num_alloc_retries", COUNT),
            ooms=self.read("num_ooms", COUNT),
        )


class TorchMemoryTracker:
    """A tracker of the allocator's memory and peaks; ``history`` events are kept for `dump`.

    A torch without CUDA, or a process that has not initialised it, reads ``unknown``. Where CUDA comes into
    use within the run, the start stays unknown, and the peaks are the process's, all of which lie within the
    run. Torch has one peak for a process, which begins anew where a tracker begins, so trackers within
    trackers tell each other.
    """

    def __init__(
        self, device: Any = None, *, source: AllocatorSource | None = None, history: int = 0
    ) -> None:
        if not 0 <= history <= _MOST_HISTORY:
            raise ValueError(
                f"history must be from 0 to {_MOST_HISTORY:,}, got {history}: more takes all memory"
            )
        self._source = TorchAllocator(device) if source is None else source
        self._history = history
        self._is_recording = False
        self._start: TorchMemory | None = None
        self._end: TorchMemoryRecord | None = None
        self._noted = dict.fromkeys(_PEAKS, 0)

    def __enter__(self) -> Self:
        if self._start is not None and self._end is None:
            raise UsageError("the tracker runs already; leave it first, or make another")
        self._end = None
        self._noted = dict.fromkeys(_PEAKS, 0)
        counters = _Counters.of(self._source)
        self._start = counters.memory()
        with _running_lock:
            if counters.reason is None:
                for outer in _running:
                    outer._note(counters, self._source)
                self._source.reset_peak()
            _running.append(self)
        if self._history and counters.reason is None:
            self._source.record_history(self._history)
            self._is_recording = True
        return self

    def __exit__(self, *error: object) -> None:
        self._end = self.summary()
        with _running_lock:
            _running.remove(self)
        if self._is_recording:
            self._source.record_history(None)
            self._is_recording = False

    def summary(self) -> TorchMemoryRecord:
        """Return the record of this run so far, or of the last run."""
        if self._start is None:
            raise UsageError("the tracker has not run yet; enter it with a with statement")
        if self._end is not None:
            return self._end
        counters = _Counters.of(self._source)
        now = counters.memory()
        allocated, reserved, active = (self._peak(counters, name) for name in _PEAKS)
        return TorchMemoryRecord(
            start=self._start,
            end=now,
            allocated_peak=allocated,
            reserved_peak=reserved,
            active_peak=active,
            alloc_retries=now.alloc_retries.minus(self._start.alloc_retries),
            ooms=now.ooms.minus(self._start.ooms),
            backend=counters.backend,
        )

    def dump(self, path: Path) -> None:
        """Write the recorded history as a pickle for torch's viewer, while recording is on."""
        if not self._is_recording:
            raise UsageError("no history is recorded; give history=10_000, and dump before the run is over")
        self._source.dump(path)

    def _note(self, counters: _Counters, source: AllocatorSource) -> None:
        """Store the peaks before another tracker of the same allocator resets them."""
        if self._source.identity == source.identity:
            for name in _PEAKS:
                self._noted[name] = max(self._noted[name], counters.read(name).value or 0)

    def _peak(self, counters: _Counters, name: str) -> Reading:
        reading = counters.read(name)
        return reading if reading.value is None else Reading(max(reading.value, self._noted[name]), BYTES)
