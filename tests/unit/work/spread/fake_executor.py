"""An executor that does what a test says, and none of the work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from pymllm.work.spread.engines import Engine
from pymllm.work.spread.shard_task import PlayedShard, ShardTask

Outcome = PlayedShard | BaseException | str | None
"""What becomes of an attempt; ``None``: nothing, until somebody says so."""


def task(number: int, count: int = 4) -> ShardTask:
    return ShardTask(("soak", "--seed", "1"), number, count, "c0ffee")


def played(number: int, status: int = 0, said: str = "", host: str = "node") -> PlayedShard:
    return PlayedShard(number, status, said, host)


class FakeExecutor(Executor):
    """Answers each attempt of a shard with the next of its outcomes; without any, it is played.

    ``given`` are the shards in the order in which they came, ``open`` those without an answer.
    """

    def __init__(self, outcomes: Mapping[int, Iterable[Outcome]] = {}) -> None:
        self.given: list[int] = []
        self.open: dict[int, Future[Any]] = {}
        self.most = 0  # open at once
        self.closed: list[tuple[bool, bool]] = []
        self.is_broken = False
        self._outcomes = defaultdict(list, {number: list(all) for number, all in outcomes.items()})

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_broken:
            raise BrokenExecutor("broken before")
        (asked,) = args
        future: Future[Any] = Future()
        self.given.append(asked.number)
        self.open[asked.number] = future
        self.most = max(self.most, len(self.open))
        left = self._outcomes[asked.number]
        self.answer(asked.number, left.pop(0) if left else played(asked.number))
        return future

    def answer(self, number: int, outcome: Outcome) -> None:
        """Let an attempt end."""
        if outcome is None:
            return
        future = self.open.pop(number)
        if not future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closed.append((wait, cancel_futures))


def engine_of(*executors: FakeExecutor, workers: int | None = None) -> Engine:
    """Return an engine that opens one executor after the other."""
    waiting = iter(executors)
    return Engine(lambda: next(waiting), lambda executor: workers)
