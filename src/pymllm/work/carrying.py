"""The execution of a list of tasks in worker processes, with results kept in a file at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from pymllm.work.kept import KeptResults
from pymllm.work.workers import Lost, Workers

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
"""A function of a label and a total that shows progress, and yields a function to report it."""


def unseen(label: str, total: int) -> AbstractContextManager[Callable[[int], None] | None]:
    """Show no progress."""
    return nullcontext()


Task = TypeVar("Task")
Answer = TypeVar("Answer")


class Carrier:
    """A runner of lists of tasks; ``taken`` counts results that the file already had."""

    def __init__(
        self, workers: Workers, progress: Progress = unseen, kept: KeptResults[Any, Any] | None = None
    ) -> None:
        self.workers = workers
        self.show = progress
        self.taken = 0
        self.kept = kept

    def carry_out(
        self, label: str, function: Callable[[Task], Answer], tasks: Sequence[Task]
    ) -> list[Answer | Lost]:
        """Call a function for each task; return the results in the order of the tasks.

        What was not done when an interrupt came has `pymllm.work.workers.INTERRUPTED` for its answer.
        """
        known = {} if self.kept is None else dict(enumerate(map(self.kept.find, tasks)))
        answers: dict[int, Any] = {place: it for place, it in known.items() if it is not None}
        left = [place for place in range(len(tasks)) if place not in answers]
        before = len(answers)
        self.taken += before
        if left:
            with self.show(label, len(tasks)) as done:
                count = None if done is None else lambda number: done(before + number)
                try:
                    if count is not None and before:
                        count(0)
                except KeyboardInterrupt as interruption:
                    self.workers.give_up(interruption)
                found = self.workers.map(function, [tasks[place] for place in left], count, self._keep)
            answers.update(zip(left, found, strict=True))
        return [answers[place] for place in range(len(tasks))]

    def _keep(self, task: Any, answer: Any) -> None:
        if self.kept is not None and not isinstance(answer, Lost):
            self.kept.keep(task, answer)
