"""A context of requests over an adapter: each call of an engine becomes an operation that is judged.

What no operation asks, namely what a request has matched and which blocks have references, is told by the
judge's model, which has followed all that was answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pymllm.errors import CapacityError, InvariantViolation, UsageError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.config_limits import read_number
from pymllm.history.files import Header
from pymllm.machines.driven_cache import Carrier
from pymllm.oracle.models.request_model import DECODE, PREFILL, RequestModel, ServedRequest
from pymllm.workloads.block_context import ForwardBatch, RequestStep
from pymllm.workloads.engine_config import BLOCKS, EngineConfig
from pymllm.workloads.live_request import BlockRequest


class DrivenContext:
    """A context over a `Carrier` of kind ``requests``; operations name each request by its `AddRequest`.

    Tokens are numbered in the order in which they first appear, so that programs are easy to read. A step is
    one operation, so it is carried out when it begins, with the tokens that its requests are about to have.
    ``refuses`` is asked before blocks for a chunk or a step whether there are none, whatever is free.
    """

    evict_calls = evicted_blocks = evict_ns = 0  # of an adapter's evictions nobody tells

    def __init__(self, carrier: Carrier) -> None:
        self.refuses: Callable[[], bool] | None = None
        self._carrier = carrier
        self._model: RequestModel = carrier.judge.model.context
        self._numbers: dict[int, int] = {}
        self._tokens: list[int] = [0]  # by their numbers
        self._lives: dict[int, BlockRequest] = {}  # by the steps that added them
        self._steps: dict[int, int] = {}  # the last of these steps, by the request's id
        self._sampled: list[int | None] = []  # what the last step was carried out with

    # -- names -------------------------------------------------------------------------------------------
    def _number(self, token: int) -> int:
        if token not in self._numbers:
            self._numbers[token] = len(self._tokens)
            self._tokens.append(token)
        return self._numbers[token]

    def _step_of(self, req: BlockRequest) -> int:
        if req.request_id not in self._steps:
            raise UsageError(f"request {req.request_id} was never added")
        return self._steps[req.request_id]

    def _served(self, req: BlockRequest) -> ServedRequest:
        step = self._step_of(req)
        if step not in self._model.served:
            raise UsageError(f"request {req.request_id} was released")
        return self._model.served[step]

    # -- sizes -------------------------------------------------------------------------------------------
    @property
    def block_size_tokens(self) -> int:
        """Tokens per block."""
        return self._model.block_size

    @property
    def requests(self) -> list[BlockRequest]:
        """The requests in the context."""
        return [self._lives[step] for step in self._model.served]

    @property
    def total_blocks(self) -> int:
        """The number of blocks without the dummy, whose id is this number."""
        return self._model.dummy

    @property
    def free_blocks(self) -> int:
        """The number of free blocks."""
        return self._carrier.size("pool_avail")

    @property
    def cached_blocks(self) -> int:
        """The number of evictable blocks."""
        return self._carrier.size("evictable_blocks")

    def room(self) -> int:
        """Return the number of blocks that are free or evictable (law E4)."""
        return self.free_blocks + self.cached_blocks

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for a number of tokens."""
        return self._model.blocks_for(tokens)

    def cached_states(self) -> int:
        """Return the number of cached states."""
        return self._model.slots.total - self._carrier.size("free_count") if self._model.has_states else 0

    # -- requests ----------------------------------------------------------------------------------------
    def add_request(self, req: BlockRequest, limit: int | None = None, *, reserve: int | None = None) -> bool:
        """Add a request if there is room for it."""
        prompt = tuple([self._number(token) for token in req.prompt_tokens.tolist()])
        result = self._carrier.do(ops.AddRequest(prompt, limit, reserve), out.RequestView, out.NoRoom)
        if isinstance(result, out.NoRoom):
            return False
        self._steps[req.request_id] = self._carrier.steps
        self._lives[self._carrier.steps] = req
        return True

    def schedule_chunk(self, req: BlockRequest, limit: int | None = None) -> bool:
        """Give a request its next chunk if there is room for it."""
        if self.refuses is not None and self.refuses():
            return False
        operation = ops.ScheduleChunk(self._step_of(req), limit)
        return isinstance(self._carrier.do(operation, out.RequestView, out.NoRoom), out.RequestView)

    def pause(self, req: BlockRequest) -> bool:
        """Pause a request, unless paused requests would then keep too many blocks."""
        return isinstance(self._carrier.do(ops.Pause(self._step_of(req)), out.Done, out.NoRoom), out.Done)

    def resume(self, req: BlockRequest) -> None:
        """Resume a paused request."""
        self._carrier.do(ops.Resume(self._step_of(req)), out.Done)

    def release(self, req: BlockRequest) -> None:
        """Release a request and everything that it holds."""
        self._carrier.do(ops.Release(self._step_of(req)), out.Done)

    def empty(self) -> None:
        """Empty the cache."""
        self._carrier.do(ops.Reset(), out.Done)

    # -- steps -------------------------------------------------------------------------------------------
    def begin_step(self) -> ForwardBatch:
        """Carry out the whole next step; raise `CapacityError` if too few blocks are free."""
        if self.refuses is not None and self.refuses():
            raise CapacityError("no block is to be found now")
        computing = [*self._model.of(DECODE), *self._model.of(PREFILL)]
        sampling = sorted([each.step for each in computing if each.is_at_its_end])
        chosen = {step: self._lives[step].token_after(self._model.served[step].stop) for step in sampling}
        numbers = tuple([self._number(token) for token in chosen.values()])
        result = self._carrier.do(ops.RunStep(numbers or (1,)), out.Ran, out.Failed)
        if isinstance(result, out.Failed):
            if result.error.endswith("CapacityError"):
                raise CapacityError(result.message)
            raise UsageError(f"a step was refused: {result.error}: {result.message}")
        assert isinstance(result, out.Ran)
        self._sampled = [chosen.get(run.request) for run in result.requests]
        return ForwardBatch(tuple([self._step(run) for run in result.requests]))

    def _step(self, run: out.RequestRun) -> RequestStep:
        numbers = self._model.served[run.request].tokens[run.start : run.start + run.count]
        places = [slot for first, count in run.writes for slot in range(first, first + count)]
        return RequestStep(
            req=self._lives[run.request],
            row=run.row,
            state_idx=run.row,
            tokens=np.array([self._tokens[number] for number in numbers], dtype=np.uint32),
            start=run.start,
            blocks=run.blocks,
            kv_slots=np.array(places, dtype=np.int64),
            offsets=run.offsets,
            first_output=0,
            is_sampled=run.is_sampled,
        )

    def commit_step(self, next_tokens: Sequence[int | None]) -> None:
        """Check that a step's requests get the same tokens with which it was carried out (law E1)."""
        for place, (token, chosen) in enumerate(zip(next_tokens, self._sampled, strict=True)):
            if chosen is not None and token != chosen:
                raise InvariantViolation(
                    "E1",
                    f"request {place} of the step gets another next token than a cold run",
                    expected=str(chosen),
                    observed=str(token),
                )

    # -- looks -------------------------------------------------------------------------------------------
    def has_state(self, block: int) -> bool:
        """Tell whether a state is cached for a block."""
        return block in self._model.slots.slot_of

    def is_registered(self, block: int) -> bool:
        """Tell whether a block can be found by its hash."""
        return block in self._model.blocks.hash_of

    def blocks_of(self, req: BlockRequest) -> int:
        """Return the number of blocks of a request."""
        return len(self._served(req).blocks)

    def missing_blocks(self, req: BlockRequest) -> int:
        """Return the number of blocks that the remaining prompt of a request needs."""
        served = self._served(req)
        return max(0, self.blocks_for(served.prompt) - len(served.blocks))

    def scheduled_tokens(self, req: BlockRequest) -> int:
        """Return the number of tokens that a request's scheduled chunk computes; 0 without a chunk."""
        served = self._served(req)
        return served.chunk - served.skip if served.chunk else 0

    def note_hit(self, req: BlockRequest) -> None:
        """Report to a new request how many of its tokens are cached, and how many of these are recomputed."""
        served = self._served(req)
        usable = (served.prompt - 1) // self.block_size_tokens
        req.cached_tokens = min(served.matched, usable) * self.block_size_tokens
        req.resumed_tokens = served.skip

    def references_of(self, blocks: np.ndarray) -> np.ndarray:
        """Return the number of references to each of some blocks."""
        refs = self._model.blocks.refs
        return np.array([refs.get(block, 0) for block in blocks.tolist()], dtype=np.int64)

    def referenced_blocks(self) -> list[int]:
        """Return the blocks that have references."""
        return [block for block, count in self._model.blocks.refs.items() if count]

    def walk(self) -> None:
        """Do nothing, since the examiner audits the adapter."""


def driven_block_config(header: Header, *, chunk_tokens: int, decode_headroom: int) -> EngineConfig:
    """Return the configuration of an engine that fits an adapter's context, with every check on."""
    config = header.config
    size = read_number(config, "block_size")
    return EngineConfig(
        cache=BLOCKS,
        page_size=size,
        capacity=(read_number(config, "num_blocks") - 1) * size,
        track_slots=read_number(config, "mamba_slots", 0) if config.get("layers") else 0,
        mamba_chunk_size=read_number(config, "chunk_size"),
        eviction_policy=str(config.get("policy")),
        paused_capacity=read_number(config, "paused_limit", 0) * size,
        max_running=read_number(config, "max_requests"),
        max_context=read_number(config, "max_blocks") * size,
        content_check=True,
        check_every=1,
        chunk_tokens=chunk_tokens,
        decode_headroom=decode_headroom,
    ).rounded()
