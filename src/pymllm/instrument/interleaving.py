"""Contestants measured in interleaved rounds: whatever a machine does meanwhile, it does to all of them.

Two runs, one after the other, compare two states of a machine as much as two programs. Here each round takes
one sample of every contestant, and every round begins with another, so that drift, other people's load and
warm caches fall on all alike; a ratio of samples of one round has little of them left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

__all__ = ["interleave"]


def interleave(
    contestants: Mapping[str, Callable[[], float]],
    rounds: int,
    seconds: float,
    fewest: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Sample contestants round by round.

    Parameters
    ----------
    contestants : mapping of str to callable
        Each takes one sample and returns it; what it does besides is not measured, but counts as its time.
    rounds : int
        Most samples of each, at least 1.
    seconds : float
        A contestant that has used so much real time drops out, and the others go on.
    fewest : int, default 3
        Samples that every contestant gives first, however long that takes.
    clock : callable, optional
        Real time in seconds.

    Returns
    -------
    dict of str to list of float
        The samples of each in the order of rounds: the n-th of any two were taken in one round.

    Raises
    ------
    ValueError
        When there is no round, or no contestant.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    if not contestants:
        raise ValueError("there is no contestant; give one at least")
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    used = dict.fromkeys(contestants, 0.0)
    playing = list(contestants)
    for number in range(rounds):
        for name in list(playing):
            begun = clock()
            samples[name].append(contestants[name]())
            used[name] += clock() - begun
            if number + 1 >= fewest and used[name] >= seconds:
                playing.remove(name)
        playing = [*playing[1:], *playing[:1]]
        if not playing:
            break
    return samples
