"""The engine of an embedded server, on a thread that runs requests as they arrive."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pymllm.errors import UsageError
from pymllm.mem_cache.arguments import as_device
from pymllm.mem_cache.cache_events import AllCleared, CacheEvent
from pymllm.mem_cache.tree.tree_cache import TreeCache
from pymllm.serving.runner import ModelRunner, make_model_pools
from pymllm.serving.tiny_model import ARCHITECTURES, VOCABULARY, Layer, TinyModel
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage

if TYPE_CHECKING:
    from pymllm.serving.publisher import EventPublisher

TOP_LOGPROBS = 20
"""The greatest number of alternatives that a request may ask for at each token."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The model of an embedded server, and the sizes of its memory in tokens.

    ``window`` is that of the layers with a sliding window, whose own slots are ``swa_capacity``; both count
    with the architecture ``"window"`` alone, and ``track_slots``, the states that may be kept, with
    ``"hybrid"``. ``check`` counts all memory again after each step.
    """

    architecture: str = "dense"
    seed: int = 0
    page_size: int = 16
    capacity: int = 4096
    window: int = 64
    swa_capacity: int = 1024
    track_slots: int = 32
    max_running: int = 8
    max_context: int = 1024
    chunk_tokens: int = 128
    check: bool = False
    device: str = "cpu"

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the model, first to last."""
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"architecture is {self.architecture!r}; choose one of {', '.join(ARCHITECTURES)}"
            )
        return ARCHITECTURES[self.architecture]

    def for_engine(self) -> EngineConfig:
        """Return the configuration of the engine; raise `UsageError` if a size is out of bounds."""
        try:
            as_device(self.device)
            return self._sizes()
        except ValueError as error:
            raise UsageError(str(error)) from error

    def _sizes(self) -> EngineConfig:
        config = EngineConfig(
            cache="mamba" if Layer.RECURRENT in self.layers else "radix",
            page_size=self.page_size,
            capacity=self.capacity,
            max_running=self.max_running,
            max_context=self.max_context,
            chunk_tokens=self.chunk_tokens,
            check_every=int(self.check),
            device=self.device,
        )
        if Layer.WINDOW in self.layers:
            config = replace(config, sliding_window_size=self.window, swa_capacity=self.swa_capacity)
        if Layer.RECURRENT in self.layers:
            config = replace(config, track_slots=self.track_slots)
        return config.rounded()


@dataclass(frozen=True, slots=True)
class Produced:
    """A produced token with its log-probability, and the best alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a request; ``error`` is the reason if it was not finished."""

    cached_tokens: int = 0
    error: str | None = None
    is_refused: bool = False  # the request could never have run, so it is the client's fault


Told = Produced | Ended


@dataclass(slots=True, eq=False)
class Job:
    """A prompt with the number of tokens to produce; the engine's thread calls ``tell``.

    Greedy at ``temperature`` 0, otherwise drawn from ``seed`` and the place of the token alone, so that the
    company of a request has no say.
    """

    prompt: Sequence[int]
    max_tokens: int
    tell: Callable[[Told], None]
    salt: str | None = None
    temperature: float = 0.0
    seed: int = 0
    top: int = 0
    cached_tokens: int | None = field(default=None, init=False)


@dataclass(frozen=True, slots=True)
class Counters:
    """The counts of a server since its start, and its present load."""

    running: int = 0
    waiting: int = 0
    kv_in_use: float = 0.0  # share of the slots that requests hold, 0 .. 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    produced_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    preemptions: int = 0


class _JobSource:
    """The source of an engine's requests, in order of arrival, which aborts cancelled ones."""

    may_abort = True

    def __init__(self) -> None:
        self.coming: deque[Request] = deque()
        self.given_up: set[int] = set()

    def next_request(self) -> Request | None:
        return self.coming.popleft() if self.coming else None

    def abort(self, request_id: int, stage: Stage) -> bool:
        return request_id in self.given_up

    def chunk_limit(self, request_id: int, limit: int) -> int:
        return limit

    def retract_victim(self, candidates: Sequence[int]) -> int:
        return candidates[-1]


