"""Watches a device through NVML while something runs."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from pymllm.errors import UsageError
from pymllm.instrument.nvml_device import device_index
from pymllm.instrument.nvml_record import MemoryCurve, NvmlRecord
from pymllm.instrument.nvml_run import NvmlRun

__all__ = ["NvmlTracker"]

P = ParamSpec("P")
R = TypeVar("R")

_BEGIN_ONLY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class NvmlTracker:
    """Samples a device in a thread of its own: a context manager and a decorator.

    Parameters
    ----------
    device : int, str, torch.device or None
        CUDA's index in this process, ``"cuda:1"``, or a UUID or its beginning (``GPU-...``, ``MIG-...``);
        ``None`` is CUDA's current device where CUDA is in use, else its first.
    hz : float, default 10.0
        Samples a second, above 0 and at most 1000.

    Raises
    ------
    ValueError
        For a rate out of range or a device that is no CUDA device.
    TypeError
        For a device of another type, or a rate that is no number.

    Notes
    -----
    What cannot be watched is ``unknown`` with its reason; a machine without a GPU, a driver or the package is
    no error. CUDA is never initialised, and torch never loaded.

    Entered again while it runs, from the same thread or another, the tracker keeps watching until the
    outermost leaves. Entered anew after that, it starts a new record.

    Cost: `NvmlRecord.cost` has what it was. Some tens of microseconds a sample in a thread that waits for the
    driver without holding Python's lock; milliseconds before and after the run.
    """

    def __init__(self, device: Any = None, *, hz: float = 10.0) -> None:
        if isinstance(hz, bool) or not isinstance(hz, Real):
            raise TypeError(f"hz must be a number, got {hz!r} of type {type(hz).__name__}; 10 is usual")
        if not 0 < hz <= 1000:
            raise ValueError(f"hz must be above 0 and at most 1000, got {hz}; 10 is usual")
        device_index(device)
        self._device = device
        self._period = 1 / float(hz)
        self._run: NvmlRun | None = None
        self._begin_in_process()

    def _begin_in_process(self) -> None:
        """Have nothing running, with a lock that nobody holds: at first, and in a forked child."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Return a function that is watched whenever it is called.

        Parameters
        ----------
        function : callable
            Neither a coroutine function nor a generator function of either kind: calling one does not run it.

        Raises
        ------
        TypeError
            For one of those.
        """
        if any(begins_only(function) for begins_only in _BEGIN_ONLY):
            raise TypeError(f"{function.__qualname__} only begins when called; enter the tracker inside it")

        @functools.wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return watched

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take no sample inside: for regions that are timed.

        Raises
        ------
        UsageError
            When the tracker was never entered.

        Notes
        -----
        A sample under way is waited for, so none overlaps the region. Pauses may overlap each other. Cost: a
        lock at either end; leaving takes a sample where one was due.
        """
        run = self._started()
        run.pause()
        try:
            yield
        finally:
            run.resume()

    @property
    def curve(self) -> MemoryCurve:
        """Device memory over time, so far or of the last run."""
        return self.summary().curve

    def summary(self) -> NvmlRecord:
        """Return what was seen, so far or in the last run.

        Raises
        ------
        UsageError
            When the tracker was never entered.
        """
        return self._started().record()

    def _started(self) -> NvmlRun:
        if self._run is None:
            raise UsageError(
                "the tracker has not run yet; enter it with a with statement, or call a function"
            )
        return self._run
