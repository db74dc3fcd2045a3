"""Carrying functions out over many items, here or in processes beside this one."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeVar

from pymllm.conformance.worker_process import Lost, Raised, Task, WorkerProcess

__all__ = ["Lost", "Workers"]

_LOOK = 1.0  # Seconds after which to look for processes that died and left their connection to others.

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Workers:
    """A number of processes that stay between two calls of `map`; with one job, this process.

    Parameters
    ----------
    jobs : int
        At least 1.
    seconds : float
        Most for one call of an adapter, as of `pymllm.conformance.time_limit`; 0 for no limit.

    Attributes
    ----------
    interruption : KeyboardInterrupt or None
        What ended the work early.

    Notes
    -----
    Processes of our own and not an executor's: one that dies or hangs must not take the others along, and
    is replaced. All that callers know is `map`; what spreads work over machines can stand behind it.
    """

    def __init__(self, jobs: int, seconds: float = 0.0) -> None:
        self.jobs = jobs
        self.interruption: KeyboardInterrupt | None = None
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
    ) -> list[Answer | Lost]:
        """Call a function with each item.

        Parameters
        ----------
        function : callable
            Of a module, so that another process finds it.
        items : sequence
            Begun in this order.
        done : callable, optional
            Takes the number of items done so far, after each.

        Returns
        -------
        list
            In the order of the items; `Lost` where the process that had the item died, or where an
            interrupt, which is kept in `interruption`, came first.
        """
        answers: list[Any] = [Lost("interrupted before its end")] * len(items)
        if self.interruption is not None:
            return answers
        tasks = [Task(function, item, self._seconds) for item in items]
        answered = self._answer_beside(tasks) if self.jobs > 1 else _answer_here(tasks)
        try:
            for count, (place, answer) in enumerate(answered, 1):
                if isinstance(answer, Raised):
                    raise answer.error
                answers[place] = answer
                if done is not None:
                    done(count)
        except KeyboardInterrupt as interruption:
            self.interruption = interruption
            self._end(at_once=True)
        return answers

    def _answer_beside(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        waiting = deque(enumerate(tasks))
        while waiting or self._busy:
            while waiting and len(self._busy) < self.jobs:
                place, task = waiting.popleft()
                worker = self._idle.pop() if self._idle else WorkerProcess()
                self._busy[worker.link] = worker, place
                worker.send(task)
            ready: list[Any] = wait(list(self._busy), _LOOK) or [
                link for link, (worker, _) in self._busy.items() if not worker.is_alive
            ]
            for link in ready:
                worker, place = self._busy.pop(link)
                answer = worker.receive()
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


def _answer_here(tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
    for place, task in enumerate(tasks):
        with redirect_stdout(sys.stderr):  # what an adapter prints is no result
            answer = task.carry_out()
        yield place, answer
