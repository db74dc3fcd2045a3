"""The slope that a few wild samples do not move, and how sure it is."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.instrument.slope import Slope, estimate_slope

Points = list[tuple[float, float]]


def line(samples: int, slope: float, start: float = 0.0) -> Points:
    return [(float(at), start + slope * at) for at in range(samples)]


def of(*series: Points, confidence: float = 0.95) -> Slope:
    slope = estimate_slope(series, confidence)
    assert slope is not None
    return slope


def test_a_line_has_its_slope() -> None:
    """Without noise the interval is a point."""
    slope = of(line(20, 3.0))
    assert (slope.value, slope.low, slope.high) == (3.0, 3.0, 3.0)
    assert (slope.samples, slope.series, slope.confidence) == (20, 1, 0.95)


def test_a_quarter_of_wild_samples_does_not_move_the_slope() -> None:
    """Large runs and late collections are no growth."""
    points = line(40, 3.0)
    for at in range(0, 40, 4):
        points[at] = (points[at][0], 1e9 * (-1) ** at)
    assert of(points).value == pytest.approx(3.0)


def test_each_series_keeps_its_own_level() -> None:
    """Two processes that differ in size share a slope."""
    assert of(line(8, 2.0), line(8, 2.0, start=1e6)).value == 2.0
    assert of(line(8, 2.0), line(8, 2.0, start=1e6)).series == 2


def test_the_interval_has_the_true_slope_as_often_as_it_says() -> None:
    """Of 400 noisy lines, nine in ten have their slope inside a 90 % interval."""
    draw = random.Random(7)
    inside = 0
    for _ in range(400):
        slope = of([(x, 2.0 * x + draw.gauss(0, 5)) for x in range(15)], confidence=0.9)
        inside += slope.low <= 2.0 <= slope.high
    assert 0.87 * 400 <= inside <= 0.97 * 400


def test_more_confidence_needs_a_wider_interval() -> None:
    """The interval grows with what it promises."""
    draw = random.Random(3)
    points = [(float(x), draw.gauss(0, 1)) for x in range(30)]
    narrow, wide = of(points, confidence=0.8), of(points, confidence=0.999)
    assert wide.low < narrow.low <= narrow.value <= narrow.high < wide.high


def test_too_few_samples_bound_nothing() -> None:
    """Seven samples can never tell with 99.8 % that something grows, eight can."""
    assert of(line(7, 1.0), confidence=0.998).low == -math.inf
    assert of(line(7, 1.0), confidence=0.998).high == math.inf
    assert of(line(8, 1.0), confidence=0.998).low == 1.0


@pytest.mark.parametrize("series", [[], [[]], [line(2, 1.0)], [[(1.0, 0.0), (1.0, 5.0), (1.0, 9.0)]]])
def test_nothing_to_see_is_no_slope(series: list[Points]) -> None:
    """Two samples always lie on a line, and samples at one place on none."""
    assert estimate_slope(series) is None


def test_a_long_series_is_thinned_but_keeps_its_ends() -> None:
    """The square of a million pairs is never built, and late growth is still seen."""
    points = [(float(x), max(0.0, x - 99_990.0)) for x in range(100_001)]
    slope = estimate_slope([points], most=3)
    assert slope is not None
    assert slope.samples == 3
    assert slope.value == pytest.approx(10 / 100_000)


@given(
    st.lists(st.integers(-1000, 1000), min_size=3, max_size=20),
    st.integers(-50, 50),
    st.integers(-1000, 1000),
    st.sampled_from([0.5, 0.95, 0.998]),
)
def test_a_slope_follows_its_samples(values: list[int], tilt: int, level: int, confidence: float) -> None:
    """Raised samples have the same slope, tilted ones a tilted one, mirrored ones its opposite."""
    points = [(float(x), float(y)) for x, y in enumerate(values)]
    plain = of(points, confidence=confidence)
    moved = of([(x, y + tilt * x + level) for x, y in points], confidence=confidence)
    mirrored = of([(x, -y) for x, y in points], confidence=confidence)
    assert plain.low <= plain.value <= plain.high
    assert [moved.low, moved.value, moved.high] == pytest.approx(
        [plain.low + tilt, plain.value + tilt, plain.high + tilt]
    )
    assert [mirrored.low, mirrored.value, mirrored.high] == pytest.approx(
        [-plain.high, -plain.value, -plain.low]
    )


@pytest.mark.parametrize(
    "more", [{"confidence": 0.0}, {"confidence": 1.0}, {"confidence": -1.0}, {"most": 2}]
)
def test_a_certain_interval_or_two_samples_are_refused(more: dict[str, float]) -> None:
    """No interval is certain, and a slope through the ends alone is what this is not."""
    with pytest.raises(ValueError, match=r"between 0 and 1|at least 3"):
        estimate_slope([line(9, 1.0)], **more)  # type: ignore[arg-type]
