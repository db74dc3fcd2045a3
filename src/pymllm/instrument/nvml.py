"""The NVML tracker, which samples a device in a thread during a run."""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, Self, TypeVar

from pymllm.errors import UsageError
from pymllm.instrument import nvml_library
from pymllm.instrument.nvml_counters import HealthWatch, MemoryGauge, process_memory, why_invalid
from pymllm.instrument.nvml_device import NvmlDevice, device_index, find_device
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.nvml_record import (
    Channel,
    CurveRecorder,
    Health,
    MemoryCurve,
    NvmlRecord,
    SamplingCost,
    UsedMeans,
)
from pymllm.instrument.reading import BYTES, COUNT, PERCENT, Reading, Unreadable

_FORKED = "this process was forked from the one that watches; track inside it, started with spawn"
_NOT_ENDED = "read when the run ends"


@dataclass(frozen=True, slots=True)
class Watched:
    """The library, the device and the counters of a run with a device to watch."""

    library: NvmlLibrary
    device: NvmlDevice
    gauge: MemoryGauge | None
    health: HealthWatch

    def utilization(self) -> int:
        """Return the percentage of recent time in which any kernel ran."""
        rates = self.library.call("nvmlDeviceGetUtilizationRates", self.device.handle)
        return int(rates.gpu)


