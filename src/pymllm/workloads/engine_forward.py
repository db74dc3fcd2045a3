"""The simulated models, with KV as fingerprints and states as integers, checked against a cold run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.memory_pool import KVPool
from pymllm.mem_cache.pools.rows import bit_view
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_pools import StatePool, WindowAllocator
from pymllm.workloads.exact_values import (
    ColdRun,
    KVPart,
    Recurrence,
    RecurrentStates,
    bits_of,
    kv_fingerprints,
    values_of,
)
from pymllm.workloads.live_request import LiveRequest

#: Batches are padded to a multiple of this, as captured graphs are; the padding names slot 0 and row 0.
BATCH_MULTIPLE = 8

_LAYERS = 2
_FULL = (KVPart.FULL_K, KVPart.FULL_V)
_SWA = (KVPart.SWA_K, KVPart.SWA_V)
_PLACES = {
    parts: tuple((layer, part) for layer in range(_LAYERS) for part in parts) for parts in (_FULL, _SWA)
}


def padded(values: np.ndarray, padding: int = 0) -> np.ndarray:
    """Extend a batch with the padding slot or row to a length that is a multiple of `BATCH_MULTIPLE`."""
    count = len(values)
    batch = np.empty(count + -count % BATCH_MULTIPLE, dtype=values.dtype)
    batch[:count], batch[count:] = values, padding
    return batch


class SimulatedForward:
    """The KV of a small integer model, written and read through real pools (laws E1, E2, E5).

    The full pool names so many ``slots``, of which ``config.capacity`` may be in use at one time. Nobody
    reads ``padding``; padded writes go to its first slot. Cost: 32 bytes per slot and half, twice: a plain
    record of what was written where tells a write that went astray. Where the pools of KV are nobody's
    (``has_pools``), as of an engine that a search drives, KV lies in plain arrays: a write takes a third of
    the time, and the engine 8 % less.
    """

    def __init__(
        self,
        config: EngineConfig,
        swa_allocator: WindowAllocator | None,
        slots: int | None = None,
        padding: range = range(1),
        *,
        has_pools: bool = True,
    ) -> None:
        self.checked_tokens = 0
        self.unchecked_writes = 0
        self._window = config.sliding_window_size
        self._swa_allocator = swa_allocator
        self._padding = padding
        # Drawn once: what padding carries only has to be what no cold run writes.
        self._garbage = np.random.default_rng(config.seed).integers(1, 1 << 62, BATCH_MULTIPLE)
        sizes = {_FULL: config.capacity if slots is None else slots}
        if config.swa_capacity is not None:
            sizes[_SWA] = config.swa_capacity
        self._written = {
            parts: np.zeros((len(_PLACES[parts]), size + config.page_size), dtype=np.int64)
            for parts, size in sizes.items()
        }
        pools = sizes if has_pools else {}
        self._pools = {parts: _make_pool(config, size) for parts, size in pools.items()}
        # By place, as are the rows of what was written there.
        self._buffers = {parts: _flat_buffers(pool) for parts, pool in self._pools.items()}
        # The same memory where NumPy can see it: a row is compared in a quarter of the time through torch.
        self._host = {
            parts: [buffer.numpy() for buffer in self._buffers[parts]] if has_pools else [*written.copy()]
            for parts, written in self._written.items()
            if not has_pools or self._pools[parts].device.type == "cpu"
        }

    def write(self, slots: torch.Tensor, prefixes: np.ndarray) -> None:
        """Write KV of uint64 prefix fingerprints into full slots, both ``(n,)``, and garbage into padding."""
        self.unchecked_writes += 1
        garbage = self._garbage[: -len(prefixes) % BATCH_MULTIPLE]
        for parts, written in self._written.items():
            named = self._slots_of(parts, slots)
            batch = padded(named, self._padding.start)
            stray = [slot for slot in batch[len(named) :].tolist() if slot not in self._padding]
            if stray:
                raise InvariantViolation("E5", f"the padding of a batch names slot {stray[0]}")
            expected = kv_fingerprints(prefixes, _PLACES[parts])
            values = np.empty((len(expected), len(batch)), dtype=np.int64)
            values[:, : len(named)], values[:, len(named) :] = expected, garbage
            if parts not in self._pools:
                for buffer, row in zip(self._host[parts], values, strict=True):
                    buffer[batch] = row
            else:
                pool, index = self._pools[parts], torch.from_numpy(batch)
                keys_values = torch.from_numpy(values[..., None, None]).to(pool.device).unbind()
                for layer in range(_LAYERS):
                    pool.set_kv_buffer(layer, index, *keys_values[2 * layer : 2 * layer + 2])
            written[:, named] = expected

    def _slots_of(self, parts: tuple[KVPart, KVPart], slots: torch.Tensor) -> np.ndarray:
        if parts is _SWA and self._swa_allocator is not None:
            slots = self._swa_allocator.translate_to_swa(slots)
        return slots.cpu().numpy().astype(np.int64)

    def check_row(self, request_id: int, slots: torch.Tensor, prefixes: np.ndarray) -> None:
        """Compare a request's first n positions and their window with a cold run's (laws E1, S1)."""
        self._check(request_id, 0, slots, prefixes, _FULL)
        if self._window is None:
            return
        start = max(0, len(slots) - self._window)
        halves = self._slots_of(_SWA, slots[start:])
        if not halves.all():
            at = start + int(np.flatnonzero(halves == 0)[0])
            raise InvariantViolation(
                "S1",
                f"request {request_id}: position {at}, slot {int(slots[at])} has no SWA half, but the window "
                f"of {self._window} tokens before position {len(slots)} covers it",
            )
        self._check(request_id, start, slots[start:], prefixes[start:], _SWA)

    def _check(
        self,
        request_id: int,
        start: int,
        slots: torch.Tensor,
        prefixes: np.ndarray,
        parts: tuple[KVPart, KVPart],
    ) -> None:
        named = self._slots_of(parts, slots)
        self.checked_tokens += len(named)
        expected, found = kv_fingerprints(prefixes, _PLACES[parts]), self._read(parts, named)
        if not np.array_equal(expected, found):
            place, at = np.argwhere(expected != found)[0].tolist()
            layer, part = _PLACES[parts][place]
            value, other = expected[place, at], found[place, at]
            raise InvariantViolation(
                "E1",
                f"request {request_id}: position {start + at}, slot {named[at]}, layer {layer}, "
                f"{part.name}: expected {value}, as a cold run writes, found {other}",
            )

    def _read(self, parts: tuple[KVPart, KVPart], slots: np.ndarray) -> np.ndarray:
        """Return the contents of some slots in the buffers, shape ``(buffers, slots)``."""
        if parts in self._host:
            return np.array([buffer.take(slots) for buffer in self._host[parts]])
        index = torch.from_numpy(slots).to(self._pools[parts].device)
        pieces = [buffer.index_select(0, index) for buffer in self._buffers[parts]]
        return torch.stack(pieces).cpu().numpy()

    def check_untouched(self) -> None:
        """Check that every slot but the padding holds the last write, so that none went astray (law E5)."""
        for parts, rows in self._written.items():
            buffers = self._host.get(parts) or [buffer.cpu().numpy() for buffer in self._buffers[parts]]
            for (layer, part), found, written in zip(_PLACES[parts], buffers, rows, strict=True):
                astray = found != written
                astray[self._padding.start : self._padding.stop] = False
                if astray.any():
                    slot = int(astray.argmax())
                    raise InvariantViolation(
                        "E5",
                        f"slot {slot}, layer {layer}, {part.name} holds {found[slot]}, but what was last "
                        f"written to it is {written[slot]}",
                    )
        self.unchecked_writes = 0


def _make_pool(config: EngineConfig, size: int) -> KVPool:
    return KVPool(
        size,
        layer_num=_LAYERS,
        k_head_num=1,
        k_head_dim=1,
        device=config.device,
        dtype=torch.int64,
        pin_memory=False,
        page_size=config.page_size,
    )


def _flat_buffers(pool: KVPool) -> list[torch.Tensor]:
    """Return views of a pool's buffers as numbers by slot: keys and values of layer 0, then of layer 1."""
    return [buffer.view(-1) for layer in range(_LAYERS) for buffer in pool.get_kv_buffer(layer)]


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A buffer of the pool and a record of every write, both viewed as integers."""

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
        """Return the bits of all rows, in the form of `record`."""
        return self.bits.cpu().numpy() if self.host is None else self.host

    def bits_of(self, values: np.ndarray) -> np.ndarray:
        """Convert values of shape ``(n, elements)`` to the buffer's bits, shape ``(layers, n, ...)``."""
        layers, _, elements = self.record.shape
        return bits_of(values, self.dtype).reshape(-1, layers, elements).transpose(1, 0, 2)

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows and record them, with garbage in row 0 as in a padded batch."""
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
        """Return one element as a number."""
        number = torch.from_numpy(bits.reshape(1)).view(self.dtype).item()
        return f"{number:g}"


class SimulatedRecurrent:
    """The states of a small integer model, advanced and read through a real pool (laws E1, E2, E5)."""

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
        """Record that a row was reset."""
        for buffer in self._buffers:
            buffer.record[:, row] = 0

    def note_copy(self, source: int, destination: int) -> None:
        """Record that a row was copied to another."""
        for buffer in self._buffers:
            buffer.record[:, destination] = buffer.record[:, source]

    def prefill(self, live: LiveRequest, start: int) -> None:
        """Advance a request's working state by the tokens from ``start`` to ``length``."""
        rows = np.array([live.row])
        [state] = self._read(rows)
        taken = self._recurrence.take_in(state, self._cold_run(live).inputs[start : live.length])
        self._write(rows, taken[None])

    def decode(self, lives: Sequence[LiveRequest], rows: np.ndarray, positions: np.ndarray) -> None:
        """Advance the states of a batch by one token each; rows and token positions are ``(n,)``, int64."""
        pairs = zip(map(self._cold_run, lives), positions.tolist(), strict=True)
        inputs = np.array([run.inputs[at] for run, at in pairs])
        self._write(rows, self._recurrence.step(self._read(rows), inputs))

    def _read(self, rows: np.ndarray) -> np.ndarray:
        """Return the states of rows: the columns of all buffers, one buffer after the other."""
        return np.concatenate([buffer.read(rows) for buffer in self._buffers], axis=1)

    def _write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows of each buffer."""
        for buffer, part in zip(self._buffers, self._parts(values), strict=True):
            buffer.write(rows, part)

    def _parts(self, values: np.ndarray) -> list[np.ndarray]:
        """Split values of all buffers into one array per buffer."""
        return [values[:, columns] for columns in self._columns]

    def _cold_run(self, live: LiveRequest) -> ColdRun:
        if live.cold_run is None:
            inputs = self._recurrence.inputs(live.tokens, live.request.namespace)
            parts = zip(self._buffers, self._parts(self._recurrence.cold_run(inputs)), strict=True)
            live.cold_run = ColdRun(inputs, tuple(buffer.bits_of(states) for buffer, states in parts))
        return live.cold_run

    # -- checks ------------------------------------------------------------------------------------------

    def check(self, live: LiveRequest) -> None:
        """Compare a request's state after ``length`` tokens with that of a cold run, bit for bit (law E1).

        The cold run, in which what was computed from the pool's states has no part, is computed once for each
        request.
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
        """Check that every row but the padding holds the last write, so that none went astray (law E5)."""
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
