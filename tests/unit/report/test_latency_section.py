"""Durations."""

from __future__ import annotations

import pytest

from pymllm.report.latency_section import make_latency_section, quantile
from pymllm.report.records import Histogram
from tests.unit.report import samples
from tests.unit.report.looking import figures, tables
from tests.unit.report.test_trends import OTHER

HISTOGRAM = Histogram("match", "us", (1.0, 2.0, 4.0, 800.0), (10, 85, 4, 1))


@pytest.mark.parametrize(("share", "end"), [(0.1, 1.0), (0.5, 2.0), (0.95, 2.0), (0.99, 4.0), (1.0, 800.0)])
def test_a_quantile_is_the_end_of_its_bucket(share: float, end: float) -> None:
    """So many samples are at most as long."""
    assert quantile(HISTOGRAM, share) == end


def test_an_empty_histogram_has_no_quantile() -> None:
    """Neither zero nor anything else."""
    assert quantile(Histogram("x", "us", (1.0,), (0,)), 0.5) is None
    assert quantile(Histogram("x", "us", (), ()), 0.5) is None


def test_histograms_are_drawn_and_their_quantiles_listed() -> None:
    """With units; those of one plot in one picture."""
    other = Histogram("insert", "us", (1.0,), (3,), plot="match")
    section = make_latency_section([samples.run(histograms=(HISTOGRAM, other))])
    (figure,) = figures(section)["plot-latency"].values()
    assert [list(trace.y) for trace in figure.data] == [[3], [10, 85, 4, 1]]
    longest = figure.data[1].x[-1] + figure.data[1].width[-1] / 2
    assert 800 <= longest < 880
    machine = f"rack 3, Some GPU ({samples.MACHINE.fingerprint})"
    assert tables(section)["Durations"] == [
        ["insert", machine, "3", "1 µs", "1 µs", "1 µs", "1 µs"],
        ["match", machine, "100", "2 µs", "2 µs", "4 µs", "800 µs"],
    ]


def test_machines_are_beside_each_other_and_newer_runs_in_the_place_of_older_ones() -> None:
    """Never added up."""
    newer = Histogram("match", "us", (1.0,), (7,))
    runs = [
        samples.run(histograms=(HISTOGRAM,)),
        samples.run(histograms=(newer,)),
        samples.run(histograms=(newer,), machine=OTHER),
        samples.run(histograms=(newer,), machine=None),
    ]
    rows = tables(make_latency_section(runs))["Durations"]
    assert [row[2] for row in rows] == ["7", "7", "7"]


def test_fine_buckets_are_drawn_as_coarse_bars_and_no_sample_is_lost() -> None:
    """A timer has 128 buckets for each doubling, and some may have taken no time at all."""
    fine = Histogram("x", "us", (0.0, *(1 + place / 128 for place in range(1, 128))), (5, *(1,) * 127))
    (figure,) = figures(make_latency_section([samples.run(histograms=(fine,))]))["plot-latency"].values()
    (trace,) = figure.data
    assert sum(trace.y) == 132
    assert len(trace.y) == 9
    edges = [x + width / 2 for x, width in zip(trace.x, trace.width, strict=True)]
    assert edges == sorted(edges)


def test_a_replay_has_times_per_request() -> None:
    """On a logarithmic axis, since the p99 may be a thousand medians."""
    section = make_latency_section([samples.run(samples.replay())])
    (figure,) = figures(section)["plot-replay-latency"].values()
    assert {trace.name: list(trace.y) for trace in figure.data} == {
        "median of a request": [33.6, 95.4, 0.0, 12.8],
        "p99 of a request": [129.0, 382.0, 0.0, 25.1],
    }
    (row,) = tables(section)["Time in the cache per request"]
    assert row[2:6] == ["33.6 µs", "129 µs", "95.4 µs", "382 µs"]


def test_without_durations_there_is_no_section() -> None:
    """It would be empty."""
    assert make_latency_section([samples.run(samples.verify())]) is None