class NvmlRun:
    """A watch on a device from `start` to `stop`, with a sample at a fixed interval."""

    def __init__(self, device: int | str, period: float) -> None:
        self._name = device
        self._period = period
        self._pid = os.getpid()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._watched: Watched | None = None
        self._reason: str | None = None
        self._is_stopping = self._is_sampling = self._is_stuck = False
        self._started_ns = 0
        self._ended_ns: int | None = None
        self._due = 0.0
        self._recorder = CurveRecorder()
        self._memory = Channel(BYTES)
        self._utilization = Channel(PERCENT)
        self._process_start = self._process_end = Reading.unknown(BYTES, _NOT_ENDED)
        self._samples = self._total_ns = self._longest_ns = self._ends_ns = 0
        self._pausing = self._pauses = self._paused_ns = self._paused_at_ns = 0

    def is_forked(self) -> bool:
        """Whether this process is a forked child of the watching one, without its thread and library."""
        return os.getpid() != self._pid

    # -- start and end ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the device, take the first readings, and start sampling; missing readings are unknown."""
        began = time.perf_counter_ns()
        library = NvmlLibrary()
        try:
            self._watched = library.within(lambda: self._watch(library))
        except Unreadable as reason:
            self._reason = str(reason)
        self._started_ns = time.perf_counter_ns()
        self._ends_ns += self._started_ns - began
        if self._watched is not None and self._ask_within(self._sample):
            self._thread = threading.Thread(target=self._keep_sampling, name="pymllm-nvml", daemon=True)
            self._thread.start()

    def _watch(self, library: NvmlLibrary) -> Watched:
        """Open NVML, and take the first readings; without a device NVML stays closed."""
        library.open(None)
        try:
            device = find_device(library, self._name)
        except Unreadable:
            library.close()
            raise
        gauge = None
        try:
            gauge = MemoryGauge(library, device)
        except Unreadable as reason:
            self._memory.fail(reason)
        self._process_start = process_memory(library, device).mine
        return Watched(library, device, gauge, HealthWatch(library, device))

    def _ask_within(self, ask: Callable[[], None]) -> bool:
        """Call a function that calls the driver, without holding a lock; return whether it finished."""
        assert self._watched is not None
        try:
            self._watched.library.within(ask)
        except Unreadable as reason:
            self._reason = str(reason)
            return False
        return True

    def stop(self) -> None:
        """Stop sampling, take a last sample and the last readings, within a time limit."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        watched = self._watched
        if watched is not None and self._thread is not None:
            try:
                watched.library.join(self._thread)
            except Unreadable as reason:
                self._reason = str(reason)
        is_quiet = not self._pausing
        if watched is not None and is_quiet and self._reason is None:
            self._ask_within(self._sample)
        self._ended_ns = time.perf_counter_ns()
        if watched is not None and self._reason is None:
            self._ask_within(lambda: self._end(watched, is_quiet))
        self._ends_ns += time.perf_counter_ns() - self._ended_ns

    def _end(self, watched: Watched, is_quiet: bool) -> None:
        """Take the last readings, except slow ones while other work is timed."""
        if is_quiet:
            self._process_end = process_memory(watched.library, watched.device).mine
        else:
            self._process_end = Reading.unknown(BYTES, "the run ended while it was paused")
        watched.health.close()
        watched.library.close()

    # -- sampling --------------------------------------------------------------------------------------

    def _keep_sampling(self) -> None:
        """Sample whenever a sample is due, unless paused, without holding a lock during driver calls."""
        while self._wait_until_due():
            self._sample()
            with self._condition:
                self._is_sampling = False
                self._condition.notify_all()

    def _wait_until_due(self) -> bool:
        """Wait for the time of the next sample; return false once sampling has ended."""
        with self._condition:
            while not self._is_stopping:
                wait = None if self._pausing else self._due - time.perf_counter()
                if wait is not None and wait <= 0:
                    self._is_sampling = True
                    return True
                self._condition.wait(wait)
            return False

    def _sample(self) -> None:
        """Take all readings of a sample, and then record them."""
        watched = self._watched
        assert watched is not None
        began = time.perf_counter_ns()
        used = None if watched.gauge is None else self._ask(watched, self._memory, watched.gauge.read)
        utilization = self._ask(watched, self._utilization, watched.utilization)
        watched.health.sample()
        took = time.perf_counter_ns() - began
        with self._condition:
            if used is not None:
                self._memory.take(used)
                if isinstance(used, int):
                    self._recorder.add((began - self._started_ns) / 1e9, used)
            if utilization is not None:
                self._utilization.take(utilization)
            self._samples += 1
            self._total_ns += took
            self._longest_ns = max(self._longest_ns, took)
            self._due = time.perf_counter() + self._period

    @staticmethod
    def _ask(watched: Watched, channel: Channel, question: Callable[[], int]) -> int | Unreadable | None:
        """Take one reading of a sample, unless its channel is closed."""
        if not channel.is_open:
            return None
        try:
            return question()
        except Unreadable as reason:
            watched.health.notice(reason)
            return reason

    def pause(self) -> None:
        """Prevent samples until `resume`, and wait for a current one unless the driver hangs."""
        if self.is_forked():
            return
        with self._condition:
            self._pausing += 1
            self._pauses += 1
            self._wait_for(lambda: not self._is_sampling)
            if self._pausing == 1:
                self._paused_at_ns = time.perf_counter_ns()

    def resume(self) -> None:
        """Undo one `pause`; after the last one, wait for a sample that is due."""
        if self.is_forked():
            return
        with self._condition:
            self._pausing -= 1
            if self._pausing:
                return
            self._paused_ns += time.perf_counter_ns() - self._paused_at_ns
            taken = self._samples
            self._condition.notify_all()
            if self._thread is not None and not self._is_stopping and time.perf_counter() >= self._due:
                self._wait_for(lambda: self._samples > taken)

    def _wait_for(self, happens: Callable[[], bool]) -> None:
        """Wait for an action of the sampler; if it hangs in the driver, only once."""
        if not self._is_stuck:
            self._is_stuck = not self._condition.wait_for(happens, nvml_library.PATIENCE)

    # -- what was seen ---------------------------------------------------------------------------------

    def record(self) -> NvmlRecord:
        """Return the record of the run so far."""
        if self.is_forked():
            return self._nothing(_FORKED)
        with self._condition:
            watched = self._watched
            if watched is None:
                return self._nothing(self._reason or "the run has not begun")
            gauge, health = watched.gauge, watched.health.seen()
            why = self._memory.reason or "no sample was taken"
            none = Reading.unknown(BYTES, why)
            first, last = self._recorder.first, self._recorder.last
            unwatched = watched.health.unwatched()
            if self._reason is not None:
                unwatched = (self._reason, *unwatched)
            if self._memory.reason is not None:
                unwatched = (f"device memory: {self._memory.reason}", *unwatched)
            return NvmlRecord(
                device=watched.device.identity,
                reason=None,
                seconds=self._seconds(),
                used_means=UsedMeans.UNKNOWN if gauge is None else gauge.means,
                total=none if gauge is None else gauge.total,
                reserved=none if gauge is None else gauge.reserved,
                used_start=none if first is None else Reading(first, BYTES),
                used_end=none if last is None or self._memory.is_failing else Reading(last, BYTES),
                used_peak=self._memory.peak(),
                process_start=self._process_start,
                process_end=self._process_end,
                utilization_mean=self._utilization.mean(),
                utilization_peak=self._utilization.peak(),
                health=health,
                invalid=why_invalid(health),
                unwatched=unwatched,
                cost=self._cost(),
                curve=self._recorder.curve(),
            )

    def _nothing(self, reason: str) -> NvmlRecord:
        """Return the record of a run in which no device could be watched."""
        size, count, rate = (Reading.unknown(unit, reason) for unit in (BYTES, COUNT, PERCENT))
        sizes = ("total", "reserved", "used_start", "used_end", "used_peak", "process_start", "process_end")
        return NvmlRecord(
            device=None,
            reason=reason,
            seconds=self._seconds(),
            used_means=UsedMeans.UNKNOWN,
            **dict.fromkeys(sizes, size),
            utilization_mean=rate,
            utilization_peak=rate,
            health=Health((), (), count, count, count, None),
            invalid=(),
            unwatched=(reason,),
            cost=self._cost(),
            curve=self._recorder.curve(),
        )

    def _seconds(self) -> float:
        end = time.perf_counter_ns() if self._ended_ns is None else self._ended_ns
        return max(0, end - self._started_ns) / 1e9

    def _cost(self) -> SamplingCost:
        return SamplingCost(
            samples=self._samples,
            failures=self._memory.failures + self._utilization.failures,
            total_ns=self._total_ns,
            longest_ns=self._longest_ns,
            ends_ns=self._ends_ns,
            pauses=self._pauses,
            paused_ns=self._paused_ns,
        )


P = ParamSpec("P")
R = TypeVar("R")

_BEGIN_ONLY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class NvmlTracker:
    """A context manager and decorator that samples a device ``hz`` times a second in a thread.

    What cannot be watched is ``unknown`` with its reason; CUDA is never initialised, and torch never loaded.
    Entered again while it runs, it watches until the outermost leaves; entered later, it starts a new record.
    Cost: some tens of microseconds a sample, mostly without Python's lock; milliseconds before and after.
    """

    def __init__(self, device: Any = None, *, hz: float = 10.0) -> None:
        if isinstance(hz, bool) or not isinstance(hz, int | float):
            raise TypeError(f"hz must be a number, got {hz!r} of type {type(hz).__name__}; 10 is usual")
        if not 0 < hz <= 1000:
            raise ValueError(f"hz must be above 0 and at most 1000, got {hz}; 10 is usual")
        device_index(device)
        self._device = device
        self._period = 1 / float(hz)
        self._run: NvmlRun | None = None
        self._begin_in_process()

    def _begin_in_process(self) -> None:
        """Set the state of a process without a running tracker: at first, and after a fork."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._depth = 0

    def __enter__(self) -> Self:
        if self._pid != os.getpid():
            self._begin_in_process()
        with self._lock:
            if self._depth == 0:
                self._run = NvmlRun(device_index(self._device), self._period)
                self._run.start()
            self._depth += 1
        return self

    def __exit__(self, *error: object) -> None:
        run = self._started()
        if self._pid != os.getpid():
            self._begin_in_process()
        with self._lock:
            if self._depth == 0:
                return  # What is left here was entered by the parent of this process, and goes on there.
            self._depth -= 1
            if self._depth == 0:
                run.stop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function whose calls are watched; raise `TypeError` if its calls only start work."""
        if any(begins_only(function) for begins_only in _BEGIN_ONLY):
            raise TypeError(f"{function.__qualname__} only begins when called; enter the tracker inside it")

        @functools.wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return watched

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take no samples in a ``with`` block, after waiting for a current one, for timed regions."""
        run = self._started()
        run.pause()
        try:
            yield
        finally:
            run.resume()

    @property
    def curve(self) -> MemoryCurve:
        """The memory of the device over time, so far or in the last run."""
        return self.summary().curve

    def summary(self) -> NvmlRecord:
        """Return the record of this run so far, or of the last run."""
        return self._started().record()

    def _started(self) -> NvmlRun:
        if self._run is None:
            raise UsageError(
                "the tracker has not run yet; enter it with a with statement, or call a function"
            )
        return self._run
