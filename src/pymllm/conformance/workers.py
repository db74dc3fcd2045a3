"""Carrying functions out over many items, here or in processes beside this one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Workers"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Workers:
    """A number of processes that stay between two calls of `map`; with one job, this process.

    Parameters
    ----------
    jobs : int
        At least 1.

    Notes
    -----
    joblib's default processes: an engine that spreads joblib's work over machines can be put below. They
    are ended where the ``with`` block is left by an exception such as Ctrl-C.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._parallel: Any = None

    def __enter__(self) -> Workers:
        if self.jobs > 1:
            from joblib import Parallel

            self._parallel = Parallel(
                n_jobs=self.jobs, backend="loky", batch_size=1, return_as="generator_unordered"
            )
            self._parallel.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._parallel is None:
            return
        from joblib.externals.loky import get_reusable_executor

        self._parallel.__exit__(kind, error, trace)
        get_reusable_executor().shutdown(wait=True, kill_workers=error is not None)

    def map(
        self,
        function: Callable[[Item], Answer],
        items: Sequence[Item],
        done: Callable[[int], None] | None = None,
    ) -> list[Answer | None]:
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
            In the order of the items; ``None`` where the process that had the item died.
        """
        answers: list[Answer | None] = [None] * len(items)
        for count, (place, answer) in enumerate(self._answers(function, items), 1):
            answers[place] = answer
            if done is not None:
                done(count)
        return answers

    def _answers(
        self, function: Callable[[Item], Answer], items: Sequence[Item]
    ) -> Iterator[tuple[int, Answer]]:
        if self._parallel is None:
            yield from (_numbered(place, function, item) for place, item in enumerate(items))
            return
        from joblib import delayed
        from joblib.externals.loky.process_executor import BrokenProcessPool

        calls = (delayed(_numbered)(place, function, item) for place, item in enumerate(items))
        try:
            with _deaf_children():
                answers = self._parallel(calls)
            yield from answers
        except BrokenProcessPool:
            return


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Let processes that are started meanwhile ignore Ctrl-C, which goes to all processes of a terminal.

    It is for this process to end them; by themselves they would each print where they were.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _numbered(place: int, function: Callable[[Item], Answer], item: Item) -> tuple[int, Answer]:
    return place, function(item)
