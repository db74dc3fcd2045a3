"""Time limits for adapter calls and for blocks of work, by an alarm in the main thread."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Generic, TypeVar

from pymllm.adapters.process.conversation import answer_limit
from pymllm.errors import AdapterError
from pymllm.history.files import History

_RINGS = 10
"""The number of alarms in a call's time, after which the next one ends the call. Of all those that come while
a process is stopped it hears one."""

Answer = TypeVar("Answer")


class HungError(AdapterError):
    """Raised when an adapter does not respond in time; its operation is half done."""


class _Alarm(BaseException):
    """Raised to end a long call; an adapter might catch an `Exception`."""


@dataclass(slots=True)
class AdapterCall(Generic[Answer]):
    """A call of an adapter, with facts to report if it hangs."""

    adapter: str  # name of the adapter
    make: Callable[[], Answer]  # makes the call
    what: Callable[[], str]  # says what is asked
    # gives the program so far, what is asked now included; ``None`` outside of a program
    program: Callable[[], History | None] = lambda: None
    seconds_least: float = 0.0  # time that it has in any case
    _since: float = field(default=0.0, init=False)

    @property
    def seconds(self) -> float:
        """The limit of the call, in seconds."""
        return max(_CLOCK.seconds, self.seconds_least)

    @property
    def seconds_left(self) -> float:
        """The seconds left for the call, negative if it should have ended."""
        return self._since + self.seconds - time.monotonic()

    def describe_hang(self) -> str:
        """Return a message that the call did not end in time."""
        return f"hung in {self.what()}: no answer within {self.seconds:g} s (--timeout waits longer)"

    def within_limit(self) -> Answer:
        """Make the call and return its result; raise `HungError` if it takes too long."""
        if not _CLOCK.seconds:
            return self.make()
        self._since = time.monotonic()
        try:
            _CLOCK.rings, _CLOCK.call = 0, self
            try:
                return self.make()
            finally:
                _CLOCK.call = None
        except _Alarm:
            _CLOCK.call = None  # once more: it may have rung just before
        raise HungError(self.adapter, self.describe_hang())


class _Clock:
    """The process's only alarm, and the thread in which it rings.

    It rings all the time, for whatever call is under way: to wind it up for each call took two system calls,
    which was a tenth of the time that an operation on a slot allocator takes.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.rings = 0
        self.call: AdapterCall[Any] | None = None

    def ring(self, number: int, frame: FrameType | None) -> None:
        call = self.call
        if call is None:
            return
        self.rings += 1
        if self.rings > _RINGS * call.seconds / self.seconds:
            # Again after as long again: an adapter may have caught it. With the next ring, on a busy machine,
            # it would ring while who was left stops it, and nobody would be there to hear.
            self.rings = 0
            raise _Alarm

    def wind(self, seconds: float) -> None:
        """Start the alarm for calls with this limit; 0 stops it."""
        self.seconds, self.call = seconds, None
        signal.setitimer(signal.ITIMER_REAL, seconds / _RINGS, seconds / _RINGS)


_CLOCK = _Clock()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the seconds of each call of an adapter; 0, or any thread but the main one, sets no limit.

    What the interpreter cannot interrupt, such as native code in a loop, hears no alarm; a process that
    carries out tasks for another one is ended then (`pymllm.work.workers`).
    """
    with answer_limit(seconds), _alarm(seconds):
        yield


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _CLOCK.ring), _CLOCK.seconds
    _CLOCK.wind(seconds)
    try:
        yield
    finally:
        _CLOCK.wind(before[1])
        signal.signal(signal.SIGALRM, before[0])


def call_in_progress() -> AdapterCall[Any] | None:
    """Return the current limited call, for another thread to read."""
    return _CLOCK.call


_WAITS = 10
_AGAIN = 1.0
"""Seconds, at least, between two alarms of a block that is late: it may still clear up."""


class TookTooLong(BaseException):
    """Raised to end any code; an `Exception` could be taken for the implementation's."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in a ``with`` block after so many seconds of processor time.

    So a busy machine is not taken for an endless loop; ten times as many may pass on the clock, for what
    waits for ever. Whoever clears up on the way out may meet errors, or end well: the block is late all the
    same. It takes the process's alarm, which only the main thread can set: in any other there is no limit.
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
        # Again after as long again: a destructor, or the callback of a reference, swallows any error.
        signal.setitimer(signal.ITIMER_REAL, max(seconds, _AGAIN))
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
