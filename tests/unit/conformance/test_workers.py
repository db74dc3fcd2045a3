"""Processes beside this one."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pymllm.conformance.workers import Workers


def work(number: int) -> tuple[int, int]:
    """Answer with the process; the second item takes its process along."""
    if number == -1:
        os._exit(3)
    if number == -2:
        raise ValueError("no such number")
    return number, os.getpid()


def heed(number: signal.Signals) -> object:
    """Answer with what a signal does in the process that answers."""
    return signal.getsignal(number)


def test_one_job_is_done_here() -> None:
    """No process is started, and answers come in the order of the items."""
    seen: list[int] = []
    with Workers(1) as workers:
        answers = workers.map(work, [3, 1, 2], seen.append)
    assert answers == [(3, os.getpid()), (1, os.getpid()), (2, os.getpid())]
    assert seen == [1, 2, 3]


def test_two_jobs_are_done_beside() -> None:
    """The same answers in the same order, from processes that stay between two calls and then end."""
    seen: list[int] = []
    with Workers(2) as workers:
        answers = [*workers.map(work, list(range(8)), seen.append), *workers.map(work, [8, 9])]
    assert [answer[0] for answer in answers if answer is not None] == list(range(10))
    processes = {answer[1] for answer in answers if answer is not None}
    assert os.getpid() not in processes
    assert len(processes) <= 2
    assert seen == list(range(1, 9))
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_process_that_dies_leaves_a_gap() -> None:
    """Whoever asked learns which items have no answer."""
    with Workers(2) as workers:
        answers = workers.map(work, [1, -1])
    assert answers[1] is None


def test_an_interrupt_is_for_this_process_alone() -> None:
    """Ctrl-C reaches every process of a terminal; each would print where it was."""
    before = signal.getsignal(signal.SIGINT)
    with Workers(2) as workers:
        assert set(workers.map(heed, [signal.SIGINT] * 4)) == {signal.SIG_IGN}
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_may_ask_for_work_too() -> None:
    """Where signals cannot be set they stay as they are."""
    answers: list[object] = []

    def ask() -> None:
        with Workers(2) as workers:
            answers.extend(workers.map(work, [1, 2]))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(60)
    assert len(answers) == 2
    assert None not in answers


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_comes_through(jobs: int) -> None:
    """A bug is not swallowed."""
    with pytest.raises(ValueError, match="no such number"), Workers(jobs) as workers:
        workers.map(work, [1, -2])
