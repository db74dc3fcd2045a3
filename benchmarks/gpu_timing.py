"""Times of work on a device: between events, over data that no cache holds, beside other ways to do it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tests.stress.card import Card

__all__ = ["Sampled", "Work", "cache_bytes", "measure", "sets_for"]

Work = Callable[[int], object]
"""Does the work once, on the set of data with that number."""

SAMPLES = 31
_SAMPLE_SECONDS = 0.002
_MOST_SETS = 256


@dataclass(frozen=True, slots=True)
class Sampled:
    """Microseconds that the work takes once: median and quartiles over samples of many times."""

    median_us: float
    low_us: float
    high_us: float
    samples: int
    times: int


def cache_bytes(card: Card) -> int:
    """Bytes of the device's last cache, which data must not come from."""
    if not card.is_cuda:
        return 1 << 20
    return torch.cuda.get_device_properties(card.device).L2_cache_size


def sets_for(card: Card, touched: int) -> int:
    """How many sets of data take turns, so that four times the last cache is touched before one comes again.

    Small ones are at most 256: launches take longer than what a cache saves there.
    """
    if not card.is_cuda:
        return 2
    return max(2, min(_MOST_SETS, -(-4 * cache_bytes(card) // max(touched, 1))))


def measure(
    card: Card, contenders: Mapping[str, Work], sets: int, *, in_graph: bool, samples: int = SAMPLES
) -> dict[str, Sampled]:
    """Time each contender, all in one run: a sample of the first, one of the next, and again.

    Parameters
    ----------
    card : Card
        Where.
    contenders : mapping of str to callable
        By name; each is called with the numbers of the sets, in turn.
    sets : int
        Of data.
    in_graph : bool
        Whether all sets are one graph that is replayed: what the host does for a launch is left out then.
    samples : int
        Of each contender, of at least 2 ms; on the CPU one, which is a rehearsal.
    """
    rounds = {name: _one_round(card, work, sets, in_graph) for name, work in contenders.items()}
    repeats = {name: _repeats(card, one) for name, one in rounds.items()}
    times: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(samples if card.is_cuda else 1):
        for name, one in rounds.items():
            times[name].append(_seconds(card, one, repeats[name]) / (repeats[name] * sets) * 1e6)
    return {name: _summary(found, repeats[name] * sets) for name, found in times.items()}


def _one_round(card: Card, work: Work, sets: int, in_graph: bool) -> Callable[[], None]:
    def once() -> None:
        for number in range(sets):
            work(number)

    once()  # what is loaded, mapped and chosen on first use is there afterwards
    card.settle()
    return card.capture(once) if in_graph else once


def _repeats(card: Card, one: Callable[[], None]) -> int:
    """How often a round is repeated for a sample that is long enough."""
    if not card.is_cuda:
        return 1
    return max(1, round(_SAMPLE_SECONDS / max(_seconds(card, one, 3) / 3, 1e-9)))


def _seconds(card: Card, one: Callable[[], None], repeats: int) -> float:
    if not card.is_cuda:
        begun = time.perf_counter()
        for _ in range(repeats):
            one()
        return time.perf_counter() - begun
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(card.device)
    start.record()
    for _ in range(repeats):
        one()
    end.record()
    torch.cuda.synchronize(card.device)
    return start.elapsed_time(end) / 1e3


def _summary(found: list[float], times: int) -> Sampled:
    low, median, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
    return Sampled(median, low, high, len(found), times)
