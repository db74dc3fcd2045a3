"""A scenario: its numbers, and how a round of the scenario is played and timed."""

from __future__ import annotations

import contextlib
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Clock = Callable[[], int]
"""Nanoseconds."""

CLOCKS: dict[str, Clock] = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}


class Contest(ABC):
    """One contender in one scenario.

    Attributes
    ----------
    facts : dict of str to float
        Counts that say what was done: tokens hit, tokens evicted.
    """

    def __init__(self, clock: Clock) -> None:
        self.now = clock
        self.facts: dict[str, float] = {}

    @abstractmethod
    def sample(self) -> float:
        """Play a round, check its result, and return the time of its timed part, in the unit."""

    def holds(self) -> bool:
        """Tell whether at the end all slots are where they belong."""
        return True


class Limit(Contest):
    """The time that the machine needs for the bytes alone, measured in the same rounds as the contenders."""

    def __init__(self, clock: Clock, work: Callable[[], Any], scale: float = 1e3) -> None:
        super().__init__(clock)
        self.work = work
        self.scale = scale

    def sample(self) -> float:
        begun = self.now()
        self.work()
        return (self.now() - begun) / self.scale


@dataclass(frozen=True, slots=True)
class Scenario:
    """A row of the table.

    Parameters
    ----------
    id, title, unit, statistic, target, limit_of
        As in `pymllm.instrument.peer_comparison.ScenarioRow`.
    kind : str
        Which contenders there are: a key of `peers.benchmarks.contenders.CONTENDERS`.
    contest : callable
        Builds a contender's part from its class, the clock and the factor by which a slice is smaller.
    limit : callable
        Builds the limit's.
    rounds : int
        Most samples of a contender.
    seconds : float
        Real time that one contender may use for its rounds, building and untimed parts included.
    without : tuple of str
        Contenders that cannot do this, or cannot in any bearable time.
    burst : int
        Samples that a contender takes in its turn.
    accepted, because
        As in `pymllm.instrument.peer_comparison.ScenarioRow`.
    keys : tuple of str
        What ours has its keys in, each by turns: names of `peers.benchmarks.keys.FORMS`. Only of lists there
        is one for everybody. Empty where no key is read while the clock runs.
    """

    id: str
    title: str
    unit: str
    statistic: str
    target: float
    limit_of: str
    kind: str
    contest: Callable[[Any, Clock, float], Contest]
    limit: Callable[[Clock, float], Contest]
    rounds: int
    seconds: float = 10.0
    without: tuple[str, ...] = ()
    burst: int = 1
    accepted: float = 1.0
    because: str = ""
    keys: tuple[str, ...] = ()


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out: no contender causes its pauses over hundreds of thousands of nodes."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
