"""A simulated recurrent model: advances working states, and compares them with those of a cold run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.bit_view import bit_view
from pymllm.workloads.engine_forward import BATCH_MULTIPLE, padded
from pymllm.workloads.engine_pools import StatePool
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.recurrent_states import ColdRun, RecurrentStates

__all__ = ["SimulatedRecurrent"]


@dataclass(frozen=True, slots=True)
class _Buffer:
    """One buffer of the pool, and what was written where."""

    name: str
    states: torch.Tensor  # (layers, rows, elements of a layer), a view
    record: torch.Tensor  # the same on the host, a copy
    model: RecurrentStates

    def read(self, rows: torch.Tensor) -> np.ndarray:
        """Read rows as int64, shape ``(rows, elements)``."""
        return self.model.values(self.states.index_select(1, rows.to(self.states.device)))

    def write(self, rows: torch.Tensor, values: np.ndarray, count: int) -> None:
        """Write rows, and take note of the first ``count``: the others are padding."""
        written = self.model.states(values)
        self.states.index_copy_(1, rows.to(self.states.device), written.to(self.states.device))
        self.record.index_copy_(1, rows[:count], written[:, :count])


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
        self._buffers = [
            _make_buffer("recurrent_state", pool.recurrent_state, 1),
            _make_buffer("conv_state", pool.conv_state, 2),
        ]
        # Drawn once: what padding carries only has to be no state of anybody's.
        most = max(buffer.model.recurrence.elements for buffer in self._buffers)
        self._garbage = np.random.default_rng(seed).integers(1, 100, (BATCH_MULTIPLE, most))

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
        row, runs = np.array([live.row]), self._cold_runs(live)
        values = []
        for buffer, run in zip(self._buffers, runs, strict=True):
            [state] = buffer.read(torch.from_numpy(row))
            values.append(buffer.model.recurrence.take_in(state, run.inputs[start : live.length])[None])
        self._write(row, values)

    def decode(self, lives: Sequence[LiveRequest], rows: np.ndarray, positions: np.ndarray) -> None:
        """Let the working states of a batch take in one token each.

        Parameters
        ----------
        lives : sequence of LiveRequest
            Of the batch.
        rows, positions : numpy.ndarray
            Their rows, and the position of the token that each takes in; shape ``(n,)``, int64.
        """
        taken = list(zip(map(self._cold_runs, lives), positions.tolist(), strict=True))
        named, values = torch.from_numpy(rows), []
        for place, buffer in enumerate(self._buffers):
            inputs = np.stack([runs[place].inputs[at] for runs, at in taken])
            values.append(buffer.model.recurrence.step(buffer.read(named), inputs))
        self._write(rows, values)

    def _write(self, rows: np.ndarray, values: Sequence[np.ndarray]) -> None:
        """Write rows of each buffer and, as a padded batch does, garbage into row 0."""
        index, count = torch.from_numpy(padded(rows)), len(rows)
        for buffer, written in zip(self._buffers, values, strict=True):
            garbage = self._garbage[: len(index) - count, : written.shape[1]]
            buffer.write(index, np.concatenate([written, garbage]), count)

    def _cold_runs(self, live: LiveRequest) -> Sequence[ColdRun]:
        if live.cold_runs is None:
            tokens, namespace = live.tokens, live.request.namespace
            live.cold_runs = [buffer.model.cold_run(tokens, namespace) for buffer in self._buffers]
        return live.cold_runs

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
        Cost: one comparison; the cold run is computed once for each request, O(n log n) for its n tokens.
        What was computed from the pool's states has no part in it.
        """
        self.checked_states += 1
        for buffer, run in zip(self._buffers, self._cold_runs(live), strict=True):
            expected, found = run.states[:, live.length], buffer.states[:, live.row].cpu()
            if not torch.equal(bit_view(found), bit_view(expected)):
                wrong = bit_view(found) != bit_view(expected)
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
            found, written = bit_view(buffer.states.cpu()[:, 1:]), bit_view(buffer.record[:, 1:])
            if not torch.equal(found, written):
                astray = found != written
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
