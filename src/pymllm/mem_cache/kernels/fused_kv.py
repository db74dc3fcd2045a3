"""A write of a step's keys and values into one layer by a single kernel launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from pymllm.mem_cache.kernels.fused_rows import (
    NO_INDEX,
    FusedRows,
    RowForm,
    as_kernel_index,
    index_of,
    place_of,
)
from pymllm.mem_cache.uploads import is_capturing

#: Fewer rows, outside of a captured graph, are left to torch's two launches. 0 until a device was measured:
#: by its host time, one launch of a prepared kernel should win against two of torch's for any batch.
FEWEST_ROWS: Final = 0

# 8 KiB in 16-byte accesses of 128 threads: four tokens of 8 heads of 128 half-precision elements, so that a
# batch of 256 of them has 128 programs for K and V, about one for each multiprocessor.
_TILE_WORDS: Final = 1024


class FusedKV:
    """A writer of rows into the K and the V buffer of a layer, in one launch.

    ``k_buffer``, ``v_buffer``: per layer ``[rows, ...]``, contiguous. K and V may differ in width. Neither
    rows nor buffers get a hint to be evicted from L2: attention reads either next. Laws: P3, E5.
    """

    def __init__(self, k_buffer: Sequence[torch.Tensor], v_buffer: Sequence[torch.Tensor]) -> None:
        self._k_buffer, self._v_buffer = k_buffer, v_buffer
        self._device = k_buffer[0].device
        self._k_form, self._v_form = RowForm.of(k_buffer, 1), RowForm.of(v_buffer, 1)
        self._rows = FusedRows(self._device, (self._k_form, self._v_form), layers=1, tile_words=_TILE_WORDS)

    def write(self, layer: int, index: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor) -> bool:
        """Write rows at the positions that an index names.

        ``index``: shape ``(n,)``, any integer dtype; int32 and int64 are read as they are. ``k_rows``,
        ``v_rows``: ``[n, ...]``, in the dtype and on the device of the buffers, and not in their memory.
        Returns false where torch is to do it, nothing was launched then: the elements of a row lie apart, or
        not at the multiples of 16 bytes (less for narrow rows) that the kernel was compiled for. Cost: one
        launch. No synchronisation while ``index`` is on the device.
        """
        count = index.numel()
        if count < FEWEST_ROWS and not is_capturing(self._device):
            return False
        k_place = place_of(k_rows, self._k_form, 1)
        v_place = place_of(v_rows, self._v_form, 1)
        if k_place is None or v_place is None:
            return False
        # A name keeps its memory until the launch is on the stream.
        index = as_kernel_index(index, self._device)
        targets = (
            (self._k_buffer[layer].data_ptr(), 0, self._k_form.words),
            (self._v_buffer[layer].data_ptr(), 0, self._v_form.words),
        )
        return self._rows.move(count, (k_place, v_place), NO_INDEX, targets, index_of(index))
