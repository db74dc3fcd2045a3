"""Where the processor time of a run goes: one operation in some is timed part by part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymllm.conformance.examiner import Examiner
from pymllm.conformance.soak.records import Shares

__all__ = ["EVERY", "Clocks"]

EVERY = 61
"""One operation in so many is timed: a clock of processor time is a system call, and at every 16th operation
two around two calls cost a hundredth. A prime, so as not to come always right behind a walk from inside."""


class _Timed:
    """Stands in for an adapter or a judge while one operation is carried out."""

    def __init__(self, inner: Any, call: str) -> None:
        self._inner = inner
        self.seconds = 0.0
        setattr(self, call, self._make(getattr(inner, call)))

    def _make(self, function: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.process_time() - start

        return timed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Clocks:
    """Counts processor seconds of one run.

    Attributes
    ----------
    walks, again : float
        As of `pymllm.conformance.soak.records.Shares`, measured whole.
    """

    def __init__(self) -> None:
        self._start, self._wall = time.process_time(), time.perf_counter()
        self._until_sample = 0
        self._operations = self._samples = 0
        self._adapter = self._judge = 0.0
        self.walks = self.again = 0.0

    @contextmanager
    def operation(self, examiner: Examiner) -> Iterator[None]:
        """Time what adapter and judge do in the block."""
        adapter, judge = _Timed(examiner.adapter, "apply"), _Timed(examiner.judge, "judge")
        examiner.adapter, examiner.judge = adapter, judge
        try:
            yield
        finally:
            examiner.adapter, examiner.judge = adapter._inner, judge._inner
            self._samples += 1
            self._adapter += adapter.seconds
            self._judge += judge.seconds

    def is_sample(self) -> bool:
        """Count an operation; whether it is to be timed."""
        self._operations += 1
        self._until_sample -= 1
        if self._until_sample > 0:
            return False
        self._until_sample = EVERY
        return True

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a block as ``walks`` or ``again``."""
        start, known = time.process_time(), self._adapter + self._judge
        try:
            yield
        finally:
            # The operations of an end are timed like all others; they must not be counted twice.
            spent = time.process_time() - start - (self._adapter + self._judge - known) * EVERY
            setattr(self, name, getattr(self, name) + max(0.0, spent))

    def stop(self) -> tuple[float, float, Shares]:
        """Return wall-clock and processor seconds since the start, and what took the latter."""
        cpu, wall = time.process_time() - self._start, time.perf_counter() - self._wall
        factor = self._operations / max(self._samples, 1)
        adapter, judge = self._adapter * factor, self._judge * factor
        known = adapter + judge + self.walks + self.again
        if adapter + judge and known > cpu:  # a sample is only a sample
            adapter, judge = (
                it * max(cpu - self.walks - self.again, 0) / (adapter + judge) for it in (adapter, judge)
            )
        driver = max(0.0, cpu - adapter - judge - self.walks - self.again)
        return wall, cpu, Shares(*(round(it, 6) for it in (adapter, judge, self.walks, self.again, driver)))
