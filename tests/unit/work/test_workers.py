"""Processes beside this one."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pymllm.work import workers
from pymllm.work.time_limit import AdapterCall, HungError
from pymllm.work.workers import Lost, Raised, Task, WorkerProcess, Workers, ask, is_worker, tell
from tests.child_processes import left_of

pytestmark = pytest.mark.usefixtures("cold_workers")


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
    """Make a call that never ends, and return the message of its timeout."""

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
    assert list(dict.fromkeys(seen))[-4:] == [1, 2, 3, 4]


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
    assert ({*seen} - {0}, seen) == ({*range(1, 9)}, sorted(seen))  # also called while none has ended
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
        if count:
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
    """A bug is not swallowed, nor is one of a stream."""
    with pytest.raises(ValueError, match="no such number"), Workers(jobs) as workers:
        workers.map(work, [1, -2])
    with pytest.raises(ValueError, match="no such number"), Workers(jobs) as workers:
        list(workers.stream(work, [-2]))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_stream_takes_items_only_when_somebody_is_free(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it may have no end: who has enough stops taking answers; who waits is told that time passes."""
    monkeypatch.setattr("pymllm.work.workers._LOOK", 0)
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
    """A stream ends with its items or with an interrupt, and earlier answers stay."""
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


def test_a_function_may_tell_something_before_its_answer() -> None:
    """A message of a function before its answer reaches the listener, if there is a listener."""
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


class Odd:
    """Cannot be sent."""

    def __reduce__(self) -> str:
        raise ValueError("stays here")


