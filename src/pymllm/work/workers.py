"""Calls of functions for many items in worker processes.

Whatever is examined is loaded and runs in such a process, even a single job: there it may print, hang, crash
or end the process, and whoever decides the verdict goes on, and knows. It owns nothing of its
starter but one connection: not its terminal, so that Ctrl-C is the starter's business, and not its standard
output, where only results belong. Only somebody's own tests ask for no process at all, where a patch, a
debugger and coverage are to see what happens.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any, TypeVar

from pymllm.adapters.process.reaper import the_reaper
from pymllm.history.files import History
from pymllm.work.time_limit import call_in_progress, time_limit

_TICK = 0.5  # Seconds between two looks of the guard.
_GRACE = 3.0  # Seconds that a call may go on after its alarm rang.
_STUCK = 60.0  # Seconds until even that ends which lets nobody look.
_PATIENCE = 5.0  # Seconds that a process has to end by itself.
_GARBAGE = 20_000  # Objects more than before until a worker's collector looks: at 700 it took a twentieth.
_KNOWN = ("builtins", "click", "pymllm", *sys.stdlib_module_names)
"""Packages whose errors are sent unchanged; classes of others may be missing in the receiver."""
_OF_OTHERS = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Task:
    """A call for a worker process: a module's function, its argument, and a `time_limit`."""

    function: Callable[[Any], Any]
    item: Any
    seconds: float

    def carry_out(self) -> Any:
        """Make the call and return its result."""
        with time_limit(self.seconds):
            return self.function(self.item)


@dataclass(frozen=True, slots=True)
class Raised:
    """The error that ended a call."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Lost:
    """The reason why a call has no result, with the running program if known."""

    message: str
    history: History | None = None
    is_killed: bool = False  # by a signal as others send it, such as a system that has no memory left


INTERRUPTED = Lost("interrupted before its end")
"""The value that stands for calls not made because of an interrupt."""


@dataclass(frozen=True, slots=True)
class Told:
    """A message that a call sends before its result."""

    word: Any


class WorkerProcess:
    """A worker process, as its starter sees it."""

    def __init__(self) -> None:
        self.link, theirs = Pipe()
        with theirs:
            self._process = _start(theirs.fileno())

    @property
    def is_alive(self) -> bool:
        """Tell whether the process can still respond."""
        return self._process.poll() is None

    def send(self, task: Task) -> None:
        """Send a task to the process; if it has died, `receive` reports that."""
        with suppress(ConnectionError):
            self.link.send(task)

    def receive(self) -> Any:
        """Receive a message: a result, `Told`, `Raised`, or (even after its death) `Lost`."""
        try:
            if not self.is_alive and not self.link.poll():
                raise EOFError  # what it had started may still hold the other end
            with redirect_stdout(sys.stderr):  # a record may hold an adapter's own class, which is imported
                answer = self.link.recv()
        except (EOFError, ConnectionError):
            status = self._end_dead()
            return Lost(_describe_death(status), is_killed=-status in _OF_OTHERS)
        except Exception as error:  # somebody else wrote to the connection, or what came is not to be read
            self.end(at_once=True)
            return Lost(f"the process that ran it sent no answer that can be read: {error}")
        if isinstance(answer, Lost):
            self.end(at_once=True)
        return answer

    def _end_dead(self) -> int:
        """End a process that has closed its connection; return its exit status."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_TICK)  # it closes the connection a moment before it is gone
        self.end(at_once=True)
        return self._process.returncode

    def end(self, *, at_once: bool = False) -> None:
        """Wait until the process ends, or kill it and its process group at once."""
        self.link.close()
        try:
            self._process.wait(0 if at_once else _PATIENCE)
        except subprocess.TimeoutExpired:
            at_once = True
        if at_once:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _start(descriptor: int) -> subprocess.Popen[bytes]:
    """Start an interpreter that serves a connection, in its own process group."""
    serve = f"from {__name__} import serve; serve({descriptor})"
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {serve}"],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what an adapter prints is no result
        pass_fds=(descriptor,),
        process_group=0,
        env=the_reaper().environment,
    )


def _describe_death(status: int) -> str:
    if status >= 0:
        return (
            f"the process that ran it ended with status {status} and gave no answer: the code that it ran "
            "called os._exit, or closed its connection"
        )
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal has a number alone
        name = f"signal {-status}"
    return (
        f"the process that ran it was killed by {name} and gave no answer; "
        "with PYTHONFAULTHANDLER=1 a crash tells where on standard error"
    )


