"""How many times as long one thing takes as another, with an interval from the samples themselves."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["STATISTICS", "Ratio", "estimate_ratio"]

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
}
"""What samples are summed up by, by name."""

_RESAMPLES = 1000
_MOST_BLOCKS = 250


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio, and the interval that has the true one with a given probability.

    Parameters
    ----------
    value, low, high : float
        Below 1 where ours takes less.
    confidence : float
        Probability that the interval has the true ratio.
    rounds : int
        Samples of each in rounds that both played; with fewer than three rounds the interval is the value.
    """

    value: float
    low: float
    high: float
    confidence: float
    rounds: int


def estimate_ratio(
    ours: Sequence[float],
    theirs: Sequence[float],
    statistic: str = "median",
    confidence: float = 0.95,
    seed: int = 0,
    burst: int = 1,
) -> Ratio:
    """Estimate a ratio from samples taken in the same rounds, by a bootstrap over blocks of rounds.

    Parameters
    ----------
    ours, theirs : sequence of float
        The n-th samples of both are of one round; rounds that only one of them played are left out.
    statistic : str, default "median"
        A name of `STATISTICS`, applied to each side before dividing.
    confidence : float, default 0.95
        Probability that the interval has the true ratio, between 0 and 1.
    seed : int, default 0
        The same samples and seed give the same interval.
    burst : int, default 1
        Samples of one turn, which are never drawn apart.

    Returns
    -------
    Ratio
        The interval is that of the percentiles.

    Raises
    ------
    ValueError
        No round is common, a sample of theirs is not positive, or the statistic has no such name.

    Notes
    -----
    Rounds are drawn together, so that what happened to a whole round cancels, and in blocks of neighbours
    (250 at most), because a busy spell of the machine lasts for several. Cost: a thousand times the
    statistic.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993; Kuensch 1989 for blocks.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"statistic is {statistic!r}; choose one of {', '.join(STATISTICS)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}; 0.95 is usual")
    rounds = min(len(ours), len(theirs))
    if not rounds or min(theirs[:rounds]) <= 0:
        raise ValueError("a ratio needs a round that both played, and positive samples to divide by")
    summed_up = STATISTICS[statistic]
    value = summed_up(ours[:rounds]) / summed_up(theirs[:rounds])
    if rounds < 3 * burst:
        return Ratio(value, value, value, confidence, rounds)
    size = -(-rounds // (_MOST_BLOCKS * burst)) * burst
    blocks = [(ours[at : at + size], theirs[at : at + size]) for at in range(0, rounds - size + 1, size)]
    source = random.Random(seed)
    drawn = []
    for _ in range(_RESAMPLES):
        chosen = source.choices(blocks, k=len(blocks))
        drawn.append(
            summed_up([sample for block, _ in chosen for sample in block])
            / summed_up([sample for _, block in chosen for sample in block])
        )
    drawn.sort()
    outside = round(_RESAMPLES * (1 - confidence) / 2)
    return Ratio(value, drawn[outside], drawn[-1 - outside], confidence, rounds)
