"""Processes beside this one."""

from __future__ import annotations

import os

import pytest

from pymllm.conformance.workers import Workers


def work(number: int) -> tuple[int, int]:
    """Answer with the process; the second item takes its process along."""
    if number == -1:
        os._exit(3)
    if number == -2:
        raise ValueError("no such number")
    return number, os.getpid()


def test_one_job_is_done_here() -> None:
    """No process is started, and answers come in the order of the items."""
    seen: list[int] = []
    with Workers(1) as workers:
        answers = workers.map(work, [3, 1, 2], seen.append)
    assert answers == [(3, os.getpid()), (1, os.getpid()), (2, os.getpid())]
    assert seen == [1, 2, 3]


def test_two_jobs_are_done_beside(tmp_path: object) -> None:
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


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_comes_through(jobs: int) -> None:
    """A bug is not swallowed."""
    with pytest.raises(ValueError, match="no such number"), Workers(jobs) as workers:
        workers.map(work, [1, -2])
