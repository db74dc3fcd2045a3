"""Processes beside this one."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator

import pytest

from pymllm.conformance.time_limit import AdapterCall, HungError
from pymllm.conformance.worker_process import tell
from pymllm.conformance.workers import Lost, Workers, ask


def work(number: int) -> tuple[int, int]:
    """Answer with the process; the second item takes its process along."""
    if number == -1:
        os._exit(3)
    if number == -2:
        raise ValueError("no such number")
    return number, os.getpid()


def group_of(item: int) -> int:
    return os.getpgrp()


def count_down(start: int) -> str:
    """Tell each number before the answer."""
    for number in range(start, 0, -1):
        tell(number)
    return "done"


def talk(item: int) -> None:
    print("a word")


def hang(how: str) -> str:
    """Make a call that never ends, and answer with what is said of it."""

    def spin() -> None:
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                if how == "spins":
                    raise

    try:
        AdapterCall("x", spin, lambda: "a test").within_limit()
    except HungError as error:
        return error.message
    return "came back"


def test_one_job_is_one_process_beside() -> None:
    """It may end without taking this one along, and answers come in the order of the items."""
    seen: list[int] = []
    with Workers(1) as workers:
        first, lost, second, third = workers.map(work, [3, -1, 1, 2], seen.append)
    assert isinstance(lost, Lost)
    answers = [answer for answer in (first, second, third) if not isinstance(answer, Lost)]
    assert [number for number, _ in answers] == [3, 1, 2]
    assert os.getpid() not in {process for _, process in answers}
    assert second[1] == third[1] != first[1]  # type: ignore[index]  # the one that was lost was replaced
    assert seen == [1, 2, 3, 4]


def test_without_a_job_all_is_done_here(capfd: pytest.CaptureFixture[str]) -> None:
    """For tests, which patch what is in their process; words and errors go where they go elsewhere."""
    with Workers(0) as workers:
        assert workers.map(work, [3, 1]) == [(3, os.getpid()), (1, os.getpid())]
        workers.map(talk, [1])
        with pytest.raises(ValueError, match="no such number"):
            workers.map(work, [-2])
    out, err = capfd.readouterr()
    assert (out, "a word" in err) == ("", True)


def test_two_jobs_are_done_beside() -> None:
    """The same answers in the same order, from processes that stay between two calls and then end."""
    seen: list[int] = []
    with Workers(2) as workers:
        answers = [*workers.map(work, list(range(8)), seen.append), *workers.map(work, [8, 9])]
    assert [answer[0] for answer in answers if not isinstance(answer, Lost)] == list(range(10))
    processes = {answer[1] for answer in answers if not isinstance(answer, Lost)}
    assert os.getpid() not in processes
    assert len(processes) <= 2
    assert seen == list(range(1, 9))
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_process_that_dies_takes_no_other_along() -> None:
    """Whoever asked learns which item has no answer and why; the others have theirs, before and after it."""
    with Workers(2) as workers:
        answers = workers.map(work, [1, -1, 2, 3, 4])
    assert [answer[0] for answer in answers if not isinstance(answer, Lost)] == [1, 2, 3, 4]
    assert isinstance(answers[1], Lost)
    assert answers[1].message.startswith("the process that ran it ended with status 3")


def test_an_interrupt_is_for_this_process_alone() -> None:
    """Ctrl-C reaches every process of a terminal's group; each would print where it was."""
    with Workers(2) as workers:
        groups = set(workers.map(group_of, [0] * 4))
    assert os.getpgrp() not in groups


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_keeps_what_is_done(jobs: int) -> None:
    """The rest is lost, here and in every later call, and the interrupt is there for whoever asks."""

    def interrupt(count: int) -> None:
        raise KeyboardInterrupt

    with Workers(jobs) as workers:
        answers = workers.map(work, [1, 2, 3], interrupt)
        assert isinstance(workers.interruption, KeyboardInterrupt)
        later = workers.map(work, [4])
    assert [isinstance(answer, Lost) for answer in (*answers, *later)].count(False) == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_call_that_hangs_is_left(jobs: int) -> None:
    """The limit is that of each call of an adapter."""
    with Workers(jobs, seconds=0.2) as workers:
        answers = workers.map(hang, ["spins", "catches all"])
    assert answers[0] == "hung in a test: no answer within 0.2 s (--timeout waits longer)"
    assert answers[1] == Lost("hung in a test: no answer within 0.2 s (--timeout waits longer)")


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_printed_is_no_result(jobs: int, capfd: pytest.CaptureFixture[str]) -> None:
    """An adapter's words go to standard error."""
    with Workers(jobs) as workers:
        workers.map(talk, [1])
    out, err = capfd.readouterr()
    assert (out, "a word" in err) == ("", True)


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
    assert not any(isinstance(answer, Lost) for answer in answers)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_comes_through(jobs: int) -> None:
    """A bug is not swallowed."""
    with pytest.raises(ValueError, match="no such number"), Workers(jobs) as workers:
        workers.map(work, [1, -2])


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_stream_takes_items_only_when_somebody_is_free(jobs: int) -> None:
    """So it may have no end: who has enough stops taking answers."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    ticks: list[None] = []
    with Workers(jobs) as workers:
        stream = workers.stream(work, items(), lambda: ticks.append(None))
        answered = [next(stream) for _ in range(3)]
        stream.close()
    assert sorted(item for item, _ in answered) == sorted(answer[0] for _, answer in answered)  # type: ignore[index]
    assert len(taken) <= 3 + jobs
    assert ticks


def test_a_stream_ends_with_its_items_or_with_an_interrupt() -> None:
    """What was answered before stays."""
    with Workers(2) as workers:
        answers = dict(workers.stream(work, [4, -1, 5]))
    assert isinstance(answers.pop(-1), Lost)
    assert [answer[0] for answer in answers.values() if not isinstance(answer, Lost)] == list(answers)
    assert workers.interruption is None

    def items() -> Iterator[int]:
        yield 4
        raise KeyboardInterrupt

    with Workers(1) as workers:
        assert [item for item, _ in workers.stream(work, items())] == [4]
    assert workers.interruption is not None


def test_an_error_of_a_stream_is_raised_where_it_is_read() -> None:
    """As of `map`."""
    with Workers(1) as workers, pytest.raises(ValueError, match="no such number"):
        list(workers.stream(work, [-2]))


def test_a_function_may_tell_something_before_its_answer() -> None:
    """To whoever listens; where nobody does, and here, where nobody waits, it is dropped."""
    heard: list[int] = []
    assert ask(count_down, 3, hear=heard.append) == "done"
    assert heard == [3, 2, 1]
    assert ask(count_down, 2) == "done"
    assert count_down(2) == "done"


def test_whoever_asks_alone_is_interrupted_or_told_of_a_loss() -> None:
    """There is nothing else that could be kept."""
    assert isinstance(ask(work, -1), Lost)

    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(count_down, 1, hear=interrupt)
