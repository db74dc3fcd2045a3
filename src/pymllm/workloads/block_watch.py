"""What watches a block engine: contents and states as a cold run has them, books, and rest at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch, RequestStep
from pymllm.errors import InvariantViolation
from pymllm.invariants.dynamic_context import check_dynamic_context
from pymllm.workloads.block_recurrent import BlockRecurrent
from pymllm.workloads.block_request import BlockRequest
from pymllm.workloads.block_snapshots import Snapshot
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_forward import SimulatedForward
from pymllm.workloads.engine_watch import Event

__all__ = ["BlockOnlooker", "BlockWatch"]

BlockOnlooker = Callable[[Event, BlockRequest], None]
"""Who is told of events; it must not touch what it sees."""

_EXITS = frozenset({Event.RETRACTED, Event.ABORTED, Event.FINISHED})


class BlockWatch:
    """Runs a block engine's checks, and the simulated model that they need.

    Parameters
    ----------
    config : EngineConfig
        Already rounded.
    context : DynamicInferenceContext
        The engine's, empty.
    onlooker : callable, optional
        Told of every event.

    Attributes
    ----------
    forward : SimulatedForward or None
        Writes and compares KV, where the configuration asks for it.
    recurrent : BlockRecurrent or None
        The same for states.
    tested : Counter of str
        How often each law was tested and held, by its id; a test that could not have failed is not counted.
    """

    def __init__(
        self, config: EngineConfig, context: DynamicInferenceContext, onlooker: BlockOnlooker | None = None
    ) -> None:
        self.forward: SimulatedForward | None = None
        self.recurrent: BlockRecurrent | None = None
        if config.content_check:
            dummy = range(config.capacity, config.capacity + config.page_size)
            self.forward = SimulatedForward(config, None, padding=dummy)
            self.recurrent = BlockRecurrent(context)
        self.tested: Counter[str] = Counter()
        self._context = context
        self._onlooker = onlooker
        self._exits = 0

    @property
    def content_tokens(self) -> int:
        """KV rows compared so far; 0 where content is not checked."""
        return 0 if self.forward is None else self.forward.checked_tokens

    def notice(self, event: Event, live: BlockRequest) -> None:
        """Take note of an event and tell the onlooker."""
        self._exits += event in _EXITS
        if self._onlooker is not None:
            self._onlooker(event, live)

    # -- the forward pass --------------------------------------------------------------------------------

    def compute(self, batch: ForwardBatch, left: Sequence[Snapshot]) -> None:
        """Compare what the requests of a step read, and write what they compute.

        Parameters
        ----------
        batch : ForwardBatch
            Begun.
        left : sequence of Snapshot
            What the step is to leave.

        Raises
        ------
        InvariantViolation
            E1: KV, a state or a token is not what a cold run has. E2: a block that others share is written.
            E4: a request computes nothing.
        """
        if self.forward is None or self.recurrent is None or not batch.requests:
            return
        for step in batch.requests:
            self._check_plan(step)
            if step.req.is_unread:
                self.check_step(step, step.start)
        self.forward.write(
            torch.from_numpy(np.concatenate([step.kv_slots for step in batch.requests])),
            np.concatenate([_fingerprints(step) for step in batch.requests]),
        )
        self.recurrent.decode([step for step in batch.requests if step.req.is_prefilled])
        for step in batch.requests:
            if not step.req.is_prefilled:
                self.recurrent.prefill(step, [each for each in left if each.live is step.req])

    def _check_plan(self, step: RequestStep) -> None:
        live, stop = step.req, step.start + len(step.tokens)
        if not len(step.tokens):
            raise InvariantViolation("E4", f"request {live.request_id} has no token left to compute")
        if not np.array_equal(step.tokens, live.tokens[step.start : stop]):
            raise InvariantViolation(
                "E1",
                f"request {live.request_id} is to compute other tokens than its own {step.start}..{stop}",
            )
        kv, size = self._context.kv_block_allocator, self._context.block_size_tokens
        written = np.unique(step.kv_slots // size)
        written = written[written != kv.dummy_block_idx]
        shared = written[kv.block_ref_counts.numpy()[written] != 1]
        if shared.size:
            raise InvariantViolation(
                "E2",
                f"request {live.request_id} is to write blocks {shared.tolist()}, which are not its alone",
            )

    def check_step(self, step: RequestStep, length: int) -> None:
        """Read a request's first ``length`` tokens and its state back, where content is checked (law E1)."""
        if self.forward is None or self.recurrent is None:
            return
        live, size = step.req, self._context.block_size_tokens
        positions = np.arange(length)
        slots = np.array(step.blocks)[positions // size] * size + positions % size
        self.forward.check_row(live.request_id, torch.from_numpy(slots), live.fingerprints[:length])
        self.recurrent.check(live.request_id, step.state_idx, live.tokens[:length])
        self.tested["E1"] += length > 0

    # -- books -------------------------------------------------------------------------------------------

    def note_commit(self, left: Sequence[Snapshot]) -> None:
        """Compare the states that a commit has cached (law C7)."""
        if self.recurrent is not None:
            self.tested["C7"] += self.recurrent.note_commit(left)

    def note_release(self, live: BlockRequest) -> None:
        """Take note that a request is about to give back its row."""
        if self.recurrent is not None:
            row = self._context.requests.index(live)
            self.recurrent.note_release(int(self._context.mamba_metadata.request_to_mamba_state_idx[row]))

    def check_books(self) -> None:
        """Walk all invariants between two calls, and compare the states in use (laws C1 to C8, E2, E3)."""
        check_dynamic_context(self._context)
        if self.recurrent is not None:
            self.recurrent.check_untouched()
        self.tested["E2"] += len(self._context.requests) > 0
        self._count_exits()

    def check_quiescent(self) -> None:
        """Check that the pool owns everything but what is cached, now that no request lives (laws E3, E5)."""
        kv = self._context.kv_block_allocator
        held = kv.block_ref_counts.nonzero().flatten().tolist()
        if held or self._context.requests:
            raise InvariantViolation(
                "E3", f"no request lives, but {len(self._context.requests)} rows and blocks {held} are held"
            )
        if kv.pool_avail + kv.evictable_blocks != kv.dummy_block_idx:
            raise InvariantViolation(
                "E3",
                f"{kv.pool_avail} blocks are free and {kv.evictable_blocks} evictable, "
                f"{kv.pool_avail + kv.evictable_blocks} of {kv.dummy_block_idx}",
            )
        self._count_exits()
        if self.recurrent is not None:
            self.recurrent.check_untouched()
        if self.forward is not None:
            self.tested["E5"] += self.forward.unchecked_writes > 0
            self.forward.check_untouched()

    def check_emptied(self) -> None:
        """Check that the pools own everything after evicting everything (law E3)."""
        kv, slots = self._context.kv_block_allocator, self._context.mamba_slot_allocator
        kept = 0 if slots is None else slots.max_slots - slots.free_count
        if kv.pool_avail != kv.dummy_block_idx or kept:
            raise InvariantViolation(
                "E3",
                f"after evicting everything {kv.pool_avail} of {kv.dummy_block_idx} blocks are free, and "
                f"{kept} states are still cached",
            )
        self.tested["E3"] += 1

    def _count_exits(self) -> None:
        self.tested["E3"] += self._exits
        self._exits = 0


def _fingerprints(step: RequestStep) -> np.ndarray:
    prefixes: np.ndarray = step.req.fingerprints[step.start : step.start + len(step.tokens)]
    return prefixes
