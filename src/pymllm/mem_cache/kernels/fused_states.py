"""Copies and resets of rows in two buffers of states, in every layer, by a single kernel launch."""

from __future__ import annotations

from typing import Final, TypeAlias

import torch

from pymllm.mem_cache.kernels.fused_rows import (
    NO_INDEX,
    FusedRows,
    Index,
    Place,
    RowForm,
    as_kernel_index,
    index_of,
    place_of,
)

#: One row by its number, which the host knows, or an index of rows.
Rows: TypeAlias = "int | torch.Tensor"
_Pair: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"

# 32 KiB by 256 threads: half of their registers, eight 16-byte accesses under way for each.
_TILE_WORDS: Final = 4096
# Rows that one tile can have all of: the more, the shorter the pieces that it has of each, down to 64 bytes.
_ROW_LIMITS: Final = (1, 8, 64, 512)


class FusedStates:
    """A mover of rows in two buffers ``[layers, rows, ...]``, in one launch for all layers.

    ``first``, ``second``: contiguous, with equally many layers; their rows may be empty. ``within``: whether
    rows are moved inside these buffers, where one may be read and written by the same call, and are cleared.
    Otherwise they are copied between these and others, which are different memory. Bits are moved, whatever
    they mean. Laws: P5, C7.
    """

    def __init__(self, first: torch.Tensor, second: torch.Tensor, *, within: bool) -> None:
        device, layers = first.device, first.shape[0]
        self._within = within
        self._forms = RowForm.of([first], 2), RowForm.of([second], 2)
        limits = _ROW_LIMITS if within else ()
        self._copies = FusedRows(device, self._forms, layers, tile_words=_TILE_WORDS, row_limits=limits)
        self._clears = (
            FusedRows(device, self._forms, layers, tile_words=_TILE_WORDS, clears=True) if within else None
        )

    def copy(self, count: int, sources: _Pair, read: Rows, targets: _Pair, write: Rows) -> bool:
        """Copy rows.

        ``read``, ``write``: one row, or an index of ``count`` rows, of any integer dtype. Cost: one launch.
        No synchronisation while an index is on the device.
        """
        source_places, target_places = self._places(sources), self._places(targets)
        if source_places is None or target_places is None:
            return False
        if not self._within and any(map(_share_memory, sources, targets)):
            return False
        device = sources[0].device
        read, write = _as_rows(read, device), _as_rows(write, device)
        from_places, from_index = self._start(source_places, read)
        to_places, to_index = self._start(target_places, write)
        return self._copies.move(count, from_places, from_index, to_places, to_index)

    def clear(self, count: int, targets: _Pair, rows: Rows) -> bool:
        """Fill rows with zeros; arguments and result as of `copy`."""
        places = self._places(targets)
        if self._clears is None or places is None:
            return False
        rows = _as_rows(rows, targets[0].device)
        to_places, to_index = self._start(places, rows)
        return self._clears.move(count, None, NO_INDEX, to_places, to_index)

    def _places(self, buffers: _Pair) -> tuple[Place, Place] | None:
        first, second = place_of(buffers[0], self._forms[0], 2), place_of(buffers[1], self._forms[1], 2)
        return None if first is None or second is None else (first, second)

    def _start(self, places: tuple[Place, Place], rows: Rows) -> tuple[tuple[Place, Place], Index]:
        """Return the first row of a range, if the host knows it, so that the device needs no index."""
        if isinstance(rows, torch.Tensor):
            return places, index_of(rows)
        first, second = (
            (address + rows * row_step * form.word, layer_step, row_step)
            for (address, layer_step, row_step), form in zip(places, self._forms, strict=True)
        )
        return (first, second), NO_INDEX


def _share_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    # What is empty has no address.
    memory = first.untyped_storage().data_ptr(), second.untyped_storage().data_ptr()
    return memory[0] == memory[1] != 0


def _as_rows(rows: Rows, device: torch.device) -> Rows:
    return as_kernel_index(rows, device) if isinstance(rows, torch.Tensor) else rows
