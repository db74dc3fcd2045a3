"""Measures how long an adapter takes for each operation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from pymllm.adapters.base import Adapter
from pymllm.history.codec import name_of
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Failed, Outcome, Unsupported
from pymllm.instrument.histogram import Histogram
from pymllm.instrument.stacking import AdapterWrapper

__all__ = ["OperationTime", "Timing"]

OperationTime = tuple[str, bool]
"""An operation's name, and whether it succeeded."""


class Timing(AdapterWrapper):
    """Keeps a histogram of durations for each operation.

    Parameters
    ----------
    adapter : Adapter
        What is timed, with all that it is wrapped around.
    settle : callable, optional
        Waits for the device, such as ``torch.cuda.synchronize``; called before an operation and, within its
        duration, after it. Without this, work that an operation has left to a device is not in its duration.
    clock : callable, default ``time.perf_counter_ns``
        Returns nanoseconds, and never runs backwards.

    Notes
    -----
    What an adapter does not support is not counted, nor what it raises: nothing was carried out. Operations
    that an implementation refuses are kept apart, since a refusal is quick.

    A duration has in it what the adapter does beside the implementation: naming slots, collecting effects,
    reading sizes. Compare implementations behind alike adapters, and use `benchmarks/` for a call by itself.

    Cost: two readings of the clock and a dictionary entry an operation; `docs/instruments.md` has the
    figures. Memory does not grow with the length of a run.
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        settle: Callable[[], object] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        super().__init__(adapter)
        self._settle = settle
        self._clock = clock
        self._histograms: dict[OperationTime, Histogram] = {}

    @property
    def histograms(self) -> Mapping[OperationTime, Histogram]:
        """By operation and success, those that were seen; they go on counting."""
        return MappingProxyType(self._histograms)

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Have an operation carried out, and count how long that took."""
        settle, clock = self._settle, self._clock
        if settle is not None:
            settle()
        began = clock()
        outcome = self.adapter.apply(step, operation)
        if settle is not None:
            settle()
        took = clock() - began
        if not isinstance(outcome.result, Unsupported):
            key = name_of(type(operation)), not isinstance(outcome.result, Failed)
            histogram = self._histograms.get(key)
            if histogram is None:
                histogram = self._histograms[key] = Histogram()
            histogram.add(took)
        return outcome

    def __str__(self) -> str:
        lines = [f"{'':24}{'count':>9}{'p50 us':>10}{'p95 us':>10}{'p99 us':>10}{'max us':>10}"]
        for (name, is_done), histogram in sorted(self._histograms.items()):
            it = histogram.summary()
            label = name if is_done else f"{name} (refused)"
            figures = "".join(f"{value:>10.1f}" for value in (it.p50_us, it.p95_us, it.p99_us, it.max_us))
            lines.append(f"{label:24}{it.count:>9,}{figures}")
        return "\n".join(lines)
