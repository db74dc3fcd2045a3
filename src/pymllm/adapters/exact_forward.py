"""An exact forward pass through a context, with the KV and states of `request_operations`.

Everything is computed out of what the context shows: KV from the row before it, states from the live state.
So whatever is wrong with either is in all that follows.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.adapters.failing_calls import InjectedFault
from pymllm.core.inference.contexts.forward_batch import ForwardBatch, RequestStep
from pymllm.history.operations import CONV_PRIME, KV_FACTOR, KV_PRIME, SSM_PRIME

_GARBAGE: Final = 0xBAD

Numbers = NDArray[np.int64]


class ExactState:
    """The states of one kind in all layers of a request, as affine maps of residues that can be composed.

    ``elements`` counts those of all layers; residues below ``prime`` are exact in the dtype of the states.
    """

    def __init__(self, elements: int, prime: int) -> None:
        self._prime = prime
        self._places = np.arange(elements, dtype=np.int64)

    def advance(self, state: Numbers, tokens: Numbers) -> Numbers:
        """Return the state after more tokens, by composing neighbouring maps pairwise until one is left."""
        if not tokens.size:
            return state
        ahead, prime = tokens[:, None] + 1, self._prime
        factors = 1 + ahead * (self._places + 3) * 7919 % (prime - 1)
        summands = (ahead * (self._places + 5) * 104_729 + self._places) % prime
        while len(factors) > 1:
            even = len(factors) // 2 * 2
            first, second = factors[:even:2], factors[1:even:2]
            shifted = (second * summands[:even:2] + summands[1:even:2]) % prime
            factors = np.concatenate((first * second % prime, factors[even:]))
            summands = np.concatenate((shifted, summands[even:]))
        advanced: Numbers = (factors[0] * state + summands[0]) % prime
        return advanced


class ExactForward:
    """The reads and writes of a model, with KV of its own beside the context's states.

    The context's conv states are exact below `CONV_PRIME`, its SSM states below `SSM_PRIME`, if it has any.
    `kv` has shape ``(num_blocks, block_size)``, int64, the dummy block last; `fails_at` says at which request
    of the next batch, from 1, the pass fails (0: none), and `done` how many of the last batch were computed.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self.kv: Numbers = np.zeros(
            (context.kv_block_allocator.pool_size, context.block_size_tokens), np.int64
        )
        self._weights = np.arange(1, context.block_size_tokens + 1)
        self._kinds: list[tuple[ExactState, torch.Tensor]] = [
            (ExactState(states[:, 0].numel(), prime), states)
            for states, prime in (
                (context.mamba_conv_states, CONV_PRIME),
                (context.mamba_ssm_states, SSM_PRIME),
            )
            if states is not None
        ]
        self.fails_at = 0
        self.done = 0

    def read_kv(self, blocks: tuple[int, ...], stop: int | None = None) -> tuple[int, ...]:
        """Return the sum of the contents of blocks, over all positions or the first ``stop`` tokens."""
        sums: list[int] = (self.kv[list(blocks)] @ self._weights).tolist()
        if stop is not None:
            size = self.kv.shape[1]
            for place in range(stop // size, len(blocks)):
                count = max(0, stop - place * size)
                sums[place] = int(self.kv[blocks[place], :count] @ self._weights[:count])
        return tuple(sums)

    def read_lives(self, rows: list[int]) -> list[tuple[int, ...]]:
        """Return the live states in some rows of the context; empty for each row in one without states."""
        if not self._kinds or not rows:
            return [()] * len(rows)
        # All of them: to take some out of a tensor took 11 of 32 us, now 10.
        every = read_rows(*(states for _, states in self._kinds))
        return [every[row] for row in rows]

    def write_live(self, row: int, numbers: tuple[int, ...]) -> None:
        """Write a live state that was read before into a row of the context."""
        start = 0
        for _, states in self._kinds:
            live = states[:, row]
            _write(np.array(numbers[start : start + live.numel()]), live)
            start += live.numel()

    def offsets(self, batch: ForwardBatch) -> list[tuple[int, ...]]:
        """Read the offsets at which each request of a batch extracts states, from the device's data."""
        found: list[tuple[int, ...]] = [() for _ in batch.requests]
        slots = self._context.mamba_slot_allocator
        offsets, counts = (None, None) if slots is None else slots.get_intermediate_gpu_data()
        if offsets is not None and counts is not None:
            read = [tuple(row[:count]) for row, count in zip(offsets.tolist(), counts.tolist(), strict=True)]
            found[len(found) - len(read) :] = read
        return found

    def compute(self, batch: ForwardBatch) -> None:
        """Compute a batch, each request followed by padding; raise an error if a fault is armed."""
        self.done, output = 0, 0
        for step, offsets in zip(batch.requests, self.offsets(batch), strict=True):
            if self.done + 1 == self.fails_at:
                raise InjectedFault(f"the forward pass was told to fail at request {self.fails_at}")
            self._write_kv(step)
            for kind, (model, live) in enumerate(self._kinds):
                self._advance(step.tokens, offsets, output, kind, model, live[:, step.state_idx])
            output += len(offsets)
            self.kv[-1] = _GARBAGE
            self.done += 1

    def _write_kv(self, step: RequestStep) -> None:
        size = self.kv.shape[1]
        last = (
            int(self.kv[step.blocks[(step.start - 1) // size], (step.start - 1) % size]) if step.start else 0
        )
        written = []
        for token in step.tokens.tolist():
            last = (last * KV_FACTOR + token + 1) % KV_PRIME
            written.append(last)
        self.kv.reshape(-1)[step.kv_slots] = written

    def _advance(
        self,
        given: NDArray[np.uint32],
        offsets: tuple[int, ...],
        output: int,
        kind: int,
        model: ExactState,
        live: torch.Tensor,
    ) -> None:
        state, tokens, done = _numbers(live).reshape(-1), given.astype(np.int64), 0
        for place, offset in enumerate(offsets, output):
            state, done = model.advance(state, tokens[done:offset]), offset
            slots = self._context.mamba_slot_allocator
            outputs = (slots.intermediate_conv_out, slots.intermediate_ssm_out)[kind]
            _write(state, outputs[:, place])
        _write(model.advance(state, tokens[done:]), live)


def read_rows(*states: torch.Tensor) -> list[tuple[int, ...]]:
    """Return every row of ``[layers, rows, ...]`` states as integers, one part after the other."""
    parts = [_numbers(part).swapaxes(0, 1).reshape(part.shape[1], -1) for part in states]
    return list(map(tuple, np.concatenate(parts, axis=1).tolist()))


def _numbers(states: torch.Tensor) -> Numbers:
    numbers: Numbers = states.to("cpu", torch.int64).numpy()
    return numbers


def _write(numbers: Numbers, state: torch.Tensor) -> None:
    state.copy_(torch.from_numpy(numbers.reshape(state.shape)))  # 2.2 us; torch's own view makes it 4.4