class OddError(Exception):
    """An error that cannot be made anew from its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def obey(item: object) -> object:
    """Do as the item says."""
    if item == "odd":
        raise OddError("o", "dd")
    if item == "fail":
        raise ValueError("no")
    if item == "no answer":
        return Odd()
    if item == "foreign":
        module = types.ModuleType("nobody_has_this")
        exec("class Answer: pass", module.__dict__)
        sys.modules[module.__name__] = module
        return module.Answer()
    if item == "garbage":
        assert workers._STARTER is not None
        os.write(workers._STARTER._link.fileno(), b"\0\0\0\4word")
    if item == "torn":
        assert workers._STARTER is not None
        os.write(workers._STARTER._link.fileno(), b"\0\0\0\7half")
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "real-time":
        os.kill(os.getpid(), signal.SIGRTMIN + 1)
    if item == "base":
        raise KeyboardInterrupt
    if item == "closed":
        os.closerange(3, 256)
    if item == "forked" and not os.fork():
        return "a copy"
    if item == "deaf":
        signal.raise_signal(signal.SIGINT)
        sys.stdout = None  # type: ignore[assignment]
        return is_worker()
    if item == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == "child":
        # Forked, and so with the connection in its hands.
        process = os.fork()
        if not process:
            time.sleep(120)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def raise_foreign(item: object) -> object:
    """Raise an error of a class of a module that only this process has."""
    obey("foreign")
    raise type("Worse", (Exception,), {"__module__": "nobody_has_this"})("bad")


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    """A process that has nothing to do yet."""
    made = WorkerProcess()
    yield made
    made.end()


def answers_of(worker: WorkerProcess, *items: object) -> list[Any]:
    """Ask one after the other."""
    answers = []
    for item in items:
        worker.send(Task(obey, item, 0.0))
        answers.append(worker.receive())
    return answers


def test_answers_and_errors_come_back(worker: WorkerProcess) -> None:
    """One after the other; an error has its traceback with it, even where it cannot travel itself."""
    first, failed, odd, last = answers_of(worker, "a", "fail", "odd", "b")
    worker.end()
    assert not worker.is_alive
    assert (first, last) == ("a", "b")
    assert isinstance(failed, Raised)
    assert isinstance(failed.error, ValueError)
    assert "in obey" in failed.error.__notes__[0]
    assert isinstance(odd, Raised)
    assert "OddError: odd" in str(odd.error)


def test_a_task_that_cannot_be_read_is_an_error(worker: WorkerProcess) -> None:
    """The process lives on."""
    worker.link.send_bytes(b"no pickle")
    assert isinstance(worker.receive(), Raised)
    assert answers_of(worker, 1) == [1]


def test_a_death_is_told_with_its_signal(worker: WorkerProcess) -> None:
    """And nothing more can be asked of it."""
    (answer,) = answers_of(worker, "segv")
    assert isinstance(answer, Lost)
    assert answer.message.startswith("the process that ran it was killed by SIGSEGV")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for processes in /proc")
def test_what_it_has_started_ends_with_it() -> None:
    """A child that holds the connection neither keeps its starter waiting nor stays."""
    worker = WorkerProcess()
    worker.send(Task(obey, "child", 0.0))
    deadline = time.monotonic() + 60
    while worker.is_alive and time.monotonic() < deadline:
        time.sleep(0.05)
    answer = worker.receive()
    assert isinstance(answer, Lost)
    assert "killed by SIGKILL" in answer.message


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for processes in /proc")
def test_it_ends_once_its_starter_is_gone() -> None:
    """Even where that had no time to say so, and in the middle of a task."""
    code = (
        "import os, signal, time\n"
        "from pymllm.work.workers import Task, WorkerProcess\n"
        "worker = WorkerProcess()\n"
        "worker.send(Task(time.sleep, 120, 0.0))\n"
        "time.sleep(1.5)\n"
        "print(worker._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    process = int(done.stdout)
    assert left_of([process]) == []


def test_an_answer_that_nobody_waits_for_is_dropped_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """A starter that was ended while a task went on: nobody reads a traceback of the pipe."""
    worker = WorkerProcess()
    worker.send(Task(time.sleep, 1.0, 0.0))
    worker.end()
    assert worker._process.returncode == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("no answer", "the answer cannot be sent: stays here"),
        ("foreign", "sent no answer that can be read: No module named 'nobody_has_this'"),
        ("garbage", "sent no answer that can be read"),
        ("torn", "sent no answer that can be read: got end of file during message"),
        ("real-time", "was killed by signal 3"),
        ("base", "the code that was run raised KeyboardInterrupt"),
        ("closed", "gave no answer"),
    ],
)
def test_what_is_no_answer_is_lost(worker: WorkerProcess, item: str, words: str) -> None:
    """Of whatever kind the loss is, it is said in one line, and the process is gone."""
    (answer,) = answers_of(worker, item)
    assert isinstance(answer, Lost)
    assert words in answer.message
    assert not worker.is_alive
    assert "nobody_has_this" not in sys.modules


def test_an_error_of_a_class_that_is_not_known_here_comes_as_its_words(worker: WorkerProcess) -> None:
    """Its class stays where it is."""
    worker.send(Task(raise_foreign, None, 0.0))
    answer = worker.receive()
    assert isinstance(answer, Raised)
    assert type(answer.error) is RuntimeError
    assert "nobody_has_this.Worse: bad" in str(answer.error)


def test_a_copy_of_the_process_gives_no_answer(worker: WorkerProcess) -> None:
    """Two would answer one question, and the second answer would be taken for that of the next."""
    answers = []
    for item in ("forked", "a", "b"):
        answers += answers_of(worker, item)
        time.sleep(0.2)
    assert answers == ["forked", "a", "b"]


def test_an_interrupt_that_is_nobody_elses_is_not_heard(worker: WorkerProcess) -> None:
    """A worker hears no interrupt, goes on without standard output, and knows that it is a worker."""
    assert answers_of(worker, "deaf", "a") == [True, "a"]
    assert not is_worker()


def test_whoever_waits_is_called_while_nothing_ends() -> None:
    """Every second or so: a bar that shows the time moves, however long one item takes."""
    seen: list[int] = []
    with Workers(1) as workers:
        workers.map(time.sleep, [2.5], seen.append)
    assert seen.count(0) >= 2
    assert seen[-1] == 1
