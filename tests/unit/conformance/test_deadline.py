"""An end to what never ends."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from pymllm.conformance.time_limit import TookTooLong, deadline


def test_an_endless_loop_is_left() -> None:
    """By what no implementation can take for an answer."""

    def spin() -> None:
        with deadline(0.05):
            while True:
                pass

    with pytest.raises(TookTooLong, match=r"still running after 0\.05 s"):
        spin()
    assert not issubclass(TookTooLong, Exception)


def test_only_work_counts_until_the_wait_is_ten_times_as_long() -> None:
    """What sleeps may have waited for the processor; what waits for ever is left, too."""
    with deadline(0.05):
        time.sleep(0.2)
    with pytest.raises(TookTooLong), deadline(0.05):
        time.sleep(60)


def test_what_ends_in_time_is_left_alone() -> None:
    """The alarm is off afterwards, and who had it before has it again."""
    before = signal.getsignal(signal.SIGALRM)
    with deadline(60):
        assert signal.getsignal(signal.SIGALRM) != before
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_other_threads_have_no_limit() -> None:
    """They cannot set the alarm, and go on without."""
    done: list[int] = []

    def work() -> None:
        with deadline(60):
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]


@pytest.mark.parametrize("error", [None, ZeroDivisionError("in the middle")])
def test_what_comes_of_clearing_up_is_no_answer(error: Exception | None) -> None:
    """A program that was torn out of the middle of something shows anything, or nothing."""

    def clear_up() -> None:
        with deadline(0.05):
            try:
                while True:
                    pass
            except TookTooLong:
                if error is not None:
                    raise error from None

    with pytest.raises(TookTooLong):
        clear_up()
