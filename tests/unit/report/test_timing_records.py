"""A timer's histograms in a store."""

from __future__ import annotations

from pymllm.adapters.registry import make_adapter
from pymllm.history.operations import Alloc
from pymllm.instrument.timing import Timing
from pymllm.report.records import Figure, Histogram
from pymllm.report.run_lines import dump_record, read_record
from pymllm.report.timing_records import timing_records


def test_each_operation_has_a_histogram_and_its_quantiles() -> None:
    """Refusals apart, since they are quick; a line each."""
    ticks = iter([0, 1_000, 2_000, 5_000, 6_000, 6_500])
    timing = Timing(make_adapter("token-slots"), clock=lambda: next(ticks))
    for step, tokens in enumerate((1, 1, -1), 1):
        timing.apply(step, Alloc(tokens))
    records = list(timing_records(timing, "token-slots", "c0de"))
    assert [record.name for record in records] == [
        "token-slots: alloc (refused)",
        "token-slots: alloc (refused): p50",
        "token-slots: alloc (refused): p99",
        "token-slots: alloc",
        "token-slots: alloc: p50",
        "token-slots: alloc: p99",
    ]
    histogram, p50, p99 = records[3:]
    assert isinstance(histogram, Histogram)
    assert histogram.counts == (1, 1)
    assert isinstance(p50, Figure)
    assert isinstance(p99, Figure)
    assert (histogram.ends[0], p50.code) == (p50.value, "c0de")
    assert p99.value is not None
    assert 3.0 <= p99.value <= 3.03
    assert [read_record(dump_record(record)) for record in records] == records


def test_a_timer_that_saw_nothing_has_no_records() -> None:
    """Nor a histogram of zero."""
    assert list(timing_records(Timing(make_adapter("token-slots")), "x")) == []
