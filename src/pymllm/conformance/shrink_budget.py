"""How much a shrinker may still spend: programs, seconds, and patience with an adapter that hangs."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pymllm.conformance.adapter_calls import describe_error
from pymllm.errors import PymllmError

__all__ = ["OutOfBudgetError", "ShrinkBudget"]

_HANGS = 3
"""An adapter that hangs so often is left alone: each time costs as long as one waits for an answer."""

_OWN_ROOMS = ("pymllm.conformance.", "pymllm.oracle.")


class OutOfBudgetError(Exception):
    """No more programs may be played."""


class ShrinkBudget:
    """Counts what was spent.

    Parameters
    ----------
    plays : int or None
        Most programs to play.
    seconds : float or None
        After which nothing more is played.
    on_play : callable, optional
        Called before each program.

    Attributes
    ----------
    plays, hangs : int
        So far.
    misfits : Counter of str
        Candidates that could not be run, by the class of the error that stopped them: an engine in a pool
        that is too small, a call that no adapter can carry out.
    mistakes : Counter of str
        Those that this package stopped itself by a mistake of its own, by what it was and where: a law may be
        broken by a smaller program that nobody could look at.
    """

    def __init__(
        self,
        plays: int | None = None,
        seconds: float | None = None,
        on_play: Callable[[], None] | None = None,
    ) -> None:
        self.plays = 0
        self.hangs = 0
        self.misfits: Counter[str] = Counter()
        self.mistakes: Counter[str] = Counter()
        self._plays_max = plays
        self._since = time.monotonic()
        self._seconds = seconds
        self._on_play = on_play

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._since

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Leave the block once so much of what is left was spent; what comes after it has the rest."""
        before = self._plays_max, self._seconds
        if self._plays_max is not None:
            self._plays_max = self.plays + int((self._plays_max - self.plays) * share)
        if self._seconds is not None:
            self._seconds = self.seconds + (self._seconds - self.seconds) * share
        try:
            yield
        except OutOfBudgetError:
            pass
        finally:
            self._plays_max, self._seconds = before

    def spend(self) -> None:
        """Count a program that is about to be played; raises `OutOfBudgetError` where none may be."""
        self.check_time()
        if self.hangs >= _HANGS or (self._plays_max is not None and self.plays >= self._plays_max):
            raise OutOfBudgetError
        if self._on_play is not None:
            self._on_play()
        self.plays += 1

    def check_time(self) -> None:
        """Raise `OutOfBudgetError` once it is late."""
        if self._seconds is not None and self.seconds >= self._seconds:
            raise OutOfBudgetError

    def note_failure(self, error: Exception) -> None:
        """Count a candidate that could not be run, among the misfits or the mistakes."""
        if _is_mistake(error):
            self.mistakes[describe_error(error)] += 1
        else:
            self.misfits[type(error).__name__] += 1

    def tell_mistakes(self) -> tuple[str, ...]:
        """Return a line for each mistake, the most frequent first."""
        return tuple(
            f"{count} candidate{'s' * (count > 1)} could not be run: {mistake}"
            for mistake, count in self.mistakes.most_common()
        )


def _is_mistake(error: Exception) -> bool:
    """Tell whether the one who raised an error is a driver or a judge, and did not mean to."""
    if isinstance(error, PymllmError):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).startswith(_OWN_ROOMS)
