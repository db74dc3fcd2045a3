"""Contestants measured in interleaved rounds: whatever a machine does meanwhile, it does to all of them.

Two runs, one after the other, compare two states of a machine as much as two programs. Here each round takes
a sample of every contestant, or a few, and every round begins with another, so that drift, other people's
load and warm caches fall on all alike; a ratio of samples of one round has little of them left.
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
    burst: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Sample contestants round by round.

    Parameters
    ----------
    contestants : mapping of str to callable
        Each takes one sample and returns it; what it does besides is not measured, but counts as its time.
    rounds : int
        Most turns of each, at least 1.
    seconds : float
        A contestant that has used so much real time drops out, and the others go on.
    fewest : int, default 3
        Rounds that every contestant plays first, however long that takes.
    burst : int, default 1
        Samples that a contestant takes in its turn, one after another. Alone, a sample of a few microseconds
        pays for the processor's caches, which the others have filled with their own.
    clock : callable, optional
        Real time in seconds.

    Returns
    -------
    dict of str to list of float
        The samples of each in the order of rounds, ``burst`` of each round: the n-th of any two are of the
        same one.

    Raises
    ------
    ValueError
        When there is no round or no contestant, or a turn has no sample.
    """
    if rounds < 1 or burst < 1:
        raise ValueError(f"rounds and burst must be at least 1, got {rounds} and {burst}")
    if not contestants:
        raise ValueError("there is no contestant; give one at least")
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    used = dict.fromkeys(contestants, 0.0)
    playing = list(contestants)
    for number in range(rounds):
        for name in list(playing):
            begun = clock()
            samples[name] += [contestants[name]() for _ in range(burst)]
            used[name] += clock() - begun
            if number + 1 >= fewest and used[name] >= seconds:
                playing.remove(name)
        playing = [*playing[1:], *playing[:1]]
        if not playing:
            break
    return samples
