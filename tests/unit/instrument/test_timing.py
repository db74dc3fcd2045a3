"""Durations by operation, and quantiles from buckets."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.own_slots import TokenSlots
from pymllm.adapters.registry import make_adapter
from pymllm.errors import ProgramError
from pymllm.history.operations import Alloc, Free, Operation, Span
from pymllm.history.outcomes import Result
from pymllm.instrument.timing import PRECISION, Histogram, Timing


def ticking(step_ns: int) -> Iterator[int]:
    now = 0
    while True:
        yield now
        now += step_ns


def test_each_operation_has_its_histogram() -> None:
    """Count and time go to the operation that took it, and a quick no is apart from the work."""
    clock = ticking(250)
    timing = Timing(make_adapter("token-slots"), clock=lambda: next(clock))
    timing.apply(1, Alloc(1))
    timing.apply(2, Alloc(1))
    timing.apply(3, Free((Span(1, 0, 1),)))
    assert {key: it.count for key, it in timing.histograms.items()} == {("alloc", True): 2, ("free", True): 1}
    assert timing.histograms["alloc", True].total_ns == 500
    assert timing.histograms["free", True].max_ns == 250
    timing.apply(4, Alloc(-1))
    assert timing.histograms["alloc", False].count == 1
    assert "alloc (refused)" in str(timing)
    assert "p99 us" in str(timing).splitlines()[0]


def test_what_was_not_carried_out_is_not_counted() -> None:
    """Neither what an adapter does not support nor a program without sense has a duration."""

    class Shy(TokenSlots):
        def do_alloc(self, step: int, operation: Operation) -> Result:
            raise UnsupportedError("no")

    timing = Timing(Shy("shy", Shy.CONFIGURATIONS[0]))
    timing.apply(1, Alloc(1))
    with pytest.raises(ProgramError):
        timing.apply(2, Free((Span(1, 0, 1),)))
    assert not timing.histograms


def test_the_device_is_waited_for_before_and_within() -> None:
    """Earlier work on the device is not in a duration, and that of the operation is."""
    told: list[str] = []
    clock = ticking(1)

    def read() -> int:
        told.append("clock")
        return next(clock)

    Timing(make_adapter("token-slots"), settle=lambda: told.append("settle"), clock=read).apply(1, Alloc(1))
    assert told == ["settle", "clock", "settle", "clock"]


def counted(*durations: int) -> Histogram:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    return histogram


@pytest.mark.parametrize("span", [10, 1000, 10**6, 10**12])
@pytest.mark.parametrize("share", [0.001, 0.07, 0.5, 0.95, 0.99, 1.0])
def test_a_quantile_is_a_sample_or_a_little_above_it(span: int, share: float) -> None:
    """Whoever reads a p99 is never told less than it was, and at most 0.8 % more."""
    generator = random.Random(span)
    durations = sorted(generator.randrange(1, span) for _ in range(1000))
    exact = durations[max(0, round(share * 1000) - 1)]
    told = counted(*durations).quantile(share)
    assert exact <= told <= exact * (1 + PRECISION)


def test_small_durations_and_the_longest_are_exact() -> None:
    """Below 257 ns there is a bucket for each nanosecond, and the maximum is kept beside the buckets."""
    for duration in (1, 2, 127, 128, 255, 256):
        assert counted(duration, 10**9).quantile(0.5) == duration
    assert counted(123_456_789).quantile(0.5) == counted(123_456_789).max_ns == 123_456_789


def test_a_duration_below_the_clock_counts_as_the_shortest() -> None:
    """A coarse clock may see no time pass."""
    histogram = counted(0, 0, 5)
    assert (histogram.min_ns, histogram.quantile(1.0), histogram.total_ns) == (0, 5, 5)
    assert histogram.quantile(0.5) <= 1


@pytest.mark.parametrize("exponent", [0, 3, 8, 10, 34])
def test_counts_at_powers_of_two_are_exact(exponent: int) -> None:
    """A scraped bucket holds what is at most its bound, the bound itself included."""
    limit = 1 << exponent
    histogram = counted(limit - 1, limit, limit + 1, 2 * limit + 2)
    assert histogram.at_most(exponent) == 2


def test_merged_histograms_are_as_if_one_had_counted_everything() -> None:
    """Worker processes count apart."""
    one, other = counted(5, 700), counted(3, 90_000)
    one.merge(other)
    assert one.summary() == counted(5, 700, 3, 90_000).summary()
    assert (one.min_ns, one.max_ns) == (3, 90_000)
    one.merge(Histogram())
    empty = Histogram()
    empty.merge(one)
    assert empty.summary() == one.summary()
    assert empty.min_ns == one.min_ns == 3


def test_a_summary_is_in_microseconds() -> None:
    """The unit of the field's tables."""
    summary = counted(1000, 1000, 4000).summary()
    assert (summary.count, summary.mean_us, summary.max_us) == (3, 2.0, 4.0)
    assert summary.p50_us == pytest.approx(1.0, rel=PRECISION)


def test_what_makes_no_sense_is_refused() -> None:
    """X1: a clock that runs backwards, a share out of range, a quantile of nothing."""
    histogram = counted(7)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        histogram.add(-1)
    assert histogram.count == 1
    for share in (0.0, 1.1, -1):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            histogram.quantile(share)
    with pytest.raises(ValueError, match="nothing was counted"):
        Histogram().quantile(0.5)


def test_buckets_have_every_sample_once_and_rise() -> None:
    """Those that nobody needed are left out."""
    histogram = Histogram()
    for duration in (5, 5, 1_000_000, 7):
        histogram.add(duration)
    ends = [end for end, _ in histogram.buckets()]
    assert ends == sorted(set(ends))
    assert sum(count for _, count in histogram.buckets()) == 4
    assert histogram.buckets()[0] == (5, 2)
    assert Histogram().buckets() == ()
