"""Requests that have not arrived yet, and arrive at a time or after other requests have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush

from pymllm.errors import UsageError
from pymllm.workloads.request import Request
from pymllm.workloads.source import Source


class Arrivals:
    """The queue between a source and an engine, which gives each request when it is due.

    The source is asked for one request at a time: the next one only once that before it has arrived, or is
    known to wait for others.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._is_closed = False
        self._coming: Request | None = None  # by the clock
        self._due: list[tuple[float, int, Request]] = []  # what they waited for has ended
        self._ended: dict[int, float] = {}
        self._missing: dict[int, int] = {}  # how many a request still waits for
        self._waiting: defaultdict[int, list[Request]] = defaultdict(list)  # by whom they wait for

    def next_ms(self) -> float | None:
        """Return when the next request arrives if no request ends before; ``None`` if there is none."""
        self._pull()
        times = [] if self._coming is None else [self._coming.arrival_ms]
        if self._due:
            times.append(self._due[0][0])
        return min(times, default=None)

    def take(self, now_ms: float) -> Iterator[Request]:
        """Yield the requests that have arrived by now, in order; requests may end during the iteration."""
        while True:
            due_ms = self._due[0][0] if self._due else None
            coming = self._coming
            if (
                coming is not None
                and coming.arrival_ms <= now_ms
                and (due_ms is None or coming.arrival_ms <= due_ms)
            ):
                yield coming
                self._coming = None
                self._pull()
            elif due_ms is not None and due_ms <= now_ms:
                yield heappop(self._due)[2]
            else:
                return

    def end(self, request: Request, now_ms: float) -> None:
        """Record that a request has ended, which makes requests due that waited only for it."""
        id = request.request_id
        self._ended[id] = now_ms
        for child in self._waiting.pop(id, ()):
            self._missing[child.request_id] -= 1
            if not self._missing[child.request_id]:
                del self._missing[child.request_id]
                self._make_due(child)

    def close(self) -> None:
        """Drop all requests that have not arrived, and stop reading the source."""
        self._is_closed, self._coming = True, None
        self._due.clear()
        self._missing.clear()
        self._waiting.clear()

    def demand_nobody_waits(self) -> None:
        """Raise an error if requests still wait for a request that never came."""
        for other, children in self._waiting.items():
            raise UsageError(
                f"request {children[0].request_id} waits for request {other}, which never came; "
                "a workload has it before those that wait for it"
            )

    def _pull(self) -> None:
        while self._coming is None and not self._is_closed:
            request = self._source.next_request()
            if request is None:
                return
            if not request.wait_for:
                self._coming = request
                return
            missing = {other for other in request.wait_for if other not in self._ended}
            if not missing:
                self._make_due(request)
                continue
            self._missing[request.request_id] = len(missing)
            for other in missing:
                self._waiting[other].append(request)

    def _make_due(self, request: Request) -> None:
        ended = max(self._ended[other] for other in request.wait_for)
        delay = request.delay_ms
        due = max(ended, request.arrival_ms) if delay is None else ended + delay
        heappush(self._due, (due, request.request_id, request))
