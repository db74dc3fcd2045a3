"""A simulated recurrent model: advances working states, and compares them with those of a cold run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.bit_view import bit_view
from pymllm.workloads.engine_forward import padded
from pymllm.workloads.engine_pools import StatePool
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.recurrence import Recurrence

__all__ = ["SimulatedRecurrent"]

# The largest primes below 2^24 and 2^8: float32 and bfloat16 hold every whole number up to there.
_RECURRENT_PRIME = 16_777_213
_CONV_PRIME = 251


@dataclass(frozen=True, slots=True)
class _Buffer:
    """One buffer of the pool, and what was written where."""

    name: str
    states: torch.Tensor  # (layers, rows, elements of a layer), a view
    record: torch.Tensor  # the same on the host, a copy
    recurrence: Recurrence

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Read rows as int64, shape ``(rows, elements)``."""
        index = torch.from_numpy(rows).to(self.states.device)
        found = self.states[:, index].transpose(0, 1).flatten(1)
        return found.to("cpu", torch.int64).numpy()

    def as_rows(self, values: np.ndarray) -> torch.Tensor:
        """Bring values of shape ``(rows, elements)`` into the buffer's shape and dtype, on the host."""
        layers, _, per_layer = self.states.shape
        shaped = torch.from_numpy(values).view(-1, layers, per_layer).transpose(0, 1)
        return shaped.to(self.states.dtype)


class SimulatedRecurrent:
    """The states of a small integer model, advanced and read through a real pool (laws E1, E2, E5).

    Parameters
    ----------
    pool : StatePool
        Working states and track slots, all zero.
    seed : int
        Of the garbage that padding carries.

    Attributes
    ----------
    checked_states : int
        Working states compared with those of a cold run.

    Notes
    -----
    Cost: a record of all states on the host, which tells a write that went astray. Not thread-safe.
    """

    def __init__(self, pool: StatePool, seed: int) -> None:
        self.checked_states = 0
        self._garbage = np.random.default_rng(seed)
        self._buffers = [
            _make_buffer("recurrent_state", pool.recurrent_state, _RECURRENT_PRIME, 1),
            _make_buffer("conv_state", pool.conv_state, _CONV_PRIME, 2),
        ]

    # -- what the engine does to states ------------------------------------------------------------------

    def note_reset(self, row: int) -> None:
        """Take note that a row was reset."""
        for buffer in self._buffers:
            buffer.record[:, row] = 0

    def note_copy(self, source: int, destination: int) -> None:
        """Take note that a row was copied to another."""
        for buffer in self._buffers:
            buffer.record[:, destination] = buffer.record[:, source]

    def prefill(self, live: LiveRequest, start: int) -> None:
        """Let a request's working state take in its tokens ``start .. length``."""
        row = np.array([live.row])
        tokens = live.tokens[start : live.length]
        for buffer in self._buffers:
            state = buffer.read(row)[0]
            after = buffer.recurrence.advance(state, tokens, live.request.namespace)
            self._write(buffer, row, after[None])

    def decode(self, lives: Sequence[LiveRequest], rows: np.ndarray, positions: np.ndarray) -> None:
        """Let the working states of a batch take in one token each.

        Parameters
        ----------
        lives : sequence of LiveRequest
            Of the batch.
        rows, positions : numpy.ndarray
            Their rows, and the position of the token that each takes in; shape ``(n,)``, int64.
        """
        taken = list(zip(lives, positions.tolist(), strict=True))
        for buffer in self._buffers:
            new = [
                buffer.recurrence.inputs(live.tokens[at : at + 1], live.request.namespace)
                for live, at in taken
            ]
            self._write(buffer, rows, buffer.recurrence.step(buffer.read(rows), np.concatenate(new)))

    def _write(self, buffer: _Buffer, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows and, as a padded batch does, garbage into row 0."""
        index = padded(rows)
        garbage = self._garbage.integers(1, 100, (len(index) - len(rows), values.shape[1]))
        written = buffer.as_rows(np.concatenate([values, garbage]))
        device = buffer.states.device
        buffer.states[:, torch.from_numpy(index).to(device)] = written.to(device)
        buffer.record[:, torch.from_numpy(rows)] = written[:, : len(rows)]

    # -- checks ------------------------------------------------------------------------------------------

    def check(self, live: LiveRequest) -> None:
        """Compare a request's working state with that of a cold run, bit for bit.

        Parameters
        ----------
        live : LiveRequest
            With a row, whose state has taken in exactly ``length`` tokens.

        Raises
        ------
        InvariantViolation
            E1: it is the state after something else.

        Notes
        -----
        Cost: O(length): nothing is remembered from one check to the next.
        """
        self.checked_states += 1
        tokens = live.tokens[: live.length]
        for buffer in self._buffers:
            expected = buffer.as_rows(buffer.recurrence.cold(tokens, live.request.namespace)[None])[:, 0]
            found = buffer.states[:, live.row].cpu()
            wrong = bit_view(found) != bit_view(expected)
            if wrong.any():
                layer, element = wrong.nonzero()[0].tolist()
                raise InvariantViolation(
                    "E1",
                    f"request {live.request_id}: {buffer.name} of row {live.row} after {live.length} tokens, "
                    f"layer {layer}, element {element}: expected {expected[layer, element]:g}, as a cold run "
                    f"has, found {found[layer, element]:g}",
                )

    def check_untouched(self) -> None:
        """Compare every row but the padding one with the record of what was written there.

        Raises
        ------
        InvariantViolation
            E5: a write, most likely a padded one, landed in a row that it did not name.

        Notes
        -----
        Cost: one pass over all states.
        """
        for buffer in self._buffers:
            found = bit_view(buffer.states.cpu()[:, 1:])
            astray = found != bit_view(buffer.record[:, 1:])
            if astray.any():
                layer, row, element = astray.nonzero()[0].tolist()
                raise InvariantViolation(
                    "E5",
                    f"{buffer.name} of row {row + 1}, layer {layer}, element {element} holds "
                    f"{buffer.states[layer, row + 1, element]:g}, but what was last written to it is "
                    f"{buffer.record[layer, row + 1, element]:g}",
                )


def _make_buffer(name: str, states: torch.Tensor, prime: int, salt: int) -> _Buffer:
    view = states.flatten(2)
    return _Buffer(name, view, view.cpu().clone(), Recurrence(view.shape[0] * view.shape[2], prime, salt))
