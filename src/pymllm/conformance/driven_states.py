"""The states of an engine that drives an adapter: working states are our own, track slots the adapter's."""

from __future__ import annotations

import torch

from pymllm.conformance.driven_cache import Carrier
from pymllm.history.operations import AllocTrack, FreeTrack, ReadStates, Span, WriteState
from pymllm.history.outcomes import Done, NoRoom, Slots, States, Unsupported
from pymllm.mem_cache.memory_pool import GDNPool
from pymllm.oracle.slot_ledger import Owner
from pymllm.oracle.track_ledger import TrackLedger

__all__ = ["DrivenStates"]


class DrivenStates:
    """States by row, as an engine has them; each call that is about a track slot is an operation.

    The adapter may number its track slots as it likes, so each has another row here. What is copied into one
    is kept here and also written into the adapter's memory, as far as two small numbers tell it; before it is
    copied back, the judge compares what the adapter's memory has now.

    Parameters
    ----------
    carrier : Carrier
        Of an adapter that keeps states.
    rows : int
        Working states, in rows ``1 .. rows``.
    tracks : TrackLedger
        Who has which of the adapter's track slots.
    """

    def __init__(self, carrier: Carrier, rows: int, tracks: TrackLedger) -> None:
        self._carrier = carrier
        self._ledger = tracks
        # Two layers, and heads and channels of more than one element, as the engine's own pools have.
        self._pool = GDNPool(rows, 2, 1, 2, 2, 2, 2, "cpu", max_track_slots=tracks.size)
        self._track_rows = range(rows + 1, rows + 1 + tracks.size)
        self._row_of: dict[int, int] = {}

    # -- rows and track slots ----------------------------------------------------------------------------

    def row_of(self, slot: int) -> int:
        """Return the row of one of the adapter's track slots that is not free."""
        return self._row_of[slot]

    def name(self, row: int) -> Span:
        """Name the track slot behind a row by the step that gave it."""
        return self._ledger.given.name((self._slot_of(row),))[0]

    def _slot_of(self, row: int) -> int:
        return next(slot for slot, place in self._row_of.items() if place == row)

    def cached_rows(self) -> list[int]:
        """Return the rows of all track slots that the cache has."""
        return [self._row_of[slot] for slot in self._ledger.ends.slots.values()]

    # -- what an engine asks of a pool of states -----------------------------------------------------------

    @property
    def max_track_slots(self) -> int:
        """Track slots that there are."""
        return self._ledger.size

    @property
    def recurrent_state(self) -> torch.Tensor:
        """States of all layers and rows."""
        return self._pool.recurrent_state

    @property
    def conv_state(self) -> torch.Tensor:
        """The same of the convolutions."""
        return self._pool.conv_state

    def available_track_slots(self) -> int:
        """Count the track slots that the adapter can still hand out."""
        return self._carrier.size("available_track_slots")

    def alloc_track_slot(self) -> int | None:
        """Take a track slot and return its row, or ``None``."""
        result = self._carrier.do(AllocTrack(), Slots, NoRoom)
        if not isinstance(result, Slots):
            return None
        (slot,) = result.slots
        # Rows of track slots that the cache has freed meanwhile are free as well.
        owned = {other: row for other, row in self._row_of.items() if self._is_owned(other) and other != slot}
        row = next(row for row in self._track_rows if row not in owned.values())
        self._row_of = {**owned, slot: row}
        return row

    def _is_owned(self, slot: int) -> bool:
        return self._ledger.owner(slot) is not Owner.POOL

    def free_track_slot(self, slot: int) -> None:
        """Give the track slot behind a row back."""
        self._carrier.do(FreeTrack(self.name(slot)), Done)

    def copy_states(self, src_index: int, dst_index: int) -> None:
        """Copy a row to another; to or from a track slot by way of the adapter's memory."""
        if src_index in self._track_rows:
            self._carrier.do(ReadStates(0), States, Unsupported)
        self._pool.copy_states(src_index, dst_index)
        if dst_index in self._track_rows:
            numbers = self._numbers_of(dst_index)
            self._carrier.do(WriteState(0, self.name(dst_index), *numbers), Done, Unsupported)

    def _numbers_of(self, row: int) -> tuple[int, int]:
        """Return two numbers in -128 .. 127; those of two different states are most likely different."""
        states = (self._pool.recurrent_state, self._pool.conv_state)
        recurrent, conv = (int(state[:, row].long().sum()) % 256 - 128 for state in states)
        return recurrent, conv

    def reset_states(self, req_pool_indices: int) -> None:
        """Zero a working state."""
        self._pool.reset_states(req_pool_indices)
