"""The loop of every simulated engine: virtual time, arrivals, the ends of requests, and the report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from pymllm.errors import UsageError
from pymllm.workloads.arrivals import Arrivals
from pymllm.workloads.ceiling import HitCeiling
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_report import CutShort, EngineReport, EngineTally, MemoryCounts, MemoryUse
from pymllm.workloads.engine_watch import Event, Watch
from pymllm.workloads.live_request import LiveSequence
from pymllm.workloads.request import Request
from pymllm.workloads.source import Source, Stage

Live = TypeVar("Live", bound=LiveSequence)


class LoopMemory(Protocol):
    """The interface of an engine's memory to the loop."""

    @property
    def changes(self) -> int:
        """A counter that rises whenever a refused request might be admitted."""

    def use(self) -> MemoryUse:
        """Return the memory in use now."""

    def counts(self) -> MemoryCounts:
        """Return the counts of memory operations so far."""


class EngineLoop(ABC, Generic[Live]):
    """The loop of one run of an engine, without the parts that each kind of engine adds. Not thread-safe.

    ``queue`` has the waiting requests in order of arrival, retracted ones first.
    """

    def __init__(
        self,
        config: EngineConfig,
        source: Source,
        progress: Callable[[int], None] | None,
        memory: LoopMemory,
        watch: Watch[Live],
    ) -> None:
        self.config = config
        self.queue: deque[Live] = deque()
        self._source = source
        self._progress = progress
        self._loop_memory = memory
        self._loop_watch = watch
        self._tally = EngineTally()
        self._refused_at = -1  # the memory's changes when the head of the queue was last refused
        self._ceiling = HitCeiling(config.page_size, held_back=1)
        self._arrivals = Arrivals(source)
        self._over: list[Request] = []  # those that end in this iteration
        self._now_ms = 0.0
        self._started_ms = 0.0

    # -- running ---------------------------------------------------------------------------------------

    def run(self) -> EngineReport:
        """Run to the end, check that all memory was given back, report, and then empty the cache.

        An interrupt is raised as `CutShort`, which has the report.
        """
        try:
            while self.step():
                pass
            self._arrivals.demand_nobody_waits()
        except KeyboardInterrupt as interruption:
            raise CutShort(self.report(), interruption) from interruption
        self.check_quiescent()
        report = self.report()
        self.evict_everything()
        return report

    def step(self) -> bool:
        """Run one iteration, after any jump over idle time; return False if nothing was left to do.

        A source that has another request later may be stepped on.
        """
        next_ms = self._arrivals.next_ms()
        if self._is_idle():
            if next_ms is None:
                return False
            self._now_ms = max(self._now_ms, next_ms)
        if self._tally.iterations == 0:
            self._started_ms = self._now_ms
        began, settled = perf_counter(), self._tally.settled
        self._take_arrivals()
        if self._source.may_abort:
            self._abort_where_asked()
        self._iterate()
        self._now_ms += self.config.iteration_ms
        for request in self._over:
            self._arrivals.end(request, self._now_ms)
        self._over.clear()
        self._tally.iterations += 1
        self._tally.virtual_ms = self._now_ms - self._started_ms
        self._tally.count_memory(self._loop_memory.use())
        if self.config.check_every:
            self._check_invariants()
        self._tally.wall_seconds += perf_counter() - began
        if self._progress is not None and self._tally.settled != settled:
            self._progress(self._tally.settled)
        return True

    def report(self) -> EngineReport:
        """Return the report of the run so far."""
        return self._tally.report(self.config, self._loop_memory.counts(), self._loop_watch.content_tokens)

    def drain(self) -> None:
        """Abort all waiting and live requests, and stop reading the source."""
        self._arrivals.close()
        for live in [*self.queue, *self.lives()]:
            self._abort(live)

    def check_quiescent(self) -> None:
        """Check that pools and cache own everything once no request waits or lives (laws E2, E3, E5, E6)."""
        if not self._is_idle():
            raise UsageError("requests wait or live: run or drain the engine before checking the rest")
        self._loop_watch.check_quiescent()
        self._loop_watch.check_counts(self._tally)

    @abstractmethod
    def evict_everything(self) -> None:
        """Empty the cache and check that the pools own everything (law E3)."""

    @abstractmethod
    def lives(self) -> list[Live]:
        """Return the requests that own memory, in any order."""

    def _is_idle(self) -> bool:
        return not (self.queue or self.lives())

    # -- arrivals and aborts -----------------------------------------------------------------------------

    def _take_arrivals(self) -> None:
        for request in self._arrivals.take(self._now_ms):
            self._arrive(request)

    def _arrive(self, request: Request) -> None:
        self._tally.requests += 1
        live = self._receive(request, self._tally.requests)
        if not self._can_ever_fit(live):
            self._loop_watch.notice(Event.REJECTED, live)
            self._tally.rejected += 1
            self._arrivals.end(request, self._now_ms)
            return
        live.ceiling_tokens = self._ceiling_of(request)
        self.queue.append(live)

    def _ceiling_of(self, request: Request) -> int:
        """Return how many prompt tokens an unlimited cache would hit, given all earlier requests."""
        return self._ceiling.add(request)

    def _abort_where_asked(self) -> None:
        for stage, lives in self.by_stage():
            for live in lives:
                if self._source.abort(live.request_id, stage):
                    self._abort(live)

    # -- the queue's head --------------------------------------------------------------------------------

    def _may_ask_again(self) -> bool:
        """Tell whether the first waiting request may try again: memory changed, or no request lives.

        Where others left and gave nothing back, nothing will ever change: without asking then, an engine
        never ends.
        """
        return bool(self.queue) and (self._refused_at != self._loop_memory.changes or not self.lives())

    def _remember_refusal(self) -> None:
        """Record that the present memory does not suffice for the first request in the queue."""
        self._refused_at = self._loop_memory.changes

    def _leave_queue(self, live: Live) -> None:
        """Remove a request from the queue, and forget any refusal of the first one."""
        self.queue.remove(live)
        self._refused_at = -1

    def _note_end(self, live: Live) -> None:
        """Record that a request ends in this iteration, which may let others arrive."""
        self._over.append(live.request)

    # -- the source's choices ----------------------------------------------------------------------------

    def _ask_for_chunk(self, live: Live, most: int) -> int:
        """Let the source choose how many tokens of a prompt to compute, ``1 .. most``."""
        limit = self._source.chunk_limit(live.request_id, most)
        if not 1 <= limit <= most:
            raise UsageError(f"chunk_limit gave {limit} tokens; it must be in 1..{most}")
        return limit

    def _ask_for_victim(self, lives: Iterable[Live]) -> Live:
        """Let the source choose which of some live requests to retract."""
        by_id = {live.request_id: live for live in sorted(lives, key=attrgetter("place"))}
        chosen = self._source.retract_victim(list(by_id))
        if chosen not in by_id:
            raise UsageError(f"retract_victim gave {chosen}; it must be one of {list(by_id)}")
        return by_id[chosen]

    # -- what an engine adds -----------------------------------------------------------------------------

    @abstractmethod
    def _iterate(self) -> None:
        """Run one iteration of the engine."""

    @abstractmethod
    def _receive(self, request: Request, place: int) -> Live:
        """Return the live sequence of a request that arrives."""

    @abstractmethod
    def _can_ever_fit(self, live: Live) -> bool:
        """Tell whether a request fits into an otherwise empty engine."""

    @abstractmethod
    def by_stage(self) -> Sequence[tuple[Stage, list[Live]]]:
        """Return the requests that may be aborted, with the stage of each."""

    @abstractmethod
    def _abort(self, live: Live) -> None:
        """End a request before it is finished, and count it as aborted."""

    @abstractmethod
    def _check_invariants(self) -> None:
        """Check the ownership of all memory between two iterations."""
