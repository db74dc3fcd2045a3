"""A robust estimate of growth: a slope with its interval, insensitive to outliers.

The slope is the median of the slopes through any two samples (Theil 1950): up to 29 % of the samples may be
anything without moving it far. Its interval comes from the ranks of those slopes (Sen 1968). Several series,
such as the processes of a campaign, share one slope and each keeps its own level (Hirsch and Slack 1984).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

MOST_SAMPLES = 256  # of a series, evenly spread: pairs grow with the square


@dataclass(frozen=True, slots=True)
class Slope:
    """A slope with the interval that contains the true slope, infinite where samples are too few."""

    value: float
    low: float
    high: float
    confidence: float
    samples: int
    series: int


def estimate_slope(
    series: Iterable[Sequence[tuple[float, float]]], confidence: float = 0.95, most: int = MOST_SAMPLES
) -> Slope | None:
    """Estimate the common slope of several series; ``None`` if none has three samples differing in x.

    Only pairs within one series count, so that levels may differ; one of more than ``most`` samples is
    thinned evenly. Cost: the square of ``most`` for each series. Equal values make the interval wider than
    need be, never narrower.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}; 0.95 is usual")
    if most < 3:
        raise ValueError(f"most must be at least 3, got {most}: two samples always lie on a line")
    slopes: list[float] = []
    variance, samples, used = 0.0, 0, 0
    for one in series:
        points = _thinned(one, most)
        if len(points) < 3:
            continue
        used += 1
        samples += len(points)
        slopes += _pair_slopes(points)
        variance += len(points) * (len(points) - 1) * (2 * len(points) + 5) / 18
    if not slopes:
        return None
    slopes.sort()
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(variance) / 2
    middle = (len(slopes) - 1) / 2
    return Slope(
        value=_at(slopes, middle),
        low=_at(slopes, middle - half - 0.5),
        high=_at(slopes, middle + half + 0.5),
        confidence=confidence,
        samples=samples,
        series=used,
    )


def _thinned(points: Sequence[tuple[float, float]], most: int) -> Sequence[tuple[float, float]]:
    """Return a limited number of evenly chosen samples, including the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]


def _pair_slopes(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return the slopes through any two samples that differ in x."""
    return [
        (later[1] - sooner[1]) / (later[0] - sooner[0])
        for at, sooner in enumerate(points)
        for later in points[at + 1 :]
        if later[0] > sooner[0]
    ]


def _at(numbers: Sequence[float], place: float) -> float:
    """Return the interpolated value at a position of a sorted list, or infinity beyond its ends."""
    if place < 0:
        return -math.inf
    below, above = math.floor(place), math.ceil(place)
    if above >= len(numbers):
        return math.inf
    return numbers[below] + (numbers[above] - numbers[below]) * (place - below)
