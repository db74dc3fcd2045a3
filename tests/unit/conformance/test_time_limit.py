"""Calls that take too long."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from pymllm.adapters.process.answer_limit import seconds_per_answer
from pymllm.conformance.time_limit import AdapterCall, HungError, call_in_progress, time_limit


def call(make: Callable[[], object], **more: float) -> AdapterCall[object]:
    return AdapterCall("slow:Cache", make, lambda: "step 3", **more)


def test_what_answers_in_time_is_left_alone() -> None:
    """Its answer and its errors come through, and no alarm rings later."""
    with time_limit(0.05):
        assert call(lambda: 7).within_limit() == 7
        with pytest.raises(KeyError):
            call(lambda: {}["x"]).within_limit()
        time.sleep(0.1)
    assert call_in_progress() is None


def test_what_takes_too_long_is_left() -> None:
    """The message says who was asked for what, and how long; handlers are those of before."""
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(0.05), pytest.raises(HungError) as caught:
        call(lambda: time.sleep(60)).within_limit()
    assert str(caught.value) == (
        "adapter slow:Cache: hung in step 3: no answer within 0.05 s (--timeout waits longer)"
    )
    assert signal.getsignal(signal.SIGALRM) is before


def test_an_adapter_that_catches_its_alarm_hears_another() -> None:
    """Once is not enough for a loop that tries again whatever happens."""
    caught: list[BaseException] = []

    def stubborn() -> None:
        while True:
            try:
                time.sleep(60)
            except BaseException as error:
                caught.append(error)
                if len(caught) == 2:
                    raise

    with time_limit(0.05), pytest.raises(HungError):
        call(stubborn).within_limit()
    assert len(caught) == 2


def test_a_process_that_was_stopped_is_not_late() -> None:
    """Ctrl-Z, or a machine that sleeps: of all the rings meanwhile one is heard."""

    def stopped() -> str:
        until = time.monotonic() + 0.5
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(until - time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        return "answered"

    with time_limit(0.2):
        assert call(stopped).within_limit() == "answered"


def test_some_calls_have_more_time() -> None:
    """An import does not answer as fast as a lookup."""
    with time_limit(0.05):
        assert call(lambda: time.sleep(0.1), seconds_least=60).within_limit() is None


def test_without_a_limit_nothing_is_watched() -> None:
    """0 is none, and so is any number where signals cannot be had."""
    seen: list[object] = []
    with time_limit(0):
        call(lambda: seen.append(call_in_progress())).within_limit()

    def beside() -> None:
        with time_limit(0.01):
            call(lambda: (time.sleep(0.05), seen.append(call_in_progress()))).within_limit()

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join(60)
    assert seen == [None, None]


def test_another_thread_sees_how_much_time_is_left() -> None:
    """Where the one that calls hears nothing."""
    left: list[float] = []

    def look() -> None:
        time.sleep(0.05)
        pending = call_in_progress()
        assert pending is not None
        assert pending.program() is None
        left.append(pending.seconds_left)

    with time_limit(60):
        thread = threading.Thread(target=look)
        thread.start()
        call(lambda: thread.join(30)).within_limit()
    assert 0 < left[0] < 60


def test_an_alarm_that_comes_late_is_not_heard() -> None:
    """Between two calls it has nothing to end."""
    with time_limit(60):
        signal.raise_signal(signal.SIGALRM)
        assert call(lambda: 1).within_limit() == 1


def test_a_program_in_another_process_has_the_limit_too() -> None:
    """Most of it, so that what it said is kept; in a thread without alarms as well."""
    seen: list[float | None] = []
    with time_limit(10):
        seen.append(seconds_per_answer())
        thread = threading.Thread(target=lambda: seen.append(seconds_per_answer()))
        thread.start()
        thread.join()
        with time_limit(0):
            seen.append(seconds_per_answer())
    assert seen == [9.0, 9.0, None]
