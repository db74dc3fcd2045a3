"""The adapter of `DynamicInferenceContext`, with a forward pass that computes exact values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from msgspec import structs

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.adapters.exact_forward import ExactForward, read_rows
from pymllm.adapters.failing_calls import FAILING_CALLS, FailingCalls
from pymllm.adapters.kept_events import take_events
from pymllm.adapters.malformed import Calls, call_malformed
from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch, RequestStep
from pymllm.core.inference.contexts.registered_blocks import PrefixCachingEvictionPolicy
from pymllm.errors import ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm.invariants.blocks import check_dynamic_context
from pymllm.mem_cache.base_prefix_cache import hash_token_ids

_SHORT: Config = {
    **{"max_requests": 5, "num_blocks": 13, "max_blocks": 7, "paused_limit": 6, "block_size": 4},
    **{"chunk_size": 2, "layers": 2, "conv_width": 2, "ssm_width": 2},
    **{"mamba_slots": 3, "policy": "lru", "hash_digits": None},
}
_LONG_BLOCK = 256  # tokens
_LONG: Config = {**_SHORT, "block_size": _LONG_BLOCK, "chunk_size": 128}


@dataclass(eq=False)
class Prompted:
    """A request in the form of a context, with the state that the adapter tracks."""

    prompt_tokens: Sequence[int]
    step: int = 0
    finished_chunk_token_count: int = 0
    # The live state before each token behind the prompt, which a forward pass with drafts has to keep
    lives: dict[int, tuple[int, ...]] = field(default_factory=dict)


def _new() -> Prompted:
    return Prompted([1, 2])


def _spoiled(**attributes: Any) -> Prompted:
    request = _new()
    for name, value in attributes.items():
        setattr(request, name, value)
    return request


MALFORMED_CALLS: Calls = {
    ("add_request", "no tokens"): lambda it: it.add_request(_spoiled(prompt_tokens=[])),
    ("add_request", "a float token"): lambda it: it.add_request(_spoiled(prompt_tokens=[1.5])),
    ("add_request", "a negative token"): lambda it: it.add_request(_spoiled(prompt_tokens=[-1])),
    ("add_request", "pairs of tokens"): lambda it: it.add_request(_spoiled(prompt_tokens=[(1, 2)])),
    ("add_request", "a batch of one"): lambda it: it.add_request(
        _spoiled(prompt_tokens=torch.ones((1, 2), dtype=torch.int64))
    ),
    ("add_request", "a prompt begun elsewhere"): lambda it: it.add_request(
        _spoiled(finished_chunk_token_count=1)
    ),
    ("add_request", "a limit of nothing"): lambda it: it.add_request(_new(), 0),
    ("add_request", "a float limit"): lambda it: it.add_request(_new(), 1.0),
    ("schedule_chunk", "a stranger"): lambda it: it.schedule_chunk(_new()),
    ("pause", "a stranger"): lambda it: it.pause(_new()),
    ("resume", "a stranger"): lambda it: it.resume(_new()),
    ("release", "a stranger"): lambda it: it.release(_new()),
    ("truncate", "a stranger"): lambda it: it.truncate(_new(), 2, 1),
    ("commit_step", "no step"): lambda it: it.commit_step([]),
    ("abort_step", "no step"): lambda it: it.abort_step(),
}
"""Calls that no caller may make, by operation and mistake."""


class Requests(BaseAdapter):
    """The adapter of a `DynamicInferenceContext` with few blocks, so that evictions are frequent.

    Configurations are as of `pymllm.oracle.models.request_model.RequestModel`; ``device`` may name a GPU.
    """

    KIND = "requests"
    CONTEXT: ClassVar[type[DynamicInferenceContext]] = DynamicInferenceContext
    """The adapted class, which a variant replaces."""
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        _SHORT,
        {**_SHORT, "mamba_slots": 1, "policy": "ref_zero"},
        {**_SHORT, "mamba_slots": 64, "hash_digits": 2},
        {**_SHORT, "layers": 0, "mamba_slots": 0, "hash_digits": 2},
        {**_SHORT, "mamba_slots": 0, "caching": False},
        {**_SHORT, "chunk_size": 128, "num_blocks": 55, "max_blocks": 40, "paused_limit": 42},
        {**_LONG, "mamba_slots": 1},
        {**_LONG, "mamba_slots": 64, "policy": "ref_zero", "hash_digits": 1},
        {**_LONG, "chunk_size": 2},
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.context = self.make_context()
        self.forward = ExactForward(self.context)
        self.calls = FailingCalls(self.context)
        self._requests: dict[int, Prompted] = {}
        self._transfers: dict[int, int] = {}
        self._runs: tuple[out.RequestRun, ...] = ()
        self._is_touched = True
        self.context.keep_events()
        self._observe()

    def make_context(self) -> DynamicInferenceContext:
        """Build the adapted context."""
        digits = self.config.get("hash_digits")
        states: dict[str, Any] = {
            "mamba_slots": self.number("mamba_slots"),
            "num_mamba_layers": self.number("layers"),
            "mamba_chunk_size": self.number("chunk_size"),
            "conv_states_shape": (self.number("conv_width"),),
            "ssm_states_shape": (1, self.number("ssm_width")),
            "conv_states_dtype": torch.bfloat16,
            "ssm_states_dtype": torch.float32,
        }
        return self.CONTEXT(
            max_requests=self.number("max_requests"),
            num_blocks=self.number("num_blocks"),
            max_blocks_per_request=self.number("max_blocks"),
            block_size_tokens=self.number("block_size"),
            prefix_caching_eviction_policy=PrefixCachingEvictionPolicy(str(self.config.get("policy"))),
            enable_prefix_caching=self.config.get("caching") is not False,
            paused_limit=self.number("paused_limit"),
            hash_page=_weak_hash(digits) if isinstance(digits, int) else None,
            device=str(self.config.get("device", "cpu")),
            **(states if self.number("layers") else {}),
        )

    def _observe(self) -> None:
        """Record the calls that the block allocator makes to its observer."""
        blocks = self.context.kv_block_allocator
        inner = blocks.on_blocks_deregistered

        def record(ids: list[int], hashes: set[int]) -> None:
            self.effects.append(out.Effect("callback", tuple(int(block) for block in ids)))
            if inner is not None:
                inner(ids, hashes)

        blocks.on_blocks_deregistered = record

    def claim(self) -> frozenset[str]:
        """Return all claims about requests, with ``mamba`` if states are cached.

        An engine decodes token by token, so it gets nowhere with long blocks.
        """
        has_states = self.number("layers") and self.number("mamba_slots")
        claimed = {"pool", "forms", "refusals", "capacity_errors", "faults", "inspect"}
        claimed |= {"reserve", "truncate", "transfers", "events"}
        claimed |= {"engine"} if self.number("block_size") < _LONG_BLOCK else set()
        return frozenset(claimed | ({"mamba"} if has_states else set()))

    def sizes(self) -> dict[str, int]:
        """Return the counts of blocks, of requests by region, and of any free slots."""
        context, slots = self.context, self.context.mamba_slot_allocator
        sizes = {
            "pool_avail": int(context.kv_block_allocator.pool_avail),
            "evictable_blocks": context.kv_block_allocator.evictable_blocks,
            "request_count": len(context.requests),
            "paused_request_count": context.paused_request_count,
            "decode_req_count": context.batch_dimensions.decode_req_count,
            "prefill_req_count": context.batch_dimensions.prefill_req_count,
        }
        return sizes if slots is None else sizes | {"free_count": slots.free_count}

    def audit(self) -> Sequence[str]:
        """Check rows, references, hashes and slots, unless the last operation only read."""
        if not self._is_touched:
            return ()
        check_dynamic_context(self.context)
        states = ("C2", "C4", "C6") if self.context.mamba_slot_allocator is not None else ()
        return ("C1", "C3", *states, "E2", "E3")

    def apply(self, step: int, operation: ops.Operation) -> out.Outcome:
        """Carry out an operation, and then forget the faults armed for it."""
        outcome = super().apply(step, operation)
        self._is_touched = not isinstance(operation, ops.Inspect | ops.Fault)
        if not isinstance(operation, ops.Fault):
            self.calls.disarm()
            self.forward.fails_at = 0
        return outcome

    # -- requests ------------------------------------------------------------------------------------------

    def do_add_request(self, step: int, operation: ops.AddRequest) -> out.Result:
        request = Prompted(operation.tokens, step)
        if not self.context.add_request(request, operation.limit, reserve=operation.reserve):
            return out.NoRoom()
        self._requests[step] = request
        return self._view(request)

    def do_schedule_chunk(self, step: int, operation: ops.ScheduleChunk) -> out.Result:
        request = self._find(operation.request)
        return self._view(request) if self.context.schedule_chunk(request, operation.limit) else out.NoRoom()

    def do_pause(self, step: int, operation: ops.Pause) -> out.Result:
        return out.Done() if self.context.pause(self._find(operation.request)) else out.NoRoom()

    def do_resume(self, step: int, operation: ops.Resume) -> out.Result:
        self.context.resume(self._find(operation.request))
        return out.Done()

    def do_truncate(self, step: int, operation: ops.Truncate) -> out.Result:
        """Cut a request, and restore the live state that it had at the new length."""
        request = self._find(operation.request)
        self.context.truncate(request, operation.tokens, operation.next_token)
        live = request.lives.get(operation.tokens)
        if live is not None:
            states = self.context.mamba_metadata.request_to_mamba_state_idx
            self.forward.write_live(int(states[self._row_of(request)]), live)
        request.lives = {at: state for at, state in request.lives.items() if at <= operation.tokens}
        return self._view(request)

    def do_release(self, step: int, operation: ops.Release) -> out.Result:
        self.context.release(self._find(operation.request))
        return out.Done()

    def do_transfer_request(self, step: int, operation: ops.TransferRequest) -> out.Result:
        self._transfers[step] = self.context.begin_transfer(self._find(operation.request))
        return out.Done()

    def do_end_transfer(self, step: int, operation: ops.EndTransfer) -> out.Result:
        if operation.transfer not in self._transfers:
            raise ProgramError(f"step {operation.transfer} began no transfer")
        self.context.end_transfer(self._transfers[operation.transfer])
        return out.Done()

    def do_take_events(self, step: int, operation: ops.TakeEvents) -> out.Result:
        return take_events(self.context)

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        """Empty the context and the KV beside it, so that later results equal those of a new one."""
        self.context.reset()
        self.forward.kv[:] = 0
        return out.Done()

    def _find(self, step: int) -> Prompted:
        if step not in self._requests:
            raise ProgramError(f"step {step} added no request")
        return self._requests[step]

    # -- steps ---------------------------------------------------------------------------------------------

    def do_run_step(self, step: int, operation: ops.RunStep) -> out.Result:
        """Run a step; an error after the step has begun becomes part of the result."""
        self._runs, error = (), ""
        known, slots = self._hashes(), self._slots()
        try:
            self.context.step(lambda batch: self._compute(batch, operation.next_tokens))
        except Exception as failure:
            if not self._runs:
                raise
            error = type(failure).__name__
        now = self._slots()
        return out.Ran(
            self._runs,
            tuple(block for block, value in enumerate(self._hashes()) if value >= 0 > known[block]),
            tuple(
                out.BlockState(block, slot)
                for block, slot in enumerate(now)
                if slot not in (-1, slots[block])
            ),
            tuple(block for block, slot in enumerate(slots) if slot >= 0 > now[block]),
            error,
        )

    def _compute(self, batch: ForwardBatch, next_tokens: Sequence[int]) -> list[int | None]:
        lives = self.forward.read_lives([step.state_idx for step in batch.requests])
        told = [
            self._tell(*each) for each in zip(batch.requests, self.forward.offsets(batch), lives, strict=True)
        ]
        for step, live in zip(batch.requests, lives, strict=True):
            if live and step.start >= len(step.req.prompt_tokens):
                step.req.lives[step.start] = live
        self._runs = tuple(told)
        try:
            self.forward.compute(batch)
        finally:
            for place, (run, step) in enumerate(zip(told, batch.requests, strict=True)):
                if place < self.forward.done:
                    read = self.forward.read_kv(run.blocks, step.start + step.tokens.size)
                    told[place] = structs.replace(run, kv=read)
            self._runs = tuple(told)
        sampling = sorted(step.req.step for step in batch.requests if step.is_sampled)
        token_of = {number: next_tokens[place % len(next_tokens)] for place, number in enumerate(sampling)}
        return [token_of.get(step.req.step) for step in batch.requests]

    def _tell(self, step: RequestStep, offsets: tuple[int, ...], live: tuple[int, ...]) -> out.RequestRun:
        size = self.context.block_size_tokens
        slots = step.kv_slots.tolist()
        # A run of slots ends with its block, even if the next block follows on.
        starts = [
            at for at, slot in enumerate(slots) if not at or slot % size == 0 or slot != slots[at - 1] + 1
        ]
        counts = [stop - at for at, stop in zip(starts, [*starts[1:], len(slots)], strict=True)]
        return out.RequestRun(
            step.req.step,
            step.row,
            step.blocks,
            step.start,
            len(slots),
            tuple((slots[at], count) for at, count in zip(starts, counts, strict=True)),
            offsets,
            step.is_sampled,
            (),
            live,
        )

    # -- looks, failures, misuse ---------------------------------------------------------------------------

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Return the view of every request, and of every block that is not free."""
        slots = self.context.mamba_slot_allocator
        states = [] if slots is None else read_rows(slots.conv_states, slots.ssm_states)
        return out.ContextView(
            tuple(self._views(dict(enumerate(self.context.requests)))),
            tuple(
                out.ContextBlock(block, references, value, slot, states[slot] if slot >= 0 else ())
                for block, (references, value, slot) in enumerate(
                    zip(self._references(), self._hashes(), self._slots(), strict=True)
                )
                if references or value >= 0 or slot >= 0
            ),
        )

    def _view(self, request: Prompted) -> out.RequestView:
        (view,) = self._views({self._row_of(request): request})
        return view

    def _row_of(self, request: Prompted) -> int:
        return next(at for at, each in enumerate(self.context.requests) if each is request)

    def _views(self, requests: Mapping[int, Prompted]) -> list[out.RequestView]:
        """Return the views of requests by row, with all device data read at once."""
        context, regions = self.context, self._regions()
        table = context.request_to_kv_block_ids.tolist()
        blocks = {row: tuple(block for block in table[row] if block >= 0) for row in requests}
        kv = iter(self.forward.read_kv(tuple(itertools.chain(*blocks.values()))))
        states = context.mamba_metadata.request_to_mamba_state_idx.tolist()
        live = self.forward.read_lives([states[row] for row in requests])
        return [
            out.RequestView(
                request.step,
                row,
                regions[row],
                blocks[row],
                request.finished_chunk_token_count,
                tuple(itertools.islice(kv, len(blocks[row]))),
                state,
            )
            for (row, request), state in zip(requests.items(), live, strict=True)
        ]

    def _regions(self) -> list[str]:
        """Return the region of each row that has a request."""
        dimensions, paused = self.context.batch_dimensions, self.context.paused_request_count
        regions = ["paused"] * paused
        regions += ["decode"] * dimensions.decode_req_count + ["prefill"] * dimensions.prefill_req_count
        return regions + ["waiting"] * (len(self.context.requests) - len(regions))

    def _references(self) -> list[int]:
        counts: list[int] = self.context.kv_block_allocator.block_ref_counts.tolist()
        return counts

    def _hashes(self) -> list[int]:
        hashes: list[int] = self.context.kv_block_allocator.block_hashes.tolist()
        return hashes

    def _slots(self) -> list[int]:
        slots = self.context.mamba_slot_allocator
        of_block: list[int] = [-1] * len(self._hashes()) if slots is None else slots.block_to_slot.tolist()
        return of_block

    def do_fault(self, step: int, operation: ops.Fault) -> out.Result:
        """Arm a fault for a call in the next operation, or in its forward pass at a request."""
        if operation.call == "forward":
            self.forward.fails_at = operation.nth
        elif operation.call in FAILING_CALLS:
            self.calls.arm(operation)
        else:
            raise UnsupportedError(f"a context has no call {operation.call!r} that could fail")
        return out.Done()

    def do_malformed(self, step: int, operation: ops.Malformed) -> out.Result:
        return call_malformed(MALFORMED_CALLS, operation, self.context)


def _weak_hash(digits: int) -> Callable[[Any, str | None], str]:
    """Return a hash function with so few hexadecimal digits that collisions are frequent."""

    def hash_page(tokens: Any, prior: str | None) -> str:
        return hash_token_ids(tokens, prior)[:digits].rjust(16, "0")

    return hash_page
