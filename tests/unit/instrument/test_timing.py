"""Durations by operation, quantiles from buckets, and figures as OpenMetrics text."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.own_slots import TokenSlots
from pymllm.adapters.registry import make_adapter
from pymllm.errors import ProgramError
from pymllm.history.operations import Alloc, Free, Operation, Span
from pymllm.history.outcomes import Result
from pymllm.instrument.nvml import NvmlTracker
from pymllm.instrument.nvml_record import NvmlRecord
from pymllm.instrument.openmetrics import (
    Family,
    Sample,
    device_families,
    make_text,
    timing_families,
    torch_families,
    write_openmetrics,
)
from pymllm.instrument.reading import BYTES, Reading
from pymllm.instrument.timing import PRECISION, Histogram, Timing
from pymllm.instrument.torch_memory import TorchMemoryTracker


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
    """Each sample is in one bucket, buckets rise, and empty buckets are left out."""
    histogram = Histogram()
    for duration in (5, 5, 1_000_000, 7):
        histogram.add(duration)
    ends = [end for end, _ in histogram.buckets()]
    assert ends == sorted(set(ends))
    assert sum(count for _, count in histogram.buckets()) == 4
    assert histogram.buckets()[0] == (5, 2)
    assert Histogram().buckets() == ()


GAUGE = Family("a_bytes", "gauge", "bytes", "What.", (Sample(5, {"x": "y"}),))


def read(families: Iterable[Family]) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    """Return the samples that the parser finds in the text, by family."""
    parsed = text_string_to_metric_families(make_text(families))
    return {it.name: [(one.name, one.labels, one.value) for one in it.samples] for it in parsed}


def no_device() -> NvmlRecord:
    with NvmlTracker("GPU-of-nobody") as tracker:
        pass
    return tracker.summary()


def timed() -> Timing:
    ticks = iter([0, 1000, 5000, 9096, 10_000, 10_700])
    timing = Timing(make_adapter("token-slots"), clock=lambda: next(ticks))
    for step, tokens in enumerate((1, 1, -1), 1):
        timing.apply(step, Alloc(tokens))
    return timing


def test_the_parser_reads_what_was_timed() -> None:
    """Counts by bucket, sum and quantiles are those of the histogram; refusals are apart."""
    found = read(timing_families(timed(), {"run": "nightly"}))
    of = {"run": "nightly", "adapter": "token-slots", "operation": "alloc", "result": "done"}
    histogram = {
        (name, labels.get("le")): value
        for name, labels, value in found["pymllm_operation_seconds"]
        if labels["result"] == "done"
    }
    assert histogram["pymllm_operation_seconds_bucket", "1.024e-06"] == 1
    assert histogram["pymllm_operation_seconds_bucket", "4.096e-06"] == 2
    assert histogram["pymllm_operation_seconds_bucket", "+Inf"] == 2
    assert histogram["pymllm_operation_seconds_sum", None] == pytest.approx(5.096e-6)
    longest = found["pymllm_operation_longest_seconds"]
    assert ("pymllm_operation_longest_seconds", of, 4.096e-6) in longest
    assert [labels["result"] for _, labels, _ in longest] == ["refused", "done"]
    shares = [labels["share"] for _, labels, _ in found["pymllm_operation_quantile_seconds"]]
    assert shares == ["0.5", "0.95", "0.99"] * 2


def test_what_is_unknown_has_a_reason_and_no_number() -> None:
    """A machine without a GPU shows no zero on anybody's dashboard."""
    with TorchMemoryTracker() as tracker:
        pass
    found = read([*device_families(no_device()), *torch_families(tracker.summary())])
    assert set(found) == {"pymllm_unknown", "pymllm_device_run_invalid"}
    reasons = [labels for _, labels, _ in found["pymllm_unknown"]]
    assert {"pymllm_device_memory", "pymllm_torch_allocated"} <= {labels["figure"] for labels in reasons}
    assert all(labels["reason"] for labels in reasons)


def test_known_readings_are_in_their_unit() -> None:
    """Readings of bytes end in _bytes, and known readings stand beside unknown ones."""
    record = replace(no_device(), used_start=Reading(7, BYTES), used_peak=Reading(9, BYTES))
    found = read(device_families(record))
    memory = {labels["at"]: value for _, labels, value in found["pymllm_device_memory_bytes"]}
    assert memory == {"start": 7, "peak": 9}
    assert any(labels["at"] == "end" for _, labels, _ in found["pymllm_unknown"])


def test_labels_may_hold_anything() -> None:
    """Names come from users, and reasons from drivers."""
    value = 'back\\slash, "quotes"\nand a line'
    family = replace(GAUGE, samples=(Sample(1, {"x": value}),))
    assert read([family]) == {"a_bytes": [("a_bytes", {"x": value}, 1.0)]}


def test_families_of_one_name_stand_together() -> None:
    """The format forbids a name to come back; several runs can go into one file."""
    other = replace(GAUGE, samples=(Sample(6, {"x": "z"}),))
    between = replace(GAUGE, name="b_bytes")
    assert [value for _, _, value in read([GAUGE, between, other])["a_bytes"]] == [5, 6]
    with pytest.raises(ValueError, match="a_bytes has two definitions"):
        make_text([GAUGE, replace(GAUGE, help="Else.")])


def test_nothing_to_tell_is_a_file_all_the_same() -> None:
    """A scraper that finds no file takes the target for dead."""
    assert make_text([replace(GAUGE, samples=())]) == "# EOF\n"


def test_what_the_format_forbids_is_mended_or_refused() -> None:
    """A file that no parser reads is worse than an error where it is made."""
    found = read([replace(GAUGE, name="a-size", samples=(Sample(1, {"x y": ""}),))])
    assert found == {"a_size_bytes": [("a_size_bytes", {"x_y": ""}, 1.0)]}
    with pytest.raises(ValueError, match="Invalid metric type: picture"):
        make_text([replace(GAUGE, kind="picture")])


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A scraper sees the old file or the new one, and nothing is left beside it."""
    path = tmp_path / "pymllm.prom"
    write_openmetrics(path, [GAUGE])
    write_openmetrics(path, [replace(GAUGE, name="b_bytes")])
    assert path.read_text(encoding="utf-8").endswith("# EOF\n")
    assert "b_bytes" in path.read_text(encoding="utf-8")
    with pytest.raises(FileNotFoundError):
        write_openmetrics(tmp_path / "nowhere" / "x.prom", [GAUGE])
    assert [it.name for it in tmp_path.iterdir()] == ["pymllm.prom"]
