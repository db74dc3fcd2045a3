"""A simulated recurrent model: advances working states, and compares them with those of a cold run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.bit_view import bit_view
from pymllm.workloads.cold_run import ColdRun
from pymllm.workloads.engine_forward import BATCH_MULTIPLE, padded
from pymllm.workloads.engine_pools import StatePool
from pymllm.workloads.exact_bits import bits_of, values_of
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.recurrence import Recurrence
from pymllm.workloads.recurrent_states import RecurrentStates

__all__ = ["SimulatedRecurrent"]


@dataclass(frozen=True, slots=True)
class _Buffer:
    """One buffer of the pool, and what was written where, seen as integers."""

    name: str
    bits: torch.Tensor  # (layers, rows, elements of a layer), a view
    host: np.ndarray | None  # the same memory where NumPy can see it: a few rows take a third of torch's time
    record: np.ndarray  # all rows on the host, a copy
    dtype: torch.dtype
    recurrence: Recurrence
    garbage: np.ndarray  # what padding carries, in the form of `record`

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Read rows as int64, shape ``(rows, elements)``."""
        if self.host is not None:
            found = self.host.take(rows, axis=1)
        else:
            found = self.bits.index_select(1, self._index(rows)).cpu().numpy()
        return values_of(found, self.dtype).transpose(1, 0, 2).reshape(len(rows), -1)

    def read_row(self, row: int) -> np.ndarray:
        """Read the bits of one row, shape ``(layers, elements of a layer)``."""
        return self.bits[:, row].cpu().numpy() if self.host is None else self.host[:, row]

    def read_all(self) -> np.ndarray:
        """Read the bits of all rows, in the form of `record`."""
        return self.bits.cpu().numpy() if self.host is None else self.host

    def bits_of(self, values: np.ndarray) -> np.ndarray:
        """Bring values of shape ``(n, elements)`` into the buffer's form, shape ``(layers, n, ...)``."""
        layers, _, elements = self.record.shape
        return bits_of(values, self.dtype).reshape(-1, layers, elements).transpose(1, 0, 2)

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows, and take note of them; as a padded batch does, write garbage into row 0."""
        written, padding = self.bits_of(values), self.garbage[:, : -len(rows) % BATCH_MULTIPLE]
        self.record[:, rows] = written
        if self.host is not None:
            self.host[:, rows] = written
            if padding.size:
                self.host[:, 0] = padding[:, -1]
        else:
            whole = torch.from_numpy(np.concatenate([written, padding], axis=1)).to(self.bits.device)
            self.bits.index_copy_(1, self._index(padded(rows)), whole)

    def _index(self, rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(rows).to(self.bits.device)

    def show(self, bits: np.ndarray) -> str:
        """Show one element as the number that it is."""
        number = torch.from_numpy(bits.reshape(1)).view(self.dtype).item()
        return f"{number:g}"


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
            _make_buffer("recurrent_state", pool.recurrent_state, 1, seed),
            _make_buffer("conv_state", pool.conv_state, 2, seed),
        ]
        kinds = [buffer.recurrence for buffer in self._buffers]
        self._recurrence = Recurrence.side_by_side(kinds)
        ends = [*accumulate(kind.elements for kind in kinds)]
        self._columns = [slice(end - kind.elements, end) for end, kind in zip(ends, kinds, strict=True)]

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
        rows = np.array([live.row])
        [state] = self._read(rows)
        taken = self._recurrence.take_in(state, self._cold_run(live).inputs[start : live.length])
        self._write(rows, taken[None])

    def decode(self, lives: Sequence[LiveRequest], rows: np.ndarray, positions: np.ndarray) -> None:
        """Let the working states of a batch take in one token each.

        Parameters
        ----------
        lives : sequence of LiveRequest
            Of the batch.
        rows, positions : numpy.ndarray
            Their rows, and the position of the token that each takes in; shape ``(n,)``, int64.
        """
        pairs = zip(map(self._cold_run, lives), positions.tolist(), strict=True)
        inputs = np.array([run.inputs[at] for run, at in pairs])
        self._write(rows, self._recurrence.step(self._read(rows), inputs))

    def _read(self, rows: np.ndarray) -> np.ndarray:
        """Read the states of rows, the buffers side by side."""
        return np.concatenate([buffer.read(rows) for buffer in self._buffers], axis=1)

    def _write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows of each buffer."""
        for buffer, part in zip(self._buffers, self._parts(values), strict=True):
            buffer.write(rows, part)

    def _parts(self, values: np.ndarray) -> list[np.ndarray]:
        """Cut values of all buffers into those of each."""
        return [values[:, columns] for columns in self._columns]

    def _cold_run(self, live: LiveRequest) -> ColdRun:
        if live.cold_run is None:
            inputs = self._recurrence.inputs(live.tokens, live.request.namespace)
            parts = zip(self._buffers, self._parts(self._recurrence.cold_run(inputs)), strict=True)
            live.cold_run = ColdRun(inputs, tuple(buffer.bits_of(states) for buffer, states in parts))
        return live.cold_run

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
        for buffer, states in zip(self._buffers, self._cold_run(live).bits, strict=True):
            expected, found = states[:, live.length], buffer.read_row(live.row)
            if found.tobytes() != expected.tobytes():
                layer, element = np.argwhere(found != expected)[0].tolist()
                raise InvariantViolation(
                    "E1",
                    f"request {live.request_id}: {buffer.name} of row {live.row} after {live.length} tokens, "
                    f"layer {layer}, element {element}: expected {buffer.show(expected[layer, element])}, as "
                    f"a cold run has, found {buffer.show(found[layer, element])}",
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
            found, written = buffer.read_all()[:, 1:], buffer.record[:, 1:]
            if found.tobytes() != written.tobytes():
                layer, row, element = np.argwhere(found != written)[0].tolist()
                raise InvariantViolation(
                    "E5",
                    f"{buffer.name} of row {row + 1}, layer {layer}, element {element} holds "
                    f"{buffer.show(found[layer, row, element])}, but what was last written to it is "
                    f"{buffer.show(written[layer, row, element])}",
                )


def _make_buffer(name: str, states: torch.Tensor, salt: int, seed: int) -> _Buffer:
    view = states.flatten(2)
    bits, model = bit_view(view), RecurrentStates((view.shape[0], view.shape[2]), view.dtype, salt)
    host = bits.numpy() if bits.device.type == "cpu" else None
    record, layers = bits.cpu().numpy().copy(), bits.shape[0]
    # Drawn once: what padding carries only has to be no state of anybody's.
    drawn = np.random.default_rng(seed).integers(1, 100, (BATCH_MULTIPLE, model.recurrence.elements))
    garbage = bits_of(drawn, view.dtype).reshape(BATCH_MULTIPLE, layers, -1).transpose(1, 0, 2)
    return _Buffer(name, bits, host, record, view.dtype, model.recurrence, garbage)
