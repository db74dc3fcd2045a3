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
from pymllm.workloads.recurrent_states import RecurrentStates

__all__ = ["SimulatedRecurrent"]


@dataclass(frozen=True, slots=True)
class _Buffer:
    """One buffer of the pool, and what was written where."""

    name: str
    states: torch.Tensor  # (layers, rows, elements of a layer), a view
    record: torch.Tensor  # the same on the host, a copy
    model: RecurrentStates

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Read rows as int64, shape ``(rows, elements)``."""
        return self.model.values(self.states[:, torch.from_numpy(rows).to(self.states.device)])


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
            _make_buffer("recurrent_state", pool.recurrent_state, 1),
            _make_buffer("conv_state", pool.conv_state, 2),
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
            after = buffer.model.recurrence.advance(state, tokens, live.request.namespace)
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
                buffer.model.recurrence.inputs(live.tokens[at : at + 1], live.request.namespace)
                for live, at in taken
            ]
            self._write(buffer, rows, buffer.model.recurrence.step(buffer.read(rows), np.concatenate(new)))

    def _write(self, buffer: _Buffer, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows and, as a padded batch does, garbage into row 0."""
        index = padded(rows)
        garbage = self._garbage.integers(1, 100, (len(index) - len(rows), values.shape[1]))
        written = buffer.model.states(np.concatenate([values, garbage]))
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
            expected = buffer.model.cold(tokens, live.request.namespace)
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


def _make_buffer(name: str, states: torch.Tensor, salt: int) -> _Buffer:
    view = states.flatten(2)
    model = RecurrentStates((view.shape[0], view.shape[2]), view.dtype, salt)
    return _Buffer(name, view, view.cpu().clone(), model)
