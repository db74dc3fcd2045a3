"""Carrying functions out over many items, in processes beside this one.

Not even a single job is done in this one: what is examined may end the process that it runs in, and one that
is gone has no verdict. Only somebody's own tests ask for no process at all, where a patch, a debugger and
coverage are to see what happens.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeVar

from pymllm.conformance.worker_process import Lost, Raised, Task, Told, WorkerProcess

_LOOK = 1.0  # Seconds after which to look for processes that died and left their connection to others.

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Workers:
    """A number of processes that stay between two calls of `map`; with 0 jobs all is done in this process.

    Processes of our own and not an executor's: one that dies or hangs must not take the others along, and is
    replaced. All that callers know is `map`; what spreads work over machines can stand behind it. A call of
    an adapter takes ``seconds`` at most. ``interruption`` ended the work early; ``hear`` takes what a
    function tells before its answer (`pymllm.conformance.worker_process.tell`).
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
    ) -> list[Answer | Lost]:
        """Call a function with each item, begun in this order; ``done`` takes the number done so far.

        The function is of a module, so that another process finds it. Answers are in the order of the items;
        `Lost` where the process that had the item died, or where an interrupt, which is kept in
        `interruption`, came first.
        """
        answers: list[Any] = [Lost("interrupted before its end")] * len(items)
        if self.interruption is not None:
            return answers
        try:
            for count, (place, answer) in enumerate(self._answer(function, items), 1):
                answers[place] = answer
                if done is not None:
                    done(count)
        except KeyboardInterrupt as interruption:
            self._give_up(interruption)
        return answers

    def stream(
        self,
        function: Callable[[Item], Answer],
        items: Iterable[Item],
        tick: Callable[[], None] | None = None,
    ) -> Iterator[tuple[Item, Answer | Lost]]:
        """Call a function with items that may never end, each taken only when somebody is free for it.

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
            self._give_up(interruption)

    def _answer(
        self, function: Callable[[Any], Any], items: Iterable[Any], tick: Callable[[], None] | None = None
    ) -> Iterator[tuple[int, Any]]:
        tasks = (Task(function, item, self._seconds) for item in items)
        answered = self._answer_beside(tasks, tick) if self.jobs else _answer_here(tasks)
        for place, answer in answered:
            if isinstance(answer, Raised):
                raise answer.error
            yield place, answer

    def _give_up(self, interruption: KeyboardInterrupt) -> None:
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
            ready: list[Any] = wait(list(self._busy), _LOOK) or [
                link for link, (worker, _) in self._busy.items() if not worker.is_alive
            ]
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
) -> Answer | Lost:
    """Call a function with one item in a process of its own; raises an interrupt that came first."""
    with Workers(1, seconds) as workers:
        workers.hear = hear or workers.hear
        (answer,) = workers.map(function, [item])
    if workers.interruption is not None:
        raise workers.interruption
    return answer
