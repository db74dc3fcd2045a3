"""The checks of a block engine: contents and states against a cold run, trackers, and rest at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch, RequestStep
from pymllm.errors import InvariantViolation
from pymllm.mem_cache.pools.rows import bit_view
from pymllm.workloads.block_context import EngineContext
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_forward import SimulatedForward
from pymllm.workloads.engine_watch import Event, Watch
from pymllm.workloads.exact_values import RecurrentStates
from pymllm.workloads.live_request import BlockRequest


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state that a request leaves after ``depth`` tokens, where ``block`` ends."""

    live: BlockRequest
    block: int
    depth: int


def snapshots_of(batch: ForwardBatch, block_size: int) -> list[Snapshot]:
    """Return the states that a step will leave (law C8), before its commit; two may share a block."""
    return [
        Snapshot(step.req, step.blocks[depth // block_size - 1], depth)
        for step in batch.requests
        for depth in _depths(step, block_size)
    ]


def _depths(step: RequestStep, block_size: int) -> list[int]:
    depths = [step.start + offset for offset in step.offsets]
    stop = step.start + len(step.tokens)
    if stop == step.req.prompt_length and stop % block_size == 0:
        depths.append(stop)
    return depths


@dataclass(frozen=True, slots=True)
class _Kind:
    """The buffers of one kind of states, each ``[layers, rows, ...]``, and the last write to each row."""

    name: str
    model: RecurrentStates
    live: torch.Tensor
    record: torch.Tensor  # of live, on the host
    extracted: torch.Tensor | None
    cached: torch.Tensor | None
    left: dict[int, torch.Tensor] = field(default_factory=dict)  # by block, what the step leaves
    kept: dict[int, torch.Tensor] = field(default_factory=dict)  # by block, what is cached


class BlockRecurrent:
    """The states of a small integer model, kept in a real context (laws E1, C7)."""

    def __init__(self, context: DynamicInferenceContext) -> None:
        self.checked_states = 0
        self._context = context
        self._slots = slots = context.mamba_slot_allocator
        conv, ssm = context.mamba_conv_states, context.mamba_ssm_states
        assert conv is not None
        assert ssm is not None
        outs = (None, None) if slots is None else (slots.intermediate_conv_out, slots.intermediate_ssm_out)
        cached = (None, None) if slots is None else (slots.conv_states, slots.ssm_states)
        self._kinds = [
            _make_kind("mamba_conv_states", conv, outs[0], cached[0], salt=1),
            _make_kind("mamba_ssm_states", ssm, outs[1], cached[1], salt=2),
        ]
        self._in_use: set[int] = set()

    # -- the forward pass --------------------------------------------------------------------------------

    def prefill(self, step: RequestStep, left: Sequence[Snapshot]) -> None:
        """Advance a live state by a chunk, and write the states that are due at offsets in it."""
        blocks = {snapshot.depth: snapshot.block for snapshot in left}
        for kind in self._kinds:
            [value] = kind.model.values(kind.live[:, step.state_idx : step.state_idx + 1])
            done = 0
            for place, offset in enumerate([*step.offsets, len(step.tokens)]):
                value = kind.model.recurrence.advance(value, step.tokens[done:offset], None)
                done, state = offset, kind.model.states(value[None])[:, 0]
                if place < len(step.offsets) and kind.extracted is not None:
                    kind.extracted[:, step.first_output + place] = state.to(kind.extracted.device)
                if step.start + offset in blocks:
                    kind.left[blocks[step.start + offset]] = state
            self._write(kind, np.array([step.state_idx]), value[None])
        self._in_use.add(step.state_idx)

    def decode(self, steps: Sequence[RequestStep]) -> None:
        """Advance each live state of a batch by one token."""
        if not steps:
            return
        rows = np.array([step.state_idx for step in steps])
        tokens = np.concatenate([step.tokens for step in steps])
        for kind in self._kinds:
            values = kind.model.values(kind.live[:, torch.from_numpy(rows).to(kind.live.device)])
            inputs = kind.model.recurrence.inputs(tokens, None)
            self._write(kind, rows, kind.model.recurrence.step(values, inputs))

    def _write(self, kind: _Kind, rows: np.ndarray, values: np.ndarray) -> None:
        index, states = torch.from_numpy(rows), kind.model.states(values)
        kind.live[:, index.to(kind.live.device)] = states.to(kind.live.device)
        kind.record[:, index] = states

    # -- what the context does to states -----------------------------------------------------------------

    def note_commit(self, left: Sequence[Snapshot]) -> int:
        """Compare the states cached by a commit with the states of the step (law C7), and count them."""
        blocks = list(dict.fromkeys(snapshot.block for snapshot in left))
        for kind in self._kinds:
            kind.kept.update((block, kind.left[block]) for block in blocks)
            kind.left.clear()
        return self._check_cached(blocks)

    def row_of(self, live: BlockRequest) -> int:
        """Return the row of a request's live state."""
        row = self._context.requests.index(live)
        return int(self._context.mamba_metadata.request_to_mamba_state_idx[row])

    def note_release(self, state_idx: int) -> None:
        """Record that a row of the live states is free."""
        self._in_use.discard(state_idx)

    # -- checks ------------------------------------------------------------------------------------------

    def check(self, request_id: int, state_idx: int, tokens: np.ndarray) -> None:
        """Compare a live state with a cold run's after the same ``tokens`` (law E1)."""
        self.checked_states += 1
        for kind in self._kinds:
            expected, found = kind.model.cold(tokens), kind.live[:, state_idx].cpu()
            _compare("E1", f"request {request_id}: {kind.name} after {len(tokens)} tokens", expected, found)

    def check_untouched(self) -> None:
        """Compare every live state in use and every cached state with the last write there (law C7)."""
        rows = torch.tensor(sorted(self._in_use), dtype=torch.int64)
        for kind in self._kinds:
            found = kind.live[:, rows.to(kind.live.device)].cpu()
            _compare("C7", f"{kind.name} of rows {rows.tolist()}", kind.record[:, rows], found)
        if self._slots is not None:
            self._check_cached((self._slots.block_to_slot >= 0).nonzero().flatten().tolist())

    def _check_cached(self, blocks: list[int]) -> int:
        """Compare the cached states of some blocks with a cold run; return how many blocks have a state."""
        if self._slots is None:
            return 0
        slots = self._slots.block_to_slot[blocks]
        named = [block for block, slot in zip(blocks, slots.tolist(), strict=True) if slot >= 0]
        index = slots[slots >= 0].long()
        for kind in self._kinds:
            unknown = [block for block in named if block not in kind.kept]
            if unknown:
                raise InvariantViolation("C7", f"blocks {unknown} have states that no request has left")
            if named and kind.cached is not None:
                found = kind.cached[:, index.to(kind.cached.device)].cpu()
                expected = torch.stack([kind.kept[block] for block in named], dim=1)
                _compare("C7", f"{kind.name} cached for blocks {named}", expected, found)
        return len(named)


def _make_kind(
    name: str, live: torch.Tensor, extracted: torch.Tensor | None, cached: torch.Tensor | None, *, salt: int
) -> _Kind:
    model = RecurrentStates((live.shape[0], *live.shape[2:]), live.dtype, salt)
    return _Kind(name, model, live, live.cpu().clone(), extracted, cached)


def _compare(law: str, what: str, expected: torch.Tensor, found: torch.Tensor) -> None:
    wrong = bit_view(found.contiguous()) != bit_view(expected.contiguous())
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        raise InvariantViolation(
            law,
            f"{what}: at {at} expected {expected[at]:g}, as a cold run has, found {found[at]:g}",
        )


BlockOnlooker = Callable[[Event, BlockRequest], None]
"""A function that is called with each event and its request, and must not change either."""


class BlockWatch(Watch[BlockRequest]):
    """The checks of a block engine, with the simulated model that they need.

    The states of a context that is not ours are its own: whoever drives it has them judged.
    """

    def __init__(
        self, config: EngineConfig, context: EngineContext, onlooker: BlockOnlooker | None = None
    ) -> None:
        dummy = range(config.capacity, config.capacity + config.page_size)
        ours = context if isinstance(context, DynamicInferenceContext) else None
        forward = None
        if config.content_check:
            forward = SimulatedForward(config, None, padding=dummy, has_pools=ours is not None)
        super().__init__(forward, onlooker)
        self.recurrent = BlockRecurrent(ours) if config.content_check and ours is not None else None
        self._context = context
        self._headroom = config.decode_headroom

    # -- the forward pass --------------------------------------------------------------------------------

    def compute(self, batch: ForwardBatch, left: Sequence[Snapshot]) -> None:
        """Check the contents that a step's requests read, and write new contents (laws E1, E2, E4)."""
        if self.forward is None or not batch.requests:
            return
        for step in batch.requests:
            self._check_plan(step)
            if step.req.is_unread:
                self.check_step(step, step.start)
        self.forward.write(
            torch.from_numpy(np.concatenate([step.kv_slots for step in batch.requests])),
            np.concatenate([_fingerprints(step) for step in batch.requests]),
        )
        if self.recurrent is None:
            return
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
        written = np.unique(step.kv_slots // self._context.block_size_tokens)
        written = written[written != self._context.total_blocks]
        shared = written[self._context.references_of(written) != 1]
        if shared.size:
            raise InvariantViolation(
                "E2",
                f"request {live.request_id} is to write blocks {shared.tolist()}, which are not its alone",
            )

    def check_step(self, step: RequestStep, length: int) -> None:
        """Check a request's first ``length`` tokens and its state, if content is checked (law E1)."""
        if self.forward is None:
            return
        live, size = step.req, self._context.block_size_tokens
        positions = np.arange(length)
        slots = np.array(step.blocks)[positions // size] * size + positions % size
        self.forward.check_row(live.request_id, torch.from_numpy(slots), live.fingerprints[:length])
        if self.recurrent is not None:
            self.recurrent.check(live.request_id, step.state_idx, live.tokens[:length])
        self.tested["E1"] += length > 0

    # -- what the engine itself keeps ------------------------------------------------------------------------

    def check_reserve(self, live: BlockRequest, reserve: int, running: Sequence[BlockRequest]) -> None:
        """Check the blocks reserved for running requests before another request is admitted (law E4).

        That is the blocks that their prompts still take, and those into which they grow within the engine's
        headroom; both are counted here once more.
        """
        size, promised = self._context.block_size_tokens, 0
        for each in running:
            grown = each.prompt_length
            if each.is_prefilled:
                grown = min(each.final_length, each.length + self._headroom)
            promised += max(0, -(-grown // size) - self._context.blocks_of(each))
        if reserve != promised:
            raise InvariantViolation(
                "E4",
                f"request {live.request_id} is to leave {reserve} blocks to {len(running)} running requests, "
                f"which will take {promised}",
            )
        self.tested["E4"] += 1

    def check_lives(self, lives: Sequence[BlockRequest]) -> None:
        """Check that the context and the engine have the same requests (law E3)."""
        here, known = [each.request_id for each in self._context.requests], [it.request_id for it in lives]
        if sorted(here) != sorted(known):
            raise InvariantViolation(
                "E3", f"requests {sorted(here)} are in the context, and the engine has {sorted(known)}"
            )
        self.tested["E3"] += bool(lives)

    # -- trackers -------------------------------------------------------------------------------------------

    def note_commit(self, left: Sequence[Snapshot]) -> None:
        """Check the states that a commit has cached (law C7)."""
        if self.recurrent is not None:
            self.tested["C7"] += self.recurrent.note_commit(left)

    def note_release(self, live: BlockRequest) -> None:
        """Record that a request is about to give back its row."""
        if self.recurrent is not None:
            self.recurrent.note_release(self.recurrent.row_of(live))

    def check_invariants(self) -> None:
        """Check all invariants between two calls, and the states in use (laws C1 to C8, E2, E3)."""
        self._context.walk()
        if self.recurrent is not None:
            self.recurrent.check_untouched()
        self.tested["E2"] += len(self._context.requests) > 0
        self._count_exits()

    def check_quiescent(self) -> None:
        """Check that every block is free or only cached, now that no request lives (laws E3, E5)."""
        context = self._context
        held = context.referenced_blocks()
        if held or context.requests:
            raise InvariantViolation(
                "E3", f"no request lives, but {len(context.requests)} rows and blocks {held} are held"
            )
        if context.room() != context.total_blocks:
            raise InvariantViolation(
                "E3",
                f"{context.free_blocks} blocks are free and {context.cached_blocks} evictable, "
                f"{context.room()} of {context.total_blocks}",
            )
        self._count_exits()
        if self.recurrent is not None:
            self.recurrent.check_untouched()
        self._check_forward()

    def check_emptied(self) -> None:
        """Check that the pools own everything after evicting everything (law E3)."""
        context = self._context
        if context.free_blocks != context.total_blocks or context.cached_states():
            raise InvariantViolation(
                "E3",
                f"after evicting everything {context.free_blocks} of {context.total_blocks} blocks are free, "
                f"and {context.cached_states()} states are still cached",
            )
        self.tested["E3"] += 1


def _fingerprints(step: RequestStep) -> np.ndarray:
    prefixes: np.ndarray = step.req.fingerprints[step.start : step.start + len(step.tokens)]
    return prefixes
