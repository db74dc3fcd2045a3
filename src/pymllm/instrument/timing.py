"""The timing of an adapter's operations in histograms of bounded memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pymllm.adapters.base import Adapter
from pymllm.adapters.recorder import AdapterWrapper
from pymllm.history.codec import name_of
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Failed, Outcome, Unsupported

_BITS = 7
PRECISION = 1 / (1 << _BITS)
"""The greatest relative excess of a quantile over the sample it stands for: 0.8 %."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a histogram: mean and maximum exact, quantiles at most 0.8 % too large."""

    count: int
    mean_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    max_us: float


class Histogram:
    """Counts of durations in nanoseconds, in 128 buckets per power of two, each including its upper end.

    Cost: a dictionary entry is raised by one; at most some thousand entries between a nanosecond and an hour.
    """

    __slots__ = ("_counts", "count", "max_ns", "min_ns", "total_ns")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total_ns = 0
        self.min_ns = 0
        self.max_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count a duration of at least 0 nanoseconds."""
        if duration_ns < 0:
            raise ValueError(f"duration_ns must be at least 0, got {duration_ns}; use a monotonic clock")
        bucket = _bucket_of(duration_ns)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.min_ns = min(self.min_ns, duration_ns) if self.count else duration_ns
        self.max_ns = max(self.max_ns, duration_ns)
        self.count += 1
        self.total_ns += duration_ns

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        if not other.count:
            return
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.min_ns = min(self.min_ns, other.min_ns) if self.count else other.min_ns
        self.max_ns = max(self.max_ns, other.max_ns)
        self.count += other.count
        self.total_ns += other.total_ns

    def quantile(self, share: float) -> int:
        """Return the nanoseconds that a fraction of the samples, above 0 up to 1, does not exceed."""
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}; 0.99 is the p99")
        if not self.count:
            raise ValueError("nothing was counted, so there is no quantile; look at count first")
        rank = math.ceil(share * self.count - 1e-9)  # 0.07 * 100 is a little above 7
        passed = 0
        for bucket in sorted(self._counts):
            passed += self._counts[bucket]
            if passed >= rank:
                break
        return min(_upper_end(bucket), self.max_ns)

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Return upper ends in nanoseconds with their counts, ascending, without empty buckets."""
        return tuple((_upper_end(bucket), self._counts[bucket]) for bucket in sorted(self._counts))

    def at_most(self, exponent: int) -> int:
        """Return the exact number of samples of at most two to this power nanoseconds."""
        limit = 1 << exponent
        return sum(count for bucket, count in self._counts.items() if _upper_end(bucket) <= limit)

    def summary(self) -> Summary:
        """Return the usual summary of the durations."""
        p50, p95, p99 = (self.quantile(share) / 1e3 for share in (0.50, 0.95, 0.99))
        return Summary(self.count, self.total_ns / self.count / 1e3, p50, p95, p99, self.max_ns / 1e3)


def _bucket_of(duration: int) -> int:
    """Return the number of a duration's bucket."""
    below = max(duration - 1, 0)  # an upper end belongs to its bucket: so do powers of two
    shift = max(below.bit_length() - _BITS - 1, 0)
    return (shift << _BITS) + (below >> shift)


def _upper_end(bucket: int) -> int:
    shift = max((bucket >> _BITS) - 1, 0)
    return ((bucket - (shift << _BITS)) + 1) << shift


OperationTime = tuple[str, bool]
"""The name of an operation, and whether it succeeded."""


class Timing(AdapterWrapper):
    """A wrapper around an adapter that keeps a histogram of durations for each operation.

    ``settle`` waits for the device, such as ``torch.cuda.synchronize``: without it, work that was left to a
    device is not in a duration. What an adapter does not support, or raises itself, is not counted; what is
    refused is kept apart, since that is quick. A duration has the adapter's own work in it (naming slots,
    reading sizes): compare behind alike adapters. Cost: two readings of the clock and a dictionary entry an
    operation (`docs/instruments.md`).
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
        """The histograms by operation and success, which may still be counting."""
        return MappingProxyType(self._histograms)

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Carry out an operation, and count its duration."""
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
