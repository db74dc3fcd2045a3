"""A simulated model: writes fingerprints as KV, and compares what is read with what a cold run writes."""

from __future__ import annotations

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.memory_pool import KVPool
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_pools import WindowAllocator
from pymllm.workloads.fingerprint import KVPart, kv_fingerprints

__all__ = ["BATCH_MULTIPLE", "SimulatedForward", "padded"]

#: Batches are padded to a multiple of this, as captured graphs are; the padding names slot 0 and row 0.
BATCH_MULTIPLE = 8

_LAYERS = 2
_FULL = (KVPart.FULL_K, KVPart.FULL_V)
_SWA = (KVPart.SWA_K, KVPart.SWA_V)
_PLACES = {
    parts: tuple((layer, part) for layer in range(_LAYERS) for part in parts) for parts in (_FULL, _SWA)
}


def padded(values: np.ndarray, padding: int = 0) -> np.ndarray:
    """Extend a batch with the padding slot or row to a multiple of `BATCH_MULTIPLE`."""
    count = len(values)
    batch = np.empty(count + -count % BATCH_MULTIPLE, dtype=values.dtype)
    batch[:count], batch[count:] = values, padding
    return batch


class SimulatedForward:
    """The KV of a small integer model, written and read through real pools (laws E1, E2, E5).

    Parameters
    ----------
    config : EngineConfig
        Already rounded.
    swa_allocator : WindowAllocator or None
        Translates full slots to SWA slots, where there is a window.
    slots : int, optional
        Slots that the full pool names, in tokens; ``config.capacity`` of them may be in use at one time.
    padding : range
        Slots whose content nobody reads; padded writes go to the first.

    Attributes
    ----------
    checked_tokens : int
        KV rows read back and compared, both halves.
    unchecked_writes : int
        Calls of `write` since `check_untouched` was last called.

    Notes
    -----
    Cost: memory of 32 bytes per slot and half, twice: a plain record of what was written where tells a
    write that went astray. Not thread-safe.
    """

    def __init__(
        self,
        config: EngineConfig,
        swa_allocator: WindowAllocator | None,
        slots: int | None = None,
        padding: range = range(1),
    ) -> None:
        self.checked_tokens = 0
        self.unchecked_writes = 0
        self._window = config.sliding_window_size
        self._swa_allocator = swa_allocator
        self._padding = padding
        # Drawn once: what padding carries only has to be what no cold run writes.
        self._garbage = np.random.default_rng(config.seed).integers(1, 1 << 62, BATCH_MULTIPLE)
        self._pools = {_FULL: _make_pool(config, config.capacity if slots is None else slots)}
        if config.swa_capacity is not None:
            self._pools[_SWA] = _make_pool(config, config.swa_capacity)
        # By place, as are the rows of what was written there.
        self._buffers = {parts: _flat_buffers(pool) for parts, pool in self._pools.items()}
        # The same memory where NumPy can see it: a row is compared in a quarter of the time through torch.
        self._host = {
            parts: [buffer.numpy() for buffer in buffers]
            for parts, buffers in self._buffers.items()
            if self._pools[parts].device.type == "cpu"
        }
        self._written = {
            parts: np.zeros((len(_PLACES[parts]), pool.size + pool.page_size), dtype=np.int64)
            for parts, pool in self._pools.items()
        }

    def write(self, slots: torch.Tensor, prefixes: np.ndarray) -> None:
        """Compute tokens: write their KV, and garbage for the padding of the batch.

        Parameters
        ----------
        slots : torch.Tensor
            Full slots, shape ``(n,)``.
        prefixes : numpy.ndarray
            Their prefix fingerprints, shape ``(n,)``, uint64.

        Raises
        ------
        InvariantViolation
            E5: the padding names another slot than 0.
        """
        self.unchecked_writes += 1
        garbage = self._garbage[: -len(prefixes) % BATCH_MULTIPLE]
        for parts, pool in self._pools.items():
            named = self._slots_of(parts, slots)
            batch = padded(named, self._padding.start)
            stray = [slot for slot in batch[len(named) :].tolist() if slot not in self._padding]
            if stray:
                raise InvariantViolation("E5", f"the padding of a batch names slot {stray[0]}")
            index, expected = torch.from_numpy(batch), kv_fingerprints(prefixes, _PLACES[parts])
            values = np.empty((len(expected), len(batch), 1, 1), dtype=np.int64)
            values[:, : len(named), 0, 0], values[:, len(named) :, 0, 0] = expected, garbage
            keys_values = torch.from_numpy(values).to(pool.device).unbind()
            for layer in range(_LAYERS):
                pool.set_kv_buffer(layer, index, *keys_values[2 * layer : 2 * layer + 2])
            self._written[parts][:, named] = expected

    def _slots_of(self, parts: tuple[KVPart, KVPart], slots: torch.Tensor) -> np.ndarray:
        if parts is _SWA and self._swa_allocator is not None:
            slots = self._swa_allocator.translate_to_swa(slots)
        return slots.cpu().numpy().astype(np.int64)

    def check_row(self, request_id: int, slots: torch.Tensor, prefixes: np.ndarray) -> None:
        """Read a request's row back and compare it with a cold run; its window likewise.

        Parameters
        ----------
        request_id : int
            Named where it fails.
        slots : torch.Tensor
            Full slots of the row's positions ``0 .. n - 1``.
        prefixes : numpy.ndarray
            Prefix fingerprints of the request's first n tokens.

        Raises
        ------
        InvariantViolation
            E1: a value is not what a cold run writes there. S1: an SWA half inside the window is gone.
        """
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
        """Read what the buffers hold at some slots, shape ``(buffers, slots)``."""
        if parts in self._host:
            return np.array([buffer.take(slots) for buffer in self._host[parts]])
        index = torch.from_numpy(slots).to(self._pools[parts].device)
        pieces = [buffer.index_select(0, index) for buffer in self._buffers[parts]]
        return torch.stack(pieces).cpu().numpy()

    def check_untouched(self) -> None:
        """Compare every slot but the padding ones with the record of what was written there.

        Raises
        ------
        InvariantViolation
            E5: a write, most likely a padded one, landed in a slot that it did not name.

        Notes
        -----
        Cost: one pass over all buffers.
        """
        for parts, buffers in self._buffers.items():
            for (layer, part), buffer, written in zip(
                _PLACES[parts], buffers, self._written[parts], strict=True
            ):
                found = buffer.cpu().numpy()
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
    """List views of a pool's buffers as numbers by slot: keys and values of layer 0, then of layer 1."""
    return [buffer.view(-1) for layer in range(_LAYERS) for buffer in pool.get_kv_buffer(layer)]
