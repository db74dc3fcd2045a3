"""A process that carries out what another one sends it, until that one has nothing more or is gone.

It owns nothing of its starter but one connection: not its terminal, so that Ctrl-C is the starter's business,
and not its standard output, where only results belong.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

from pymllm.conformance.time_limit import call_in_progress, time_limit
from pymllm.oracle.history import History

__all__ = ["Lost", "Raised", "Task", "WorkerProcess", "serve"]

_TICK = 0.5  # Seconds between two looks of the guard.
_GRACE = 3.0  # Seconds that a call may go on after its alarm rang.
_STUCK = 60.0  # Seconds until even that ends which lets nobody look.
_PATIENCE = 5.0  # Seconds that a process has to end by itself.


@dataclass(frozen=True, slots=True)
class Task:
    """A call to make: a function of a module, what to call it with, and the seconds of `time_limit`."""

    function: Callable[[Any], Any]
    item: Any
    seconds: float

    def carry_out(self) -> Any:
        """Make the call."""
        with time_limit(self.seconds):
            return self.function(self.item)


@dataclass(frozen=True, slots=True)
class Raised:
    """The error that a call ended with."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Lost:
    """Why a call has no answer, and the program that was running, where that is known."""

    message: str
    history: History | None = None


class WorkerProcess:
    """A process beside this one, seen from here."""

    def __init__(self) -> None:
        self.link, theirs = Pipe()
        serve = f"from {__name__} import serve; serve({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {serve}"],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what an adapter prints is no result
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )

    @property
    def is_alive(self) -> bool:
        """Whether it can still answer."""
        return self._process.poll() is None

    def send(self, task: Task) -> None:
        """Give it something to do; whether it died meanwhile shows where the answer is awaited."""
        with suppress(ConnectionError):
            self.link.send(task)

    def receive(self) -> Any:
        """Take what it has sent: an answer, `Raised`, or `Lost`, which is also what a dead one gives."""
        try:
            if not self.is_alive and not self.link.poll():
                raise EOFError  # what it had started may still hold the other end
            answer = self.link.recv()
        except (EOFError, ConnectionError):
            self.end(at_once=True)
            return Lost(_describe_death(self._process.returncode))
        if isinstance(answer, Lost):
            self.end(at_once=True)
        return answer

    def end(self, *, at_once: bool = False) -> None:
        """Let it go, or end it and whatever it has started.

        Parameters
        ----------
        at_once : bool
            Do not wait until it has ended by itself.
        """
        self.link.close()
        try:
            self._process.wait(0 if at_once else _PATIENCE)
        except subprocess.TimeoutExpired:
            at_once = True
        if at_once:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _describe_death(status: int) -> str:
    if status >= 0:
        return f"the process that ran it ended with status {status}; run it alone with --jobs 1 to see how"
    name = signal.Signals(-status).name
    return f"the process that ran it was killed by {name}; run it alone with --jobs 1 to see how"


def serve(descriptor: int) -> None:
    """Carry out what comes in, one after the other; never returns.

    Parameters
    ----------
    descriptor : int
        Of the connection to the starter.
    """
    os.set_inheritable(descriptor, False)
    link, lock = Connection(descriptor), threading.Lock()
    threading.Thread(target=_guard, args=(link, lock, os.getppid()), daemon=True).start()
    while True:
        try:
            task = link.recv()
        except EOFError:
            os._exit(0)
        except Exception as error:  # the function is of a module that cannot be imported here
            answer: Any = _raised(error)
        else:
            answer = _carry_out(task)
        sys.stdout.flush()  # what an adapter printed: the process ends without doing so
        with lock, suppress(ConnectionError):  # a starter that is gone has nothing more, either
            link.send(answer)


def _carry_out(task: Task) -> Any:
    try:
        return task.carry_out()
    except Exception as error:
        return _raised(error)


def _raised(error: Exception) -> Raised:
    """Pack an error with its traceback, which does not travel by itself."""
    text = "".join(traceback.format_exception(error))
    error.add_note(text)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error class may be written so that it cannot be made again
        return Raised(RuntimeError(text))
    return Raised(error)


def _guard(link: Connection, lock: threading.Lock, starter: int) -> None:
    """End this process once its starter is gone, or once a call has not heard its alarm."""
    looks = 0  # since a call was overdue: clocks also count time in which the whole process was stopped
    with open(os.devnull, "w") as nowhere:
        while os.getppid() == starter:
            call = call_in_progress()
            looks = looks + 1 if call is not None and call.seconds_left < 0 else 0
            if call is not None and looks * _TICK > _GRACE and lock.acquire(timeout=_TICK):
                with suppress(ConnectionError):
                    link.send(Lost(call.describe_hang(), call.program()))
                break
            faulthandler.cancel_dump_traceback_later()
            if call is not None:
                # Native code that lets no thread run stops this one, too; then nobody puts off the end.
                left = max(call.seconds_left, 0) + _STUCK
                faulthandler.dump_traceback_later(left, exit=True, file=nowhere)
            time.sleep(_TICK)
        os._exit(1)
