"""Forked processes, a few at a time: each says one thing or nothing, and none lasts for ever.

Limits are of processor time, so that a busy machine is not taken for a process that hangs. A process is the
head of a group, and the group ends with it: a test that is cut short leaves none of its own processes behind.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

_WALL = 20.0
"""A process may take so many times its limit by the clock on the wall, where it may wait for others."""

_FAILED = 70
"""Exit status of a process that raised: no test did that."""

_DONE = "\0"
"""What a process says last: what it has started may hold the pipe open after its end."""

Tell = Callable[[str], None]
"""Takes what a process has to say."""


class Task(NamedTuple):
    """The task of a process, and the total seconds of processor time that the process may take."""

    name: str
    run: Callable[[Tell], None]
    seconds: float


class _Running(NamedTuple):
    task: Task
    pipe: int
    place: str
    until: float


def run_each(tasks: Iterable[Task], jobs: int, show: Callable[[str, str], None]) -> None:
    """Run each task in a process of its own, and show its words: none, its own, or the way in which it died.

    A task that raises is a RuntimeError, and no verdict.
    """
    running: list[_Running] = []
    left = iter(tasks)
    try:
        while True:
            while len(running) < jobs and (task := next(left, None)) is not None:
                running.append(_start(task))
            if not running:
                return
            for it in _wait_for(running):
                running.remove(it)
                show(it.task.name, _end(it))
    finally:
        for it in running:
            _end(it)


_pids: dict[int, int] = {}
"""Processes by the pipe that they write to."""


def _start(task: Task) -> _Running:
    read, write = os.pipe()
    place = tempfile.mkdtemp(prefix="mutants-")
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(read)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = place
        _silence(1, 2)
        status = _FAILED
        try:
            most = int(2 * task.seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))  # where no handler is called any more
            task.run(lambda words: _say(write, words))
            _say(write, _DONE)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    _pids[read] = pid
    return _Running(task, read, place, time.monotonic() + _WALL * task.seconds)


def _say(pipe: int, words: str) -> None:
    os.write(pipe, words.encode())


def _silence(*streams: int) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(quiet, stream)


def _wait_for(running: list[_Running]) -> list[_Running]:
    """Return the processes that have said something, have ended, or have had their time."""
    left = max(min(it.until for it in running) - time.monotonic(), 0.0)
    ready, _, _ = select.select([it.pipe for it in running], [], [], left)
    return [it for it in running if it.pipe in ready or time.monotonic() >= it.until]


def _end(it: _Running) -> str:
    """End a process and its group, and return the words of the process."""
    pid = _pids.pop(it.pipe)
    has_ended = bool(select.select([it.pipe], [], [], 0.0)[0])
    words = os.read(it.pipe, 1 << 16).decode() if has_ended else "it hangs"
    if words:
        _kill_group(pid)
    _, status = os.waitpid(pid, 0)
    os.close(it.pipe)
    shutil.rmtree(it.place, ignore_errors=True)
    if not words and status == _FAILED << 8:
        raise RuntimeError(f"{it.task.name}: what runs the tests has failed")
    return words.rstrip(_DONE) if words else f"it ended with {os.waitstatus_to_exitcode(status)}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def limit(seconds: float, tell: Tell, words: str) -> None:
    """Say something and end this process after so much more processor time; none takes the limit away."""

    def give_up(signum: int, frame: object) -> None:
        tell(words)
        os._exit(1)

    signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)


def run_quietly(run: Callable[[], None]) -> None:
    """Run something in a process of its own that prints only to stderr; exit if it failed."""
    pid = os.fork()
    if pid == 0:
        _silence(1)
        status = 1
        try:
            run()
            status = 0
        except SystemExit as error:
            print(error, file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise SystemExit("the tests could not be run")