class Service:
    """A model that serves jobs on its own thread, from `start` to `close`; any thread may call it.

    ``publisher``: tells the events of the cache, each step's before the ends of its requests are told.
    An error inside the engine ends it: every job is told, and later ones are refused, with the error.
    """

    def __init__(self, config: ServerConfig, publisher: EventPublisher | None = None) -> None:
        self.config = config
        self._publisher = publisher
        self._cache: TreeCache[Any] | None = None
        self.counters = Counters()
        self.failure: str | None = None
        self._engine_config = config.for_engine()
        self._source = _JobSource()
        self._jobs: dict[int, Job] = {}
        self._made = 0
        self._resets: list[Callable[[bool], None]] = []
        self._ended: list[tuple[Job, Ended]] = []
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Make the model and its memory, and start serving."""
        self._thread.start()

    def close(self) -> None:
        """Cancel every request and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def submit(self, job: Job) -> int:
        """Add a job and return its number, for `abort`."""
        with self._changed:
            if self.failure is not None or self._is_closing:
                job.tell(Ended(error=self.failure or "the server is closing"))
                return -1
            number = self._made
            self._made += 1
            self._jobs[number] = job
            # One token is one block, so that the blocks of the engine's request are the tokens of the prompt.
            self._source.coming.append(
                Request(number, 0.0, len(job.prompt), job.max_tokens, tuple(job.prompt), 1, job.salt)
            )
            self._changed.notify()
            return number

    def abort(self, number: int) -> None:
        """Cancel a job that still runs."""
        with self._changed:
            if number in self._jobs:
                self._source.given_up.add(number)
                self._changed.notify()

    def reset(self, tell: Callable[[bool], None]) -> None:
        """Empty the cache unless requests run or wait, and return whether that was done."""
        with self._changed:
            if self.failure is not None or self._is_closing:
                tell(False)
                return
            self._resets.append(tell)
            self._changed.notify()

    # -- the engine's thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                engine = self._make_engine()
                while self._wait():
                    engine.step()
                    self._note(engine)
                    self._publish()
                    self._tell_ended()
                    self._reset(engine)
                engine.drain()
        except Exception as error:
            self._fail(f"the engine has failed: {type(error).__name__}: {error}")
        else:
            self._fail("the server is closing")

    def _make_engine(self) -> Engine:
        config = self._engine_config
        device = torch.device(self.config.device)
        model = TinyModel(self.config.layers, config.sliding_window_size, self.config.seed, device)
        pools = make_model_pools(config, model)
        if self._publisher is not None:
            cache = pools.kind.cache
            assert isinstance(cache, TreeCache)  # every architecture has one
            cache.keep_events()
            self._cache = cache
        runner = ModelRunner(model, config, pools, self._choose)
        return Engine(config, self._source, pools=pools, onlooker=self._notice, model=runner)

    def _wait(self) -> bool:
        """Wait until there is work; return False once the service closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._jobs or self._resets)
            return not self._is_closing

    def _publish(self, *more: CacheEvent) -> None:
        if self._publisher is not None and self._cache is not None:
            self._publisher.publish([*self._cache.take_events(), *more])

    def _tell_ended(self) -> None:
        """Report the requests that ended in this step, after their events were sent."""
        ended, self._ended = self._ended, []
        for job, end in ended:
            job.tell(end)

    def _note(self, engine: Engine) -> None:
        usage = engine.memory.use()
        self.counters = replace(
            self.counters,
            running=len(engine.lives()),
            waiting=len(engine.queue),
            kv_in_use=usage.held_tokens / self._engine_config.capacity,
        )

    def _reset(self, engine: Engine) -> None:
        while self._resets:
            is_idle = not self._jobs
            if is_idle:
                engine.evict_everything()
                self._note(engine)
                self._publish(AllCleared())  # whoever joins late knows from here on what is there
            with self._changed:
                tell = self._resets.pop(0)  # only now: where the engine fails on the way, it is told of that
            tell(is_idle)

    def _fail(self, reason: str) -> None:
        with self._changed:
            self.failure = reason
            jobs, self._jobs = [*self._jobs.values()], {}
            resets, self._resets = self._resets, []
            self.counters = replace(self.counters, running=0, waiting=0)
        self._tell_ended()
        for job in jobs:
            job.tell(Ended(error=reason))
        for tell in resets:
            tell(False)

    def _choose(self, live: LiveRequest, at: int, logits: torch.Tensor) -> int:
        job = self._jobs[live.request_id]
        logprobs = logits.log_softmax(-1).cpu()
        scores = logprobs
        if job.temperature > 0:
            draw = np.random.default_rng((job.seed, at)).gumbel(size=VOCABULARY)
            scores = logprobs / job.temperature + torch.from_numpy(draw)
        token = int(scores.argmax())
        best = logprobs.topk(job.top) if job.top else None
        top = () if best is None else tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        self.counters = replace(self.counters, produced_tokens=self.counters.produced_tokens + 1)
        job.tell(Produced(token, float(logprobs[token]), top))
        return token

    def _notice(self, event: Event, live: LiveRequest) -> None:
        job, counters = self._jobs[live.request_id], self.counters
        if event is Event.ADMITTED and job.cached_tokens is None:
            job.cached_tokens = live.held_length
            self.counters = replace(
                counters,
                prompt_tokens=counters.prompt_tokens + len(job.prompt),
                cached_tokens=counters.cached_tokens + live.held_length,
            )
        elif event is Event.RETRACTED:
            self.counters = replace(counters, preemptions=counters.preemptions + 1)
        elif event is Event.FINISHED:
            self.counters = replace(counters, finished=counters.finished + 1)
            self._end(live.request_id, Ended(job.cached_tokens or 0))
        elif event is Event.ABORTED:
            self.counters = replace(counters, aborted=counters.aborted + 1)
            self._end(live.request_id, Ended(job.cached_tokens or 0, "the request was given up"))
        elif event is Event.REJECTED:
            self._end(live.request_id, Ended(error=self._too_long(job), is_refused=True))

    def _too_long(self, job: Job) -> str:
        config = self._engine_config
        return (
            f"the prompt has {len(job.prompt)} tokens and max_tokens is {job.max_tokens}; together at most "
            f"{config.max_context} are possible, and they must fit into {config.capacity} slots in pages of "
            f"{config.page_size}"
        )

    def _end(self, number: int, ended: Ended) -> None:
        with self._changed:
            job = self._jobs.pop(number)
            self._source.given_up.discard(number)
        self._ended.append((job, ended))
