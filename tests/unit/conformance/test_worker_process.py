"""One process beside this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from pymllm.conformance import worker_process
from pymllm.conformance.worker_process import Lost, Raised, Task, WorkerProcess, is_worker
from tests.child_processes import left_of


class Odd:
    """Cannot be sent."""

    def __reduce__(self) -> str:
        raise ValueError("stays here")


class OddError(Exception):
    """Cannot be made from what it keeps as its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def work(item: object) -> object:
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
        assert worker_process._STARTER is not None
        os.write(worker_process._STARTER._link.fileno(), b"\0\0\0\4word")
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
    work("foreign")
    raise type("Worse", (Exception,), {"__module__": "nobody_has_this"})("bad")


def test_answers_and_errors_come_back() -> None:
    """One after the other; an error has its traceback with it, even where it cannot travel itself."""
    worker = WorkerProcess()
    try:
        answers = []
        for item in ("a", "fail", "odd", "b"):
            worker.send(Task(work, item, 0.0))
            answers.append(worker.receive())
    finally:
        worker.end()
    assert not worker.is_alive
    first, failed, odd, last = answers
    assert (first, last) == ("a", "b")
    assert isinstance(failed, Raised)
    assert isinstance(failed.error, ValueError)
    assert "in work" in failed.error.__notes__[0]
    assert isinstance(odd, Raised)
    assert "OddError: odd" in str(odd.error)


def test_a_task_that_cannot_be_read_is_an_error() -> None:
    """The process lives on."""
    worker = WorkerProcess()
    try:
        worker.link.send_bytes(b"no pickle")
        assert isinstance(worker.receive(), Raised)
        worker.send(Task(work, 1, 0.0))
        assert worker.receive() == 1
    finally:
        worker.end()


def test_a_death_is_told_with_its_signal() -> None:
    """And nothing more can be asked of it."""
    worker = WorkerProcess()
    worker.send(Task(work, "segv", 0.0))
    answer = worker.receive()
    assert isinstance(answer, Lost)
    assert answer.message.startswith("the process that ran it was killed by SIGSEGV")
    worker.end()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for processes in /proc")
def test_what_it_has_started_ends_with_it() -> None:
    """A child that holds the connection neither keeps its starter waiting nor stays."""
    worker = WorkerProcess()
    worker.send(Task(work, "child", 0.0))
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
        "from pymllm.conformance.worker_process import Task, WorkerProcess\n"
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
        ("foreign", "it has nobody_has_this.Answer, of a module that is not loaded here"),
        ("garbage", "sent no answer that can be read"),
        ("real-time", "was killed by signal 3"),
        ("base", "the code that was run raised KeyboardInterrupt"),
        ("closed", "gave no answer"),
    ],
)
def test_what_is_no_answer_is_lost(item: str, words: str) -> None:
    """Nothing is imported to read one: that would run here what is examined there."""
    worker = WorkerProcess()
    worker.send(Task(work, item, 0.0))
    answer = worker.receive()
    assert isinstance(answer, Lost)
    assert words in answer.message
    assert not worker.is_alive
    assert "nobody_has_this" not in sys.modules


def test_an_error_of_a_class_that_is_not_known_here_comes_as_its_words() -> None:
    """Its class stays where it is."""
    worker = WorkerProcess()
    try:
        worker.send(Task(raise_foreign, None, 0.0))
        answer = worker.receive()
    finally:
        worker.end()
    assert isinstance(answer, Raised)
    assert type(answer.error) is RuntimeError
    assert "nobody_has_this.Worse: bad" in str(answer.error)


def test_a_copy_of_the_process_gives_no_answer() -> None:
    """Two would answer one question, and the second answer would be taken for that of the next."""
    worker = WorkerProcess()
    try:
        answers = []
        for item in ("forked", "a", "b"):
            worker.send(Task(work, item, 0.0))
            answers.append(worker.receive())
            time.sleep(0.2)
    finally:
        worker.end()
    assert answers == ["forked", "a", "b"]


def test_an_interrupt_that_is_nobody_elses_is_not_heard() -> None:
    """And one without standard output goes on; it knows what it is, and this process is none."""
    worker = WorkerProcess()
    try:
        worker.send(Task(work, "deaf", 0.0))
        assert worker.receive() is True
        worker.send(Task(work, "a", 0.0))
        assert worker.receive() == "a"
    finally:
        worker.end()
    assert not is_worker()
