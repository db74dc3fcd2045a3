"""The histograms of a timer as records of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pymllm.report.records import Figure, Histogram

if TYPE_CHECKING:
    from pymllm.instrument.timing import Timing

_QUANTILES = (0.50, 0.99)


def timing_records(timing: Timing, of: str, code: str | None = None) -> Iterator[Histogram | Figure]:
    """Yield the counts of a timer, which may still be counting.

    For each operation, refusals apart: the histogram in microseconds, and its p50 and p99 to follow. ``code``
    is the hash of what drove it, as of `pymllm.report.machine.hash_of_code`.
    """
    for (operation, is_done), histogram in sorted(timing.histograms.items()):
        name = f"{of}: {operation}" + ("" if is_done else " (refused)")
        ends, counts = zip(*histogram.buckets(), strict=True)
        yield Histogram(name, "us", tuple(end / 1e3 for end in ends), counts, code=code)
        for share in _QUANTILES:
            value = histogram.quantile(share) / 1e3
            yield Figure(f"{name}: p{share * 100:g}", value, "us", "smaller", code=code, plot=name)
