"""An end to what may never end: a fault can make any loop endless."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["TookTooLong", "deadline"]

_WAITS = 10


class TookTooLong(BaseException):
    """Leaves whatever runs; an `Exception` would be taken for an answer of the implementation."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Leave the block with `TookTooLong` once it has taken so long.

    Parameters
    ----------
    seconds : float
        Of processor time, so that a busy machine is not taken for an endless loop; ten times as many may pass
        on the clock, for what waits for ever. Above 0.

    Notes
    -----
    Whoever clears up on the way out may meet errors, or end well: the block is late all the same. It takes
    the process's alarm, which only the main thread can set: in any other there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    late = TookTooLong(f"still running after {seconds:g} s")
    is_late = False
    spent, clock = time.process_time(), time.monotonic()

    def give_up(signum: int, frame: FrameType | None) -> None:
        nonlocal is_late
        left = seconds - (time.process_time() - spent)
        if left > 0 and time.monotonic() - clock < _WAITS * seconds:
            signal.setitimer(signal.ITIMER_REAL, max(left, seconds / _WAITS))
            return
        is_late = True
        raise late

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if is_late:  # whatever left the block may have come of being torn out of the middle of something
            raise late
