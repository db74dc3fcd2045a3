"""The simulated engine over block contexts: a scheduler that decides what each step of a context computes.

An iteration is one step of the context: a token of every decoding request, and chunks of prompts. Where
blocks run out, a request is set aside with its blocks, so that the others grow; where too many blocks are
set aside, one is thrown back into the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pymllm.core.inference.contexts.forward_batch import ForwardBatch, RequestStep
from pymllm.errors import CapacityError, InvariantViolation
from pymllm.workloads.block_memory import BlockMemory, MeasuredContext, make_block_context
from pymllm.workloads.block_watch import BlockOnlooker, BlockWatch, snapshots_of
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_loop import EngineLoop
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request
from pymllm.workloads.source import Source, Stage


class BlockEngine(EngineLoop[BlockRequest]):
    """One engine over a `DynamicInferenceContext`, and one run of it. Not thread-safe. Laws: C1-C8, E1-E5.

    ``source`` is not asked of a request that is held and not admitted. A ``context``, new and of the
    configuration's sizes, is driven instead of the one that the configuration describes; ``running`` and
    ``paused`` are in the context, in order of admission and of pausing.

    Examples
    --------
    >>> from pymllm.workloads.source import RandomSource
    >>> config = EngineConfig(cache="blocks", page_size=4, capacity=256, content_check=True)
    >>> report = BlockEngine(config, RandomSource(seed=1)).run()
    >>> report.finished + report.aborted + report.rejected == report.requests == 100
    True
    """

    def __init__(
        self,
        config: EngineConfig,
        source: Source,
        *,
        progress: Callable[[int], None] | None = None,
        context: MeasuredContext | None = None,
        onlooker: BlockOnlooker | None = None,
    ) -> None:
        config = config.rounded()
        self._context = make_block_context(config) if context is None else context
        self.watch = BlockWatch(config, self._context, onlooker)
        self.memory = BlockMemory(self._context, self.watch, config.check_every)
        super().__init__(config, source, progress, self.memory, self.watch)
        self.running: list[BlockRequest] = []
        self.paused: list[BlockRequest] = []
        self._has_made_room = False

    # -- running ---------------------------------------------------------------------------------------

    def lives(self) -> list[BlockRequest]:
        """List the requests in the context, running ones first."""
        return [*self.running, *self.paused]

    def evict_everything(self) -> None:
        """Empty the cache and check that the pools own everything (law E3)."""
        self.check_quiescent()
        kv = self._context.kv_block_allocator
        blocks = kv.allocate_memory_blocks(kv.dummy_block_idx)
        if blocks is None:
            raise InvariantViolation(
                "E3", f"{kv.dummy_block_idx} blocks are free or evictable, and not given"
            )
        kv.release_memory_blocks(blocks)
        self.watch.check_emptied()

    def _check_books(self) -> None:
        """Leave it to the operations: books are walked after every n-th of them."""

    def _iterate(self) -> None:
        self._has_made_room = False
        self._resume()
        self._schedule()
        if self.running:
            self._compute()

    # -- arrivals and aborts -----------------------------------------------------------------------------

    def _receive(self, request: Request, place: int) -> BlockRequest:
        return BlockRequest(request, place)

    def _can_ever_fit(self, live: BlockRequest) -> bool:
        return live.final_length <= self.config.max_context

    def _by_stage(self) -> Sequence[tuple[Stage, list[BlockRequest]]]:
        lives = self.lives()
        return (
            (Stage.QUEUED, list(self.queue)),
            (Stage.PREFILL, [live for live in lives if not live.is_prefilled]),
            (Stage.DECODE, [live for live in lives if live.is_prefilled]),
        )

    def _abort(self, live: BlockRequest) -> None:
        self.watch.notice(Event.ABORTED, live)
        if live in self.queue:
            self._leave_queue(live)
        else:
            self._leave(live)
        self._tally.aborted += 1

    def _leave(self, live: BlockRequest) -> None:
        """Take a request out of the context."""
        (self.paused if live in self.paused else self.running).remove(live)
        self.memory.release(live)

    # -- what the next step computes -------------------------------------------------------------------

    def _schedule(self) -> None:
        """Give out the budget of prompt tokens, oldest first: to those admitted, then to new ones."""
        budget = self.config.chunk_tokens
        for live in list(self.running):
            if budget and live in self.running and not live.is_prefilled:
                budget -= self._schedule_chunk(live, budget)
        # Who was set aside comes first, and who has just made room must not take it back.
        while budget and not self.paused and not self._has_made_room:
            admitted = self._admit_next(budget)
            if admitted is None:
                break
            budget -= self._context.scheduled_tokens(admitted)

    def _schedule_chunk(self, live: BlockRequest, budget: int) -> int:
        """Give a request its next chunk; returns how many tokens, 0 where it had to make room itself."""
        limit = self._ask_for_chunk(live, min(budget, live.prompt_length - live.length))
        while not self.memory.schedule(live, limit):
            self._make_room()
            if live not in self.running:
                return 0
        return limit

    def _admit_next(self, budget: int) -> BlockRequest | None:
        """Admit the oldest waiting request, if memory suffices for it (law E4)."""
        is_full = len(self.running) == self.config.max_running
        if is_full or not self._may_ask_again():
            return None
        live = self.queue[0]
        limit = self._ask_for_chunk(live, min(budget, live.prompt_length))
        if not self.memory.add(live, limit, self._reserve()):
            self._refuse(live)
            return None
        self.watch.tested["E4"] += not self.running
        self.running.append(self.queue.popleft())
        self._tally.count_admission(live)
        self.watch.notice(Event.ADMITTED, live)
        return live

    def _reserve(self) -> int:
        """Count the blocks promised to running requests: for their prompts, and to grow for a while."""
        promised = sum(map(self._context.missing_blocks, self.running))
        return promised + sum(map(self._headroom, self.running))

    def _headroom(self, live: BlockRequest) -> int:
        """Count the blocks that a decoding request takes for its next few tokens."""
        if not live.is_prefilled:
            return 0
        grown = min(live.final_length, live.length + self.config.decode_headroom)
        return self._context.blocks_for(grown) - self._context.blocks_for(live.length)

    def _refuse(self, live: BlockRequest) -> None:
        self.watch.notice(Event.REFUSED, live)
        self._remember_refusal()
        if not self.running:
            raise InvariantViolation(
                "E4",
                f"request {live.request_id} fits and is alone, but is refused its {live.prompt_length} "
                f"tokens with {self._context.room()} blocks free or evictable",
            )

    # -- computing -------------------------------------------------------------------------------------

    def _compute(self) -> None:
        batch = self._begin()
        left = snapshots_of(batch, self.config.page_size) if self.config.track_slots else []
        self.watch.compute(batch, left)
        stops = [step.start + len(step.tokens) for step in batch.requests]
        tokens = [step.req.token_after(stop) for step, stop in zip(batch.requests, stops, strict=True)]
        self.memory.commit(batch, tokens, left)
        for step, stop in zip(batch.requests, stops, strict=True):
            self._go_on(step, stop)

    def _begin(self) -> ForwardBatch:
        size = self.config.page_size
        while True:
            growing = [live for live in self.running if live.is_prefilled and live.length % size == 0]
            try:
                return self.memory.begin(growing)
            except CapacityError:
                self._make_room()

    def _go_on(self, step: RequestStep, stop: int) -> None:
        """Take over what a step has computed of a request."""
        live: BlockRequest = step.req
        was_prefilled, live.length = live.is_prefilled, stop
        if not was_prefilled:
            self._tally.computed_tokens += len(step.tokens)
        live.is_unread = not live.is_prefilled
        if stop == live.final_length:
            self.watch.check_step(step, stop)
            self.watch.notice(Event.FINISHED, live)
            self._leave(live)
            self._tally.count_finish(live)

    # -- making room -----------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Let one request less grow: set one aside, or throw one out."""
        self._has_made_room = True
        if len(self.running) > 1:
            live = self._ask_for_victim(self.running)
            if not self._pause(live):
                self._retract(live)
        elif self.paused:
            self._retract(self._ask_for_victim(self.paused))
        else:
            raise InvariantViolation(
                "E4",
                f"request {self.running[0].request_id} is alone and fits, but cannot grow: only "
                f"{self._context.room()} blocks are free or evictable",
            )

    def _pause(self, live: BlockRequest) -> bool:
        if not self.memory.pause(live):
            return False
        self.watch.notice(Event.PAUSED, live)
        self.running.remove(live)
        self.paused.append(live)
        self._tally.pauses += 1
        return True

    def _resume(self) -> None:
        """Let those who were set aside go on, first come first served, while there is room to grow."""
        while self.paused:
            live = self.paused[0]
            needed = self._headroom(live) + self._context.missing_blocks(live)
            if self.running and self._context.room() < self._reserve() + max(1, needed):
                return
            self.memory.resume(live)
            self.watch.notice(Event.RESUMED, live)
            self.running.append(self.paused.pop(0))
            live.is_unread = True

    def _retract(self, live: BlockRequest) -> None:
        """Throw a request back into the queue; what it has produced becomes a part of its prompt."""
        self.watch.notice(Event.RETRACTED, live)
        live.keep_produced()
        self._leave(live)
        self.queue.appendleft(live)
        self._tally.retractions += 1