class _Starter:
    """The connection to the process that started this one."""

    def __init__(self, link: Connection) -> None:
        self.lock = threading.Lock()
        self._link = link
        self._process = os.getpid()

    def send(self, answer: Any) -> None:
        """Send a result, or the reason why it cannot be sent."""
        if os.getpid() != self._process:
            os._exit(1)  # a copy of this process, which a task forked, and which came back: two would answer
        with self.lock:
            self.send_last(answer)

    def send_last(self, answer: Any) -> None:
        """Send a result while holding the lock, which the caller may keep."""
        try:
            packed = pickle.dumps(answer)
        except Exception as error:
            packed = pickle.dumps(Lost(f"the answer cannot be sent: {error}"))
        with suppress(ConnectionError):  # a starter that is gone has nothing more, either
            self._link.send_bytes(packed)


_STARTER: _Starter | None = None


def is_worker() -> bool:
    """Tell whether this process is a worker of another, which Ctrl-C never reaches."""
    return _STARTER is not None


def tell(word: Any) -> None:
    """Send a message to the process that waits for the current task; without one, do nothing."""
    if _STARTER is not None:
        _STARTER.send(Told(word))


def serve(descriptor: int) -> None:
    """Make the calls that arrive over the starter's connection, one by one; never return."""
    global _STARTER
    os.set_inheritable(descriptor, False)
    gc.set_threshold(_GARBAGE, 20, 100)
    # A Ctrl-C is not sent here, so that one is of what is examined. A function, since processes that are
    # started from here would go on to ignore the signal.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    link = Connection(descriptor)
    starter = _STARTER = _Starter(link)
    threading.Thread(target=_guard, args=(starter, os.getppid()), daemon=True).start()
    while True:
        try:
            task = link.recv()
        except EOFError:
            os._exit(0)
        except OSError:  # a task has closed the connection
            os._exit(1)
        except Exception as error:  # the function is of a module that cannot be imported here
            answer: Any = _raised(error)
        else:
            answer = _carry_out(task)
        with suppress(Exception):  # which an adapter may have closed or replaced
            sys.stdout.flush()  # what it printed: the process ends without doing so
        try:
            starter.send(answer)
        except OSError:  # as above; the interpreter's own end could wait for a task's threads
            os._exit(1)


def _carry_out(task: Task) -> Any:
    try:
        return task.carry_out()
    except Exception as error:
        return _raised(error)
    except BaseException as error:  # of an adapter, outside of its calls: nobody else raises one here
        return Lost(f"the code that was run raised {type(error).__name__}: {error}")


def _raised(error: Exception) -> Raised:
    """Return an error packed with its traceback, which pickle drops."""
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(text)
        is_known = type(error).__module__.partition(".")[0] in _KNOWN
        if is_known and type(pickle.loads(pickle.dumps(error))) is type(error):
            return Raised(error)
    except Exception:  # an error class may be written so that it cannot be made again
        pass
    return Raised(RuntimeError(text))


def _guard(starter: _Starter, process: int) -> None:
    """End this process if its starter is gone, or a call outlasts its alarm."""
    looks = 0  # since a call was overdue: clocks also count time in which the whole process was stopped
    with open(os.devnull, "w") as nowhere:
        while os.getppid() == process:
            call = call_in_progress()
            looks = looks + 1 if call is not None and call.seconds_left < 0 else 0
            if call is not None and looks * _TICK > _GRACE and starter.lock.acquire(timeout=_TICK):
                starter.send_last(Lost(call.describe_hang(), call.program()))
                break
            faulthandler.cancel_dump_traceback_later()
            if call is not None:
                # Native code that lets no thread run stops this one, too; then nobody puts off the end.
                left = max(call.seconds_left, 0) + _STUCK
                faulthandler.dump_traceback_later(left, exit=True, file=nowhere)
            time.sleep(_TICK)
        os._exit(1)


