"""A simulated recurrent model over a context's states, live, extracted and cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import RequestStep
from pymllm.errors import InvariantViolation
from pymllm.mem_cache.bit_view import bit_view
from pymllm.workloads.block_snapshots import Snapshot
from pymllm.workloads.recurrent_states import RecurrentStates

__all__ = ["BlockRecurrent"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """The buffers of one kind of states, each ``[layers, rows, ...]``, and what was written there."""

    name: str
    model: RecurrentStates
    live: torch.Tensor
    record: torch.Tensor  # of live, on the host
    extracted: torch.Tensor | None
    cached: torch.Tensor | None
    left: dict[int, torch.Tensor] = field(default_factory=dict)  # by block, what the step leaves
    kept: dict[int, torch.Tensor] = field(default_factory=dict)  # by block, what is cached


class BlockRecurrent:
    """The states of a small integer model, advanced and read through a real context (laws E1, C7).

    Parameters
    ----------
    context : DynamicInferenceContext
        With recurrent layers; empty.

    Attributes
    ----------
    checked_states : int
        Live states compared with those of a cold run.

    Notes
    -----
    Cost: a record of all states on the host. Not thread-safe.
    """

    def __init__(self, context: DynamicInferenceContext) -> None:
        self.checked_states = 0
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
        """Let a request's live state take in a chunk, and write the states at its offsets.

        Parameters
        ----------
        step : RequestStep
            What is computed.
        left : sequence of Snapshot
            What this request is to leave.
        """
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
        """Let the live states of a batch take in one token each."""
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
        """Compare what a commit has cached with what the step has left.

        Returns
        -------
        int
            How many states are cached.

        Raises
        ------
        InvariantViolation
            C7: another state is cached.
        """
        blocks = list(dict.fromkeys(snapshot.block for snapshot in left))
        for kind in self._kinds:
            kind.kept.update((block, kind.left[block]) for block in blocks)
            kind.left.clear()
        return self._check_cached(blocks)

    def note_release(self, state_idx: int) -> None:
        """Take note that a row of the live states is free."""
        self._in_use.discard(state_idx)

    # -- checks ------------------------------------------------------------------------------------------

    def check(self, request_id: int, state_idx: int, tokens: np.ndarray) -> None:
        """Compare a live state with that of a cold run, bit for bit.

        Parameters
        ----------
        request_id : int
            Named where it fails.
        state_idx : int
            Row of the live states.
        tokens : numpy.ndarray
            Everything that the state has taken in.

        Raises
        ------
        InvariantViolation
            E1: it is the state after something else.

        Notes
        -----
        Cost: O(tokens): nothing is remembered from one check to the next.
        """
        self.checked_states += 1
        for kind in self._kinds:
            expected, found = kind.model.cold(tokens), kind.live[:, state_idx].cpu()
            _compare("E1", f"request {request_id}: {kind.name} after {len(tokens)} tokens", expected, found)

    def check_untouched(self) -> None:
        """Compare every live state that was computed, and every cached one, with what was written there.

        Raises
        ------
        InvariantViolation
            C7: a copy went astray, or a state is cached that nobody has left.

        Notes
        -----
        Cost: one pass over the states in use.
        """
        rows = torch.tensor(sorted(self._in_use), dtype=torch.int64)
        for kind in self._kinds:
            found = kind.live[:, rows.to(kind.live.device)].cpu()
            _compare("C7", f"{kind.name} of rows {rows.tolist()}", kind.record[:, rows], found)
        if self._slots is not None:
            self._check_cached((self._slots.block_to_slot >= 0).nonzero().flatten().tolist())

    def _check_cached(self, blocks: list[int]) -> int:
        """Compare the cached states of those blocks that have one; returns how many have."""
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
