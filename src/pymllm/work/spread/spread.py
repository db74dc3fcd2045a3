"""The submission of shards to an engine until each is played or given up.

The engine may lose what it was given: a worker, a node, a pool of processes as a whole. That costs the shard
one of its attempts, and is no verdict. What was lost waits a while, so that the engine notices what is gone,
and then goes behind the others. Where an engine breaks as a whole, nobody knows which shard did it: each
one's last attempt is made alone, so that it takes none with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from pymllm.text_file import cut
from pymllm.work.spread.engines import Engine
from pymllm.work.spread.shard_task import PlayedShard, ShardTask, play_shard

RETRIES = 3
_LOOK = 1.0  # seconds between two looks, where nothing arrives
_PAUSE = 1.0  # seconds before the first retry; each further one waits twice as long


@dataclass(slots=True)
class Progress:
    """The progress of a list of tasks, over all nodes."""

    shards: int
    done: int = 0
    running: int = 0  # given to the engine; where it has a queue of its own, they may wait there
    retried: int = 0  # attempts after the first
    again: set[int] = field(default_factory=set)  # shards that had one
    unit: str = "operations"
    amount: int = 0  # amount of that unit, failures: of the shards that are done
    failures: int = 0
    resumed: int = 0  # results that an earlier attempt had left on its node
    workers: int | None = None  # how many shards the engine plays at once, if it tells
    # by number: why a shard was given up; those of the others' last attempt that was lost
    lost: dict[int, str] = field(default_factory=dict)
    trouble: str = ""  # what happened last

    @property
    def waiting(self) -> int:
        """The number of shards not yet played."""
        return self.shards - self.done - self.running - len(self.lost)


@dataclass(slots=True)
class _Attempt:
    task: ShardTask
    count: int = 1
    due: float = 0.0
    is_alone: bool = False


Keeper = Callable[[PlayedShard], str | None]
"""A function that stores a returned shard and returns why it is not the expected one, if so."""


class Spread:
    """The distribution of a list's shards to an engine.

    Parameters
    ----------
    engine
        Plays them.
    keep
        Takes each shard that came back.
    progress
        Told on; ``keep`` counts what it knows there.
    retries
        Attempts of a shard after its first.
    stops_on_failure
        Whether no shard begins after one that broke a law.
    show
        Called now and then, and whenever something happened.
    pause
        Seconds before the first retry.
    """

    def __init__(
        self,
        engine: Engine,
        keep: Keeper,
        progress: Progress,
        *,
        retries: int = RETRIES,
        stops_on_failure: bool = False,
        show: Callable[[Progress], None] = lambda progress: None,
        pause: float = _PAUSE,
    ) -> None:
        self.progress = progress
        self.interruption: KeyboardInterrupt | None = None
        self._engine, self._keep, self._show = engine, keep, show
        self._retries, self._stops, self._pause = retries, stops_on_failure, pause
        self._waiting: deque[_Attempt] = deque()
        self._given: dict[Future[PlayedShard], tuple[_Attempt, Executor]] = {}
        self._arrived: SimpleQueue[Future[PlayedShard]] = SimpleQueue()
        self._is_over = False

    def play(self, tasks: Iterable[ShardTask]) -> None:
        """Play all shards; an interrupt, stored in `interruption`, keeps the results so far."""
        self._waiting.extend(map(_Attempt, tasks))
        try:
            while self._waiting or self._given:
                self._give()
                self._tell()
                with suppress(Empty):
                    self._take(self._arrived.get(timeout=_LOOK))
            self._tell()
        except KeyboardInterrupt as interruption:
            self.interruption = interruption
            self._keep_arrived()

    def _tell(self) -> None:
        self.progress.running, self.progress.workers = len(self._given), self._engine.workers
        self._show(self.progress)

    # -- out -----------------------------------------------------------------------------------------------

    def _give(self) -> None:
        """Submit as many shards as the engine plays at once, so that others can still be cancelled."""
        room = self._engine.room
        for _ in range(len(self._waiting)):
            if room is not None and len(self._given) >= room:
                return
            if any(attempt.is_alone for attempt, _ in self._given.values()):
                return
            attempt = self._waiting.popleft()
            if attempt.due > time.monotonic() or (attempt.is_alone and self._given):
                self._waiting.append(attempt)
                continue
            self._submit(attempt)

    def _submit(self, attempt: _Attempt) -> None:
        executor = self._engine.executor
        try:
            future: Any = executor.submit(play_shard, attempt.task)
            if not isinstance(future, Future):
                raise TypeError(f"the executor gave {type(future).__name__} instead of a future")
        except (Exception, SystemExit) as error:  # whatever an engine raises that is not there any more
            self._lose(attempt, executor, error)
            return
        self._given[future] = attempt, executor
        future.add_done_callback(self._arrived.put)

    # -- back ----------------------------------------------------------------------------------------------

    def _take(self, future: Future[PlayedShard]) -> None:
        attempt, executor = self._given.pop(future)
        try:
            played = future.result()
        except CancelledError:
            if not self._is_over:  # the engine gave it up by itself
                self._lose(attempt, executor, RuntimeError("the engine cancelled it"))
        except (Exception, SystemExit) as error:  # the latter of a worker that ends itself
            self._lose(attempt, executor, error)
        else:
            self._judge(attempt, played)

    def _judge(self, attempt: _Attempt, played: Any) -> None:
        reason = _why_no_answer(attempt.task, played)
        if reason is None and (why := self._keep(played)) is not None:
            reason = f"{played.host}: {why}"
        if reason is not None:
            self._again(attempt, reason)
            return
        self.progress.done += 1
        if self._stops and self.progress.failures and not self._is_over:
            self._is_over = True
            self._waiting.clear()
            for future in self._given:
                future.cancel()  # which those that have begun do not obey

    def _lose(self, attempt: _Attempt, executor: Executor, error: BaseException) -> None:
        text = cut(" ".join(str(error).split()) or "no reason given", 200)
        broken = isinstance(error, BrokenExecutor)
        if broken and executor is self._engine.executor:  # its other shards fail with it
            self._engine.restart()
        self._again(attempt, f"{type(error).__name__}: {text}", is_alone=broken)

    def _again(self, attempt: _Attempt, reason: str, *, is_alone: bool = False) -> None:
        number = attempt.task.number
        self.progress.trouble = f"shard {attempt.task.name}: {reason}"
        if self._is_over:
            return
        if attempt.count > self._retries:
            attempts = f"{attempt.count} attempts" if attempt.count > 1 else "1 attempt"
            self.progress.lost[number] = f"given up after {attempts}; the last one: {reason}"
            return
        self.progress.retried += 1
        self.progress.again.add(number)
        due = time.monotonic() + self._pause * 2 ** (attempt.count - 1)
        is_last = attempt.count == self._retries
        self._waiting.append(_Attempt(attempt.task, attempt.count + 1, due, is_alone and is_last))

    def _keep_arrived(self) -> None:
        """Store results that have arrived but were not yet taken."""
        with suppress(Empty):
            while True:
                future = self._arrived.get_nowait()
                if future.cancelled() or future.exception() is not None:
                    continue
                (attempt, _), played = self._given[future], future.result()
                if _why_no_answer(attempt.task, played) is None:
                    self.progress.done += self._keep(played) is None


def _why_no_answer(task: ShardTask, found: Any) -> str | None:
    """Return the reason why an executor's result does not belong to a task, as it may be forged."""
    if not isinstance(found, PlayedShard):
        return f"the executor gave {type(found).__name__} instead of a shard's answer"
    if found.number != task.number:
        return f"the executor gave the answer of shard {cut(repr(found.number))}"
    return None