_LOOK = 1.0  # Seconds after which to look for processes that died and left their connection to others.

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Workers:
    """A pool of processes that persists between calls of `map`; with 0 jobs, this process does the work.

    Processes of our own and not an executor's. Measured with workers that die, are killed, hang in native
    code, and print: joblib and loky 3.7 lose tasks of others with a death. pebble 5.2 loses none, but it left
    what was printed in the results, and neither has the program of a call that hangs nor takes a word before
    the answer. All that callers know is `map`; what spreads work over machines can stand behind it. A call of
    an adapter takes ``seconds`` at most. ``interruption`` ended the work early; ``hear`` takes what a
    function tells before its answer (`pymllm.work.workers.tell`).
    """

    def __init__(self, jobs: int, seconds: float = 0.0) -> None:
        self.jobs = jobs
        self.interruption: KeyboardInterrupt | None = None
        self.hear: Callable[[Any], None] = lambda word: None
        self._seconds = seconds
        self._idle: list[WorkerProcess] = []
        self._busy: dict[Connection, tuple[WorkerProcess, int]] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(at_once=error is not None)

    def map(
        self,
        function: Callable[[Item], Answer],
        items: Sequence[Item],
        done: Callable[[int], None] | None = None,
        keep: Callable[[Item, Answer | Lost], None] | None = None,
    ) -> list[Answer | Lost]:
        """Call a function for each item, started in order; ``done`` receives the number done.

        It is called when an answer comes, and every second or so while none does. ``keep`` takes each item
        and its answer as soon as that comes.

        The function is of a module, so that another process finds it. Answers are in the order of the items;
        `Lost` where the process that had the item died, or `INTERRUPTED` where an interrupt, which is kept in
        `interruption`, came first.
        """
        answers: list[Any] = [INTERRUPTED] * len(items)
        if self.interruption is not None:
            return answers
        try:
            count = 0
            tick = None if done is None else lambda: done(count)
            for place, answer in self._answer(function, items, tick):
                answers[place] = answer
                if keep is not None:
                    keep(items[place], answer)
                count += 1
                if tick is not None:
                    tick()
        except KeyboardInterrupt as interruption:
            self.give_up(interruption)
        return answers

    def stream(
        self,
        function: Callable[[Item], Answer],
        items: Iterable[Item],
        tick: Callable[[], None] | None = None,
    ) -> Iterator[tuple[Item, Answer | Lost]]:
        """Call a function for items, perhaps endless, taking each only when a worker is free.

        Yields an item and its answer, in the order in which they end. ``tick`` is called every second or so
        while others work. After an interrupt, which is kept in `interruption`, there is nothing more.
        """
        taken: dict[int, Item] = {}

        def take() -> Iterator[Item]:
            for place, item in enumerate(items):
                taken[place] = item
                yield item

        try:
            for place, answer in self._answer(function, take(), tick):
                yield taken.pop(place), answer
        except KeyboardInterrupt as interruption:
            self.give_up(interruption)

    def _answer(
        self, function: Callable[[Any], Any], items: Iterable[Any], tick: Callable[[], None] | None = None
    ) -> Iterator[tuple[int, Any]]:
        tasks = (Task(function, item, self._seconds) for item in items)
        answered = self._answer_beside(tasks, tick) if self.jobs else _answer_here(tasks)
        for place, answer in answered:
            if isinstance(answer, Raised):
                raise answer.error
            yield place, answer

    def give_up(self, interruption: KeyboardInterrupt) -> None:
        """End all running calls; no more results will arrive."""
        self.interruption = interruption
        self._end(at_once=True)

    def _answer_beside(
        self, tasks: Iterable[Task], tick: Callable[[], None] | None
    ) -> Iterator[tuple[int, Any]]:
        waiting = enumerate(tasks)
        while True:
            for place, task in itertools.islice(waiting, self.jobs - len(self._busy)):
                worker = self._idle.pop() if self._idle else WorkerProcess()
                self._busy[worker.link] = worker, place
                worker.send(task)
            if not self._busy:
                return
            ready: list[Any] = wait(list(self._busy), _LOOK)
            if not ready:
                ready = [link for link, (worker, _) in self._busy.items() if not worker.is_alive]
                if tick is not None:
                    tick()
            for link in ready:
                worker, place = self._busy[link]
                answer = worker.receive()
                if isinstance(answer, Told):
                    self.hear(answer.word)
                    continue
                del self._busy[link]
                if not isinstance(answer, Lost):
                    self._idle.append(worker)
                yield place, answer

    def _end(self, *, at_once: bool) -> None:
        workers = [*self._idle, *(worker for worker, _ in self._busy.values())]
        self._idle, self._busy = [], {}
        for worker in workers:
            worker.link.close()  # all at once, so that none waits for another
        for worker in workers:
            worker.end(at_once=at_once)


def _answer_here(tasks: Iterable[Task]) -> Iterator[tuple[int, Any]]:
    for place, task in enumerate(tasks):
        with redirect_stdout(sys.stderr):  # what an adapter prints is no result
            answer = task.carry_out()
        yield place, answer


def ask(
    function: Callable[[Item], Answer],
    item: Item,
    seconds: float = 0.0,
    hear: Callable[[Any], None] | None = None,
    tick: Callable[[], None] | None = None,
) -> Answer | Lost:
    """Call a function for one item in a separate process; a pending interrupt is raised first."""
    with Workers(1, seconds) as workers:
        workers.hear = hear or workers.hear
        (answer,) = workers.map(function, [item], None if tick is None else lambda done: tick())
    if workers.interruption is not None:
        raise workers.interruption
    return answer
